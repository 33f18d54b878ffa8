"""What a conversion may cost: nothing beyond float32 rounding, or a loss the user states."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from normdeploy.array_types import Array
from normdeploy.errors import InputError, UsageError
from normdeploy.intervals import Interval, error_parts, largest_error, resampled, share, share_difference

Metric = Literal["exact", "top1", "rel"]
_FORM = re.compile(r"(?P<metric>top1|rel)\s*=\s*(?P<value>[0-9.]+(e[-+]?[0-9]+)?)\s*(?P<percent>%?)")


@dataclass(frozen=True)
class Budget:
    """A limit on what may be lost.

    Args:
        metric: "exact": only what the float32 criterion of the verifier allows; "top1": the share of rows whose most
            likely class changes; "rel": the relative error ||y - y64|| / ||y64|| over all rows. Both of the worst
            output.
        limit: the largest loss, as a fraction; 0 for "exact".
        text: as the user wrote it.
    """

    metric: Metric
    limit: float
    text: str

    def __str__(self) -> str:
        return self.text

    def loss(self, outputs: Sequence[Array], truth: Sequence[Array]) -> float:
        """Return the loss of ``outputs`` against the float64 ``truth``, both over all rows; NaN never passes.

        Raises:
            InputError: "top1" on a model of which no output holds class scores.
        """
        return top1_loss(outputs, truth) if self.metric == "top1" else relative_error(outputs, truth)

    def in_words(self, loss: float) -> str:
        """Return a loss with its unit."""
        return f"{100 * loss:.3g} % of rows" if self.metric == "top1" else f"{loss:.3g} relative"

    def interval(self, outputs: Sequence[Array], truth: Sequence[Array]) -> Interval:
        """Return the loss with the interval in which that of other rows is; rows lie along the first axis."""
        if self.metric == "top1":
            changed = max(_changed(outputs, truth), key=np.mean)
            return share(int(changed.sum()), changed.size)
        return resampled(largest_error, error_parts(outputs, truth))

    def gain(self, before: Sequence[Array], after: Sequence[Array], truth: Sequence[Array]) -> Interval:
        """Return the loss of ``after`` less that of ``before``, on the same rows, with its interval."""
        if self.metric == "top1":  # of the output that counts before
            pairs = zip(_changed(before, truth), _changed(after, truth), strict=True)
            then, now = max(pairs, key=lambda pair: float(np.mean(pair[0])))
            return share_difference(now, then)
        first, second = error_parts(after, truth), error_parts(before, truth)
        half = first.shape[1]
        parts = np.concatenate([first, second], axis=1)
        return resampled(lambda sums: largest_error(sums[..., :half]) - largest_error(sums[..., half:]), parts)


def _changed(outputs: Sequence[Array], truth: Sequence[Array]) -> list[npt.NDArray[np.bool_]]:
    """Return of every output with scores, for each row (and place), whether its class is another one."""
    return [
        np.asarray(found.argmax(axis=-1) != expected.argmax(axis=-1)).reshape(-1)
        for found, expected in _scores(outputs, truth)
    ]


def _scores(outputs: Sequence[Array], truth: Sequence[Array]) -> list[tuple[Array, Array]]:
    """Return the outputs that hold scores: floats, a last axis of two or more."""
    pairs = zip(outputs, truth, strict=True)
    return [(y, t) for y, t in pairs if t.dtype.kind == "f" and t.ndim >= 2 and t.shape[-1] >= 2]


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


def top1_loss(outputs: Sequence[Array], truth: Sequence[Array]) -> float:
    """Return the share of rows whose largest score, along the last axis, is another one than in float64.

    Of several outputs with scores the worst counts; what holds none (no floats, no last axis of two or more) is left
    out.
    """
    scores = _scores(outputs, truth)
    if not scores:
        shapes = ", ".join(str(list(expected.shape)) for expected in truth)
        raise InputError(
            f"budget top1 needs scores of at least 2 classes along an output's last axis; the outputs have the shapes "
            f"{shapes}: use a rel budget"
        )
    losses = [0.0]
    for found, expected in scores:
        if found.shape != expected.shape or np.isnan(found).any() or np.isnan(expected).any():
            return float("nan")
        if expected.size:
            losses.append(float(np.mean(found.argmax(axis=-1) != expected.argmax(axis=-1))))
    return max(losses)


def relative_error(outputs: Sequence[Array], truth: Sequence[Array]) -> float:
    """Return max over outputs of ||y - y64||_2 / ||y64||_2; integer outputs count the share that differs.

    Infinities are no error where both have the same; NaN always is.
    """
    worst = 0.0
    for found, expected in zip(outputs, truth, strict=True):
        if found.shape != expected.shape:
            return float("nan")
        if expected.dtype.kind != "f":
            error = float(np.mean(found != expected)) if expected.size else 0.0
        else:
            y, y64 = found.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
            finite = np.isfinite(y64)
            if not (np.array_equal(y[~finite], y64[~finite]) and np.isfinite(y[finite]).all()):
                return float("nan")
            size = float(np.linalg.norm(y64[finite])) or 1.0
            error = float(np.linalg.norm(y[finite] - y64[finite])) / size
        if np.isnan(error):
            return float("nan")
        worst = max(worst, error)
    return worst
