"""The Predictor: an exported model as a function of arrays, for programs, workers and threads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from normdeploy.errors import GraphError, InputError, UsageError
from normdeploy.runtime.backend import Array, Backend, TensorSpec, open_backend
from normdeploy.runtime.casting import cast, expectation
from normdeploy.runtime.lazy import Lazy
from normdeploy.runtime.plan import Plan, PlanMismatch, model_digest
from normdeploy.runtime.providers import default_settings
from normdeploy.runtime.settings import Settings


class PlanWarning(UserWarning):
    """A plan was given but does not hold here; the model runs untuned."""


class CertificateWarning(UserWarning):
    """The model file is not the one its certificate was written for."""


def _plain_array(spec: TensorSpec, value: Any) -> Array:
    """Return an array of the input's dtype for Python numbers and lists, of its own dtype for everything else."""
    try:
        if hasattr(value, "detach"):  # a torch tensor, possibly one that requires gradients or lives on a GPU
            return np.asarray(value.detach().cpu())
        if not isinstance(value, (list, tuple, int, float, bool)):
            return np.asarray(value)
        array = np.asarray(value, dtype=object if spec.dtype == "object" else None)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:  # numpy's and torch's words for "no array"
        kind = getattr(value, "dtype", type(value).__name__)
        raise InputError(
            f"input {spec.name!r} is {kind} and cannot become an array ({error}); expected {spec}: "
            "pass a regular array, or a tensor of the input's own type"
        ) from error
    if spec.dtype == "object":
        return array
    if array.dtype.kind not in "biuf":
        raise InputError(f"input {spec.name!r} holds {array.dtype} values and cannot become {spec}; expected numbers")
    array, wrong = cast(array, spec.dtype)
    if wrong is not None:
        first = np.asarray(value)[wrong].ravel()[0]
        raise InputError(
            f"input {spec.name!r} holds {first} and cannot become {spec}; expected {expectation(spec.dtype)}: "
            "convert it where it is made"
        )
    return array


def check_array(spec: TensorSpec, value: Any) -> Array:
    """Return ``value`` as an array that fits ``spec`` (dynamic dimensions accept any size).

    Arrays and tensors must have the input's dtype: a silent cast would hide that the caller prepared other data than
    the network was trained on. Python numbers and nested lists have no dtype and take the input's, where it holds them.

    Raises:
        InputError: another dtype, rank or fixed size; the message gives both and the remedy.
    """
    array = _plain_array(spec, value)
    if array.dtype != np.dtype(spec.dtype):
        raise InputError(
            f"input {spec.name!r} is {array.dtype}; expected {spec.dtype}: "
            f"convert it where it is made, for example with .astype({spec.dtype!r})"
        )
    fits = len(array.shape) == len(spec.shape) and all(
        not isinstance(size, int) or size == given for size, given in zip(spec.shape, array.shape, strict=False)
    )
    if not fits:
        raise InputError(
            f"input {spec.name!r} has shape {list(array.shape)}; expected {spec}: "
            + ("add the batch dimension" if len(array.shape) + 1 == len(spec.shape) else "reshape or resize it")
        )
    return array


