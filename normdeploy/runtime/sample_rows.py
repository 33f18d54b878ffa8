"""Many samples through a model in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from normdeploy.array_types import Array
from normdeploy.errors import InputError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.backend import Backend
from normdeploy.runtime.feeds import fill_up


@contextmanager
def refusals(feeds: Mapping[str, Array]) -> Iterator[None]:
    """Turn what onnxruntime says of a call that fails into an error of ours.

    Args:
        feeds: what the block runs the model on.

    Raises:
        InputError: values that the graph refuses.
    """
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        given = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
        raise InputError(
            f"the model cannot run on {given}: {error}; expected sizes and ids that the network accepts: "
            "compare with what it was exported for"
        ) from error


def run(backend: Backend, feeds: Mapping[str, Array]) -> list[Array]:
    """Run a model once; what onnxruntime refuses is an error of ours.

    Raises:
        InputError: values that the graph refuses.
    """
    with refusals(feeds):
        return backend.run(feeds)


class Rows:
    """Checked samples and the session that runs them; on small networks each look-up between two runs counts.

    Args:
        backend: the session.
        feeds: input name to array, samples along the first axis.
        total: how many samples.
        fixed: the batch size that the graph insists on, 0 where it takes any.
    """

    def __init__(self, backend: Backend, feeds: Mapping[str, Array], total: int, fixed: int) -> None:
        self.total, self._backend, self._fixed = total, backend, fixed
        self._feeds = list(feeds.items())

    def run(self, start: int, stop: int) -> list[Array]:
        """Return the outputs of the samples from ``start`` to ``stop``.

        Raises:
            InputError: values the graph refuses, or an output without a sample dimension.
        """
        feeds = {name: array[start:stop] for name, array in self._feeds}
        count, rows = stop - start, stop - start
        if rows < self._fixed:
            rows = self._fixed
            feeds = {name: fill_up(array, rows) for name, array in feeds.items()}
        values = run(self._backend, feeds)
        for at, value in enumerate(values):
            if not value.ndim or len(value) != rows:
                raise InputError(
                    f"output {self._backend.outputs[at].name!r} has shape {list(value.shape)} for {rows} samples; "
                    "expected one row per sample: call the model directly, its results cannot be cut into batches"
                )
        return values if rows == count else [value[:count] for value in values]


def join(outputs: Sequence[TensorSpec], parts: Sequence[Sequence[Array]]) -> dict[str, Array]:
    """Return the outputs of consecutive batches as one array each, by name.

    Raises:
        InputError: an output's rows differ in shape between batches.
    """
    joined = {}
    for spec, *values in zip(outputs, *parts, strict=True):
        if len(shapes := {value.shape[1:] for value in values}) > 1:
            raise InputError(
                f"output {spec.name!r} has rows of shapes {sorted(shapes)}; "
                "expected one shape for all rows: predict samples of one size at a time"
            )
        joined[spec.name] = np.concatenate(values)
    return joined
