"""The Predictor: an exported model as a function of arrays, for programs, workers and threads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from normdeploy.errors import GraphError, InputError
from normdeploy.files import require_model_file
from normdeploy.runtime.backend import Array, Backend, TensorSpec, open_backend
from normdeploy.runtime.lazy import Lazy
from normdeploy.runtime.plan import Plan, PlanMismatch, model_digest
from normdeploy.runtime.providers import default_settings
from normdeploy.runtime.settings import Settings


class PlanWarning(UserWarning):
    """A plan was given but does not hold here; the model runs untuned."""


class CertificateWarning(UserWarning):
    """The model file is not the one its certificate was written for."""


def check_array(spec: TensorSpec, value: Any) -> Array:
    """Return ``value`` as an array that fits ``spec`` (dynamic dimensions accept any size).

    Arrays and tensors must have the input's dtype: a silent cast would hide that the caller prepared other data than
    the network was trained on. Python numbers and nested lists have no dtype and take the input's.

    Raises:
        InputError: another dtype, rank or fixed size; the message gives both and the remedy.
    """
    if hasattr(value, "detach"):  # a torch tensor, possibly one that requires gradients or lives on a GPU
        value = value.detach().cpu()
    if isinstance(value, (list, tuple, int, float, bool)):
        try:
            array = np.asarray(value, dtype=spec.dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"input {spec.name!r} cannot become {spec}: {error}; pass a regular array") from error
    else:
        array = np.asarray(value)
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
        """
        arrays = {
            name: value if hasattr(value, "shape") else np.asarray(value) for name, value in self._named(inputs).items()
        }
        fixed = self.fixed_batch
        size = fixed or max(1, batch_size)
        counts = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
        total = next(iter(counts.values()), 0)
        if total < 1 or any(count != total for count in counts.values()):
            raise InputError(f"sample counts are {counts}; expected one common count of at least 1: align the inputs")
        parts = [
            self._exact({name: array[start : start + size] for name, array in arrays.items()}, fixed)
            for start in range(0, total, size)
        ]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return self._shape_result(inputs, joined)

    @property
    def fixed_batch(self) -> int:
        """The batch size the graph insists on, 0 where it takes any."""
        first = self.backend.inputs[0].shape
        return first[0] if first and isinstance(first[0], int) else 0

    def _exact(self, chunk: dict[str, Any], fill_to: int) -> dict[str, Array]:
        count = next(iter(chunk.values())).shape[0]
        if fill_to > count:
            chunk = {name: fill_up(np.asarray(array), fill_to) for name, array in chunk.items()}
        results = self._run(check_feeds(self.backend.inputs, chunk))
        for name, value in results.items():
            if value.ndim == 0 or value.shape[0] != max(count, fill_to):
                raise InputError(
                    f"output {name!r} has shape {list(value.shape)} for {max(count, fill_to)} samples; expected one "
                    "row per sample: call the model directly, its results cannot be cut into batches"
                )
        return {name: value[:count] for name, value in results.items()}


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
    model = require_model_file(path)
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