def check_feeds(specs: tuple[TensorSpec, ...], inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Return checked arrays for all of ``specs``; sizes named by the same word must agree between inputs.

    Raises:
        InputError: a missing or unknown name, or an array that does not fit.
    """
    names = [spec.name for spec in specs]
    missing = [name for name in names if name not in inputs]
    unknown = [name for name in inputs if name not in names]
    if missing or unknown:
        raise InputError(
            f"inputs are named {sorted(inputs)}; expected {names}"
            + (f": add {missing[0]!r}" if missing else f": leave out {unknown[0]!r}")
        )
    feeds = {spec.name: check_array(spec, inputs[spec.name]) for spec in specs}
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        for word, size in zip(spec.shape, feeds[spec.name].shape, strict=True):
            if not isinstance(word, str):
                continue
            first, where = sizes.setdefault(word, (size, spec.name))
            if first != size:
                raise InputError(
                    f"dimension {word!r} is {first} in input {where!r} and {size} in {spec.name!r}; "
                    "expected the same size in both: check which samples belong together"
                )
    return feeds


def fill_up(array: Array, rows: int) -> Array:
    """Return ``array`` with copies of its last row behind it, so that it has at least ``rows``."""
    missing = rows - len(array)
    return array if missing <= 0 else np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


Signature = dict[str, tuple[Any, tuple[int, ...]]]
"""Input name to dtype and shape."""


def _signature(named: Mapping[str, Any]) -> Signature | None:
    """Return what the checks depend on; None where a value is no plain array."""
    found: Signature = {}
    for name, value in named.items():
        if type(value) is not np.ndarray:
            return None
        found[name] = value.dtype, value.shape
    return found


class Predictor:
    """An exported model as a function of arrays.

    ``predictor(array)`` feeds the only input and returns the only output; ``predictor({name: array})`` takes and
    returns dicts of all of them (an array in gives a dict out where there are several outputs). The session is made at
    the first use, once per process, so a Predictor is cheap to pickle, and one instance may be called from many
    threads.

    Args:
        path: the ONNX file.
        settings: how to run it.
        origin: the model the user named, where ``path`` is a tuned variant of it.
    """

    def __init__(
        self, path: str | os.PathLike[str], settings: Settings, *, origin: str | os.PathLike[str] = ""
    ) -> None:
        self.path = Path(path).absolute()
        self.origin = Path(origin).absolute() if origin else self.path
        self.settings = settings
        self.digest = model_digest(self.path)
        self._unused()

    def _unused(self) -> None:
        """Be as before the first call."""
        self._session: Lazy[Backend] = Lazy(self._open)
        self._passed: Signature | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "origin": self.origin, "settings": self.settings, "digest": self.digest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._unused()

    def with_settings(self, settings: Settings) -> Predictor:
        """Return a Predictor of the same file under other settings."""
        return Predictor(self.path, settings, origin=self.origin)

    def __repr__(self) -> str:
        return f"Predictor({str(self.path)!r}, {self.settings.describe()})"

    @property
    def backend(self) -> Backend:
        """The loaded session; made at the first use.

        Raises:
            GraphError: the file is gone, is not the file this Predictor was made for (it may have travelled to a
                machine that holds another one at that path), or cannot be loaded.
        """
        return self._session.get()

    def _open(self) -> Backend:
        if self.path.is_file() and (digest := model_digest(self.path)) != self.digest:
            raise GraphError(
                f"{self.path} has digest {digest[:12]}; expected {self.digest[:12]}, the file this Predictor "
                "was made for: load it again, or put the same file on every machine"
            )
        return open_backend(self.path, self.settings)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each input."""
        return self.backend.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each output."""
        return self.backend.outputs

    def _named(self, inputs: Any) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            return inputs
        specs = self.backend.inputs
        if len(specs) != 1:
            raise InputError(
                f"got one {type(inputs).__name__} for {len(specs)} inputs; "
                f"expected a dict of {[str(spec) for spec in specs]}: name each array"
            )
        return {specs[0].name: inputs}

    def __call__(self, inputs: Any) -> Array | dict[str, Array]:
        """Run the model once.

        Args:
            inputs: an array (or tensor, or nested list) for a model of one input, or a dict of them by name.

        Returns:
            a dict of the outputs by name for a dict; for an array, the only output, or a dict where there are several.

        Raises:
            InputError: a wrong name, dtype or shape, or values the graph refuses at run time.
        """
        return self._shape_result(inputs, self._run(self._checked(self._named(inputs))))

    def _checked(self, named: Mapping[str, Any]) -> dict[str, Array]:
        """Return checked arrays; arrays of the names, types and shapes that passed last time pass again.

        On a network of 70 microseconds and two threads the checks took 6.
        """
        signature = _signature(named)
        if signature is not None and signature == self._passed:
            return dict(named)
        feeds = check_feeds(self.backend.inputs, named)
        if signature is not None:
            self._passed = signature
        return feeds

    def _run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        backend = self.backend
        try:
            values = backend.run(feeds)
        except Exception as error:
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            given = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
            raise InputError(
                f"the model cannot run on {given}: {error}; expected sizes and ids that the network accepts: "
                "compare with what it was exported for"
            ) from error
        return {spec.name: value for spec, value in zip(backend.outputs, values, strict=True)}

    def _shape_result(self, inputs: Any, results: dict[str, Array]) -> Array | dict[str, Array]:
        if isinstance(inputs, Mapping) or len(results) != 1:
            return results
        return next(iter(results.values()))

    def batched(self, inputs: Any, *, batch_size: int = 32) -> Array | dict[str, Array]:
        """Run the model over many samples in batches and join the results.

        The first dimension of every input counts samples. A model with a fixed batch size is fed that size; its last
        batch is filled up with copies of the last sample, whose results are dropped.

        Args:
            inputs: as for a call, with any number of samples >= 1.
            batch_size: samples per run, where the model leaves it open.

        Raises:
            InputError: inputs of different sample counts, no samples, or an output without a sample dimension.
            UsageError: a batch size below 1.
        """
        if not isinstance(batch_size, Integral) or batch_size < 1:
            raise UsageError(f"batch_size={batch_size!r}; expected a whole number of at least 1")
        feeds, total = self.check_rows(self._named(inputs))
        size = self.fixed_batch or int(batch_size)
        parts = [self.run_rows(feeds, start, min(start + size, total)) for start in range(0, total, size)]
        return self._shape_result(inputs, join_rows(parts))

    def check_rows(self, named: Mapping[str, Any]) -> tuple[dict[str, Array], int]:
        """Return checked arrays of any number of samples, whatever batch the graph insists on, and that number.

        Raises:
            InputError: arrays that do not fit, different sample counts, or no samples.
        """
        specs = tuple(TensorSpec(spec.name, spec.dtype, (None, *spec.shape[1:])) for spec in self.inputs)
        feeds = check_feeds(specs, named)
        counts = {name: len(array) for name, array in feeds.items()}
        total = next(iter(counts.values()), 0)
        if total < 1 or any(count != total for count in counts.values()):
            raise InputError(f"sample counts are {counts}; expected one common count of at least 1: align the inputs")
        return feeds, total

    @property
    def fixed_batch(self) -> int:
        """The batch size the graph insists on, 0 where it takes any."""
        first = self.backend.inputs[0].shape
        return first[0] if first and isinstance(first[0], int) else 0

    def run_rows(self, feeds: Mapping[str, Array], start: int, stop: int) -> dict[str, Array]:
        """Run the model once on the samples ``start`` to ``stop`` of checked arrays (see :meth:`check_rows`).

        Raises:
            InputError: values the graph refuses, or an output without a sample dimension.
        """
        count = stop - start
        rows = max(count, self.fixed_batch)
        results = self._run({name: fill_up(array[start:stop], rows) for name, array in feeds.items()})
        for name, value in results.items():
            if value.ndim == 0 or value.shape[0] != rows:
                raise InputError(
                    f"output {name!r} has shape {list(value.shape)} for {rows} samples; expected one "
                    "row per sample: call the model directly, its results cannot be cut into batches"
                )
        return results if rows == count else {name: value[:count] for name, value in results.items()}


def join_rows(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the outputs of consecutive batches as one array each.

    Raises:
        InputError: an output's rows differ in shape between batches.
    """
    for name in parts[0]:
        shapes = {part[name].shape[1:] for part in parts}
        if len(shapes) > 1:
            raise InputError(
                f"output {name!r} has rows of shapes {sorted(shapes)}; "
                "expected one shape for all rows: predict samples of one size at a time"
            )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def load(path: str | os.PathLike[str], *, plan: Plan | str | os.PathLike[str] | None = None) -> Predictor:
    """Load an exported model for prediction.

    Args:
        path: the ONNX file.
        plan: what ``tune`` returned or the file it saved; None runs the model as it is in float32 on the device that
            is there (CUDA where usable, else the CPU).

    Returns:
        a Predictor; its session is made at the first use.

    Raises:
        GraphError: the file does not exist.
        UsageError: the plan file is missing or is not a plan.

    Warns:
        PlanWarning: the plan does not hold for this file or this machine; the model runs untuned.
        CertificateWarning: the file changed after its certificate was written.
    """
    model = Path(path)
    if not model.is_file():
        raise GraphError(f"{model} does not exist; expected an ONNX file: check the path")
    _warn_if_changed(model)
    if plan is None:
        return Predictor(model, default_settings())
    plan = plan if isinstance(plan, Plan) else Plan.load(plan)
    try:
        file, settings = plan.resolve(model)
    except PlanMismatch as mismatch:
        warnings.warn(
            f"the plan for {plan.model} is not used: {mismatch}. The model runs untuned in float32; "
            f"to tune it again here: {plan.command}",
            PlanWarning,
            stacklevel=2,
        )
        return Predictor(model, default_settings())
    return Predictor(file, settings, origin=model)


def _warn_if_changed(model: Path) -> None:
    """Warn where a certificate lies beside the file and no longer matches it."""
    if not model.with_name(f"{model.stem}.certificate.json").is_file():
        return  # nothing was promised about this file
    from normdeploy.verify.certificate import check_certificate

    report = check_certificate(model)
    if not report.matches:
        warnings.warn(
            f"{model.name} is not what its certificate covers: {'; '.join(report.problems)}. Verify it again",
            CertificateWarning,
            stacklevel=3,
        )
