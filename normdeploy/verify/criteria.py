r"""The float32 criterion: no fixed tolerance, eager's own rounding and a noise ensemble instead.

Per output, per input family, per block (a channel or a row slice, pooled over samples), with u the unit roundoff::

    RMS(eO) <= 4 max(RMS(eE), S) + u RMS(y64)
    max eO  <= 8 max(max eE, 3 S, max s) + 2 u max|y64|

where eO = |runtime - y64|, eE = |eager - y64|, s is the pointwise spread of float64 runs with rounding noise
(:mod:`normdeploy.verify.noise`) and S its RMS: where one element towers above the others, so does its own spread. The
evidence for the constants is in docs/verification.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64]

UNIT_ROUNDOFF: dict[str, float] = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST_NORMAL: dict[str, float] = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
}


@dataclass(frozen=True)
class Constants:
    """The criterion's constants.

    Args:
        rms: factor on the larger of eager's RMS error and the spread.
        peak: factor on the larger of eager's maximal error and ``spread`` times S.
        spread: how far above its RMS the maximum of the noise is taken to reach.
        minimum: fewest elements pooled in a block; smaller neighbours are pooled together.
        kill: how many times the bound a mutant must exceed to count as killed.
    """

    rms: float = 4.0
    peak: float = 8.0
    spread: float = 3.0
    minimum: int = 16
    kill: float = 2.0


CONSTANTS = Constants()


@dataclass(frozen=True)
class Bounds:
    """What rounding explains of one output in one family: inputs of the criterion, ready for any candidate.

    Args:
        truth: y64. eager: |eager - y64|. spread: pointwise RMS spread of the noisy float64 runs.
        roundoff: u of the output's precision. floor: absolute rounding unit where the format runs out of exponent.
        keep: False where an element is left out (a tie, or not finite on purpose).
    """

    truth: Floats
    eager: Floats
    spread: Floats
    roundoff: float
    floor: float
    keep: npt.NDArray[np.bool_]
    constants: Constants = CONSTANTS


@dataclass(frozen=True)
class Judgement:
    """Worst error over bound of one output: at most 1 passes.

    Args:
        ratio: the larger of the RMS and the maximum criterion's ratio. kind: "rms" or "max".
        block: which slice was worst, in words. worst: index of the element with the largest error.
    """

    ratio: float
    kind: str
    block: str
    worst: tuple[int, ...]


def judge(candidate: Array, bounds: Bounds) -> Judgement:
    """Hold one output against the criterion, block by block.

    Args:
        candidate: the runtime's output, same shape as ``bounds.truth``.

    Returns:
        The worst block's ratio of error to bound.
    """
    if candidate.shape != bounds.truth.shape:
        raise ValueError(f"shapes differ: {candidate.shape} and {bounds.truth.shape}; structure is checked first")
    if bounds.truth.size == 0:
        return Judgement(0.0, "rms", "empty", ())
    error = _masked(np.abs(np.asarray(candidate, np.float64) - bounds.truth), bounds.keep)
    return judge_error(error, bounds)


def judge_error(error: Floats, bounds: Bounds) -> Judgement:
    """Hold an error already taken (non-negative, same shape as the truth) against the criterion."""
    constants = bounds.constants
    truth, eager, spread = (_masked(x, bounds.keep) for x in (bounds.truth, bounds.eager, bounds.spread))
    worst = Judgement(0.0, "rms", "all", ())
    for label, view in partitions(error.shape, constants.minimum):
        e, y, ee, s = (view(x) for x in (error, truth, eager, spread))
        size = np.maximum(view(bounds.keep.astype(np.float64)).sum(axis=1), 1.0)
        s_rms = _rms(s, size)
        rms_bound = constants.rms * np.maximum(_rms(ee, size), s_rms) + bounds.roundoff * _rms(y, size) + bounds.floor
        max_bound = (
            constants.peak * np.maximum.reduce([ee.max(axis=1), constants.spread * s_rms, s.max(axis=1)])
            + 2 * bounds.roundoff * np.abs(y).max(axis=1)
            + 2 * bounds.floor
        )
        for kind, measured, bound in (("rms", _rms(e, size), rms_bound), ("max", e.max(axis=1), max_bound)):
            ratios = measured / bound
            at = int(np.argmax(ratios))
            if ratios[at] > worst.ratio:
                index = np.unravel_index(int(np.argmax(error)), error.shape)
                worst = Judgement(
                    float(ratios[at]), kind, f"{label} {at}" if label != "all" else "all", tuple(int(i) for i in index)
                )
    return worst


class _View:
    """Reshape an array to (blocks, elements) along one axis, pooling neighbours up to the minimum size."""

    def __init__(self, shape: tuple[int, ...], axis: int | None, group: int) -> None:
        self.shape, self.axis, self.group = shape, axis, group

    def __call__(self, x: Floats) -> Floats:
        if self.axis is None:
            return x.reshape(1, -1)
        rows = np.moveaxis(x, self.axis, 0).reshape(self.shape[self.axis], -1)
        blocks = -(-rows.shape[0] // self.group)
        if blocks * self.group != rows.shape[0]:
            # The last group is filled with its own last row, which changes neither its RMS nor its maximum much
            rows = np.concatenate([rows, np.repeat(rows[-1:], blocks * self.group - rows.shape[0], axis=0)])
        return rows.reshape(blocks, -1)


def partitions(shape: tuple[int, ...], minimum: int) -> Iterator[tuple[str, _View]]:
    """Yield (name, reshaper) for the whole output, its channels (axis 1) and its last axis."""
    yield "all", _View(shape, None, 1)
    axes = {1: "channel"} if len(shape) >= 2 else {}
    if len(shape) >= 3:
        axes[len(shape) - 1] = "last-axis slice"
    for axis, label in axes.items():
        others = int(np.prod(shape)) // max(shape[axis], 1)
        group = max(1, -(-minimum // max(others, 1)))
        if shape[axis] > group:
            yield label, _View(shape, axis, group)


def rms(x: Floats) -> float:
    """Return the root mean square of ``x``; 0 for an empty array."""
    return float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0


def _rms(x: Floats, size: Floats) -> Floats:
    # Scaled by the maximum so that squares of subnormals do not vanish
    scale = np.abs(x).max(axis=1)
    safe = np.where(scale > 0, scale, 1.0)
    return np.asarray(scale * np.sqrt(np.square(x / safe[:, None]).sum(axis=1) / size))


def _masked(x: Floats, keep: npt.NDArray[np.bool_]) -> Floats:
    return x if keep.all() else np.where(keep, x, 0.0)
