"""What speed may cost: nothing beyond float32 rounding, or a loss the user states."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from normdeploy.errors import InputError, UsageError
from normdeploy.runtime.backend import Array

Metric = Literal["exact", "top1", "rel"]
_FORM = re.compile(r"(?P<metric>top1|rel)\s*=\s*(?P<value>[0-9.]+(e[-+]?[0-9]+)?)\s*(?P<percent>%?)")


@dataclass(frozen=True)
class Budget:
    """A limit on what may be lost.

    Args:
        metric: "exact": only what the float32 criterion of the verifier allows; "top1": the share of rows whose most
            likely class changes; "rel": the relative error ||y - y64|| / ||y64|| over all rows, the worst output's.
        limit: the largest loss, as a fraction; 0 for "exact".
        text: as the user wrote it.
    """

    metric: Metric
    limit: float
    text: str

    def loss(self, outputs: Sequence[Array], truth: Sequence[Array]) -> float:
        """Return the loss of ``outputs`` against the float64 ``truth``, both over all rows; NaN never passes.

        Raises:
            InputError: "top1" on a model whose first output holds no class scores.
        """
        if self.metric == "top1":
            return top1_loss(outputs[0], truth[0])
        return relative_error(outputs, truth)


def parse_budget(text: str | None) -> Budget:
    """Parse "exact" (also None), "top1=0.5%" or "rel=1e-2".

    Raises:
        UsageError: another form, or a limit outside 0..1.
    """
    if text is None or text.strip() == "exact":
        return Budget("exact", 0.0, "exact")
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"budget is {text!r}; expected exact, top1=0.5% or rel=1e-2")
    limit = float(match["value"]) / (100 if match["percent"] else 1)
    if not 0 < limit < 1:
        raise UsageError(f"budget {text!r} allows a loss of {limit}; expected a fraction between 0 and 1, as top1=0.5%")
    return Budget("top1" if match["metric"] == "top1" else "rel", limit, text.strip())


def top1_loss(output: Array, truth: Array) -> float:
    """Return the share of rows whose largest score, along the last axis, is another one than in float64."""
    if truth.ndim < 2 or truth.shape[-1] < 2:
        raise InputError(
            f"budget top1 needs scores of at least 2 classes along the last axis of the first output; it has shape "
            f"{list(truth.shape)}: use a rel budget"
        )
    if output.shape != truth.shape or np.isnan(output).any():
        return float("nan")
    return float(np.mean(output.argmax(axis=-1) != truth.argmax(axis=-1)))


def relative_error(outputs: Sequence[Array], truth: Sequence[Array]) -> float:
    """Return max over outputs of ||y - y64||_2 / ||y64||_2; integer outputs count the share that differs."""
    worst = 0.0
    for found, expected in zip(outputs, truth, strict=True):
        if found.shape != expected.shape:
            return float("nan")
        if expected.dtype.kind != "f":
            error = float(np.mean(found != expected)) if expected.size else 0.0
        else:
            size = float(np.linalg.norm(expected.ravel())) or 1.0
            error = float(np.linalg.norm(found.astype(np.float64).ravel() - expected.ravel())) / size
        if np.isnan(error):
            return float("nan")
        worst = max(worst, error)
    return worst
