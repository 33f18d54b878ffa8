"""The Predictor: an exported model as a function of arrays, for programs, workers and threads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from normdeploy.array_types import Array
from normdeploy.errors import GraphError, InputError
from normdeploy.files import require_model_file
from normdeploy.ort.digest import model_digest
from normdeploy.ort.providers import default_settings
from normdeploy.ort.settings import Settings
from normdeploy.ort.specs import TensorSpec
from normdeploy.parsing.amounts import require_count
from normdeploy.runtime.backend import Backend, open_backend
from normdeploy.runtime.feeds import check_feeds
from normdeploy.runtime.made_once import Lazy
from normdeploy.runtime.plan import Plan, PlanMismatch
from normdeploy.runtime.sample_rows import Rows, join, run
from normdeploy.runtime.samples import fixed_batch


class PlanWarning(UserWarning):
    """A plan was given but does not hold here; the model runs untuned."""


class CertificateWarning(UserWarning):
    """The model file is not the one its certificate was written for."""


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
        return {spec.name: value for spec, value in zip(backend.outputs, run(backend, feeds), strict=True)}

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
        count = require_count("batch_size", batch_size)
        rows = self.rows(self._named(inputs))
        size = self.fixed_batch or count
        parts = [rows.run(start, min(start + size, rows.total)) for start in range(0, rows.total, size)]
        return self._shape_result(inputs, join(self.outputs, parts))

    def rows(self, named: Mapping[str, Any]) -> Rows:
        """Check arrays of any number of samples, whatever batch the graph insists on, and return what runs them.

        Raises:
            InputError: arrays that do not fit, different sample counts, or no samples.
        """
        backend = self.backend
        specs = tuple(TensorSpec(spec.name, spec.dtype, (None, *spec.shape[1:])) for spec in backend.inputs)
        feeds = check_feeds(specs, named)
        counts = {name: len(array) for name, array in feeds.items()}
        total = next(iter(counts.values()), 0)
        if total < 1 or any(count != total for count in counts.values()):
            raise InputError(f"sample counts are {counts}; expected one common count of at least 1: align the inputs")
        return Rows(backend, feeds, total, self.fixed_batch)

    @property
    def fixed_batch(self) -> int:
        """The batch size the graph insists on, 0 where it takes any."""
        return fixed_batch(self.backend.inputs)


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

    >>> import numpy as np, normdeploy as nd
    >>> predict = nd.load("folded.onnx")
    >>> predict(np.zeros((5, 3), np.float32)).shape
    (5, 4)
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
    from normdeploy.verification.record.certificate import check_certificate

    report = check_certificate(model)
    if not report.matches:
        warnings.warn(
            f"{model.name} is not what its certificate covers: {'; '.join(report.problems)}. Verify it again",
            CertificateWarning,
            stacklevel=3,
        )
