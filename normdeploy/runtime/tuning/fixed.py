"""Sessions made for the timed shapes: which candidates get one, and how the judge asks it.

A session of its own kernels may round differently than the one for any shapes, so it is judged by itself: the judge's
rows are dealt into batches of the size it is made for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from normdeploy.array_types import Array
from normdeploy.errors import InputError
from normdeploy.ort.settings import OPENVINO_PLUGIN, OPENVINO_RUNTIME
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.backend import Backend
from normdeploy.runtime.feeds import fill_up
from normdeploy.runtime.fixed_shapes import made_for
from normdeploy.runtime.tuning.candidates import Candidate

_GAIN = (OPENVINO_PLUGIN, OPENVINO_RUNTIME)  # onnxruntime's own CPU kernels gain nothing (benchmarks/fixed_shapes.py)


def with_fixed_shapes(
    best: Sequence[Candidate], specs: Sequence[TensorSpec], feeds: Mapping[str, Array]
) -> Iterator[Candidate]:
    """Yield the candidates of providers that gain by it with sessions made for the shapes of ``feeds``.

    Args:
        best: accepted candidates, the fastest first.
        specs: the model's inputs; where all their sizes are fixed already there is nothing to yield.
        feeds: what is timed.
    """
    if all(isinstance(size, int) for spec in specs for size in spec.shape):
        return
    for candidate in best:
        if candidate.settings.provider in _GAIN:
            settings = made_for(candidate.settings, feeds)
            label = candidate.name.partition(":")[0]
            yield replace(candidate, name=f"{label}: {settings.describe()}", settings=settings)


class InFixedBatches:
    """One call with any number of rows, as calls of a session made for a fixed number.

    Args:
        backend: what is called.
        shapes: input name to the shape it is made for.
    """

    def __init__(self, backend: Backend, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._backend, self._shapes = backend, dict(shapes)
        self._rows = {
            spec.name: self._shapes[spec.name][0]
            for spec in backend.inputs
            if spec.shape and not isinstance(spec.shape[0], int)
        }
        self.fitting = 0
        """How many calls had the fixed shapes: the only ones that the fixed session answers."""

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs of all rows, in order.

        Raises:
            InputError: an output without a row for each row of the input.
        """
        counts = {len(feeds[name]) for name in self._rows}
        sizes = set(self._rows.values())
        if len(counts) != 1 or len(sizes) != 1:
            return self._call(feeds)
        (count,), (size,) = counts, sizes
        parts = []
        for start in range(0, count, size):
            chunk = {
                name: fill_up(array[start : start + size], size) if name in self._rows else array
                for name, array in feeds.items()
            }
            parts.append(self._call(chunk))
        if any(array.ndim == 0 or len(array) != size for part in parts for array in part):
            raise InputError(
                f"an output has no row for each of {size} samples; expected one, by which batches are judged: "
                "the way for any shapes stays"
            )
        return [np.concatenate(arrays)[:count] for arrays in zip(*parts, strict=True)]

    def _call(self, feeds: Mapping[str, Array]) -> list[Array]:
        self.fitting += {name: array.shape for name, array in feeds.items()} == self._shapes
        return self._backend.run(feeds)
