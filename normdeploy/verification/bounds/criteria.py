r"""The float32 criterion: no fixed tolerance, eager's own rounding and a noise ensemble instead.

Per output, per input family, per block (a channel or a slice of the last axis, pooled over samples, with others of like
size where it has few elements), with u the unit roundoff::

    RMS(eO) <= 4 max(RMS(eE), S) + u RMS(y64)
    max eO  <= 8 max(max eE, 3 S, max s) + 2 u max|y64|

where eO = |runtime - y64|, eE = |eager - y64|, s is the pointwise spread of float64 runs with rounding noise
(:mod:`normdeploy.verification.bounds.noise`) and S its RMS: where one element towers above the others, so does its own
spread. The evidence for the constants is in docs/verification.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from normdeploy.array_types import Array, Floats
from normdeploy.verification.sides.exact_agreement import is_float


@dataclass(frozen=True)
class Constants:
    """The criterion's constants.

    Args:
        rms: factor on the larger of eager's RMS error and the spread.
        peak: factor on the larger of eager's maximal error and ``spread`` times S.
        spread: how far above its RMS the maximum of the noise is taken to reach.
        minimum: fewest elements of a block; smaller ones of like size are pooled, and judged by their maximum alone
            where even so they are fewer.
        kill: how many times the bound a mutant must exceed to count as killed.
    """

    rms: float = 4.0
    peak: float = 8.0
    spread: float = 3.0
    minimum: int = 16
    kill: float = 2.0


CONSTANTS = Constants()

_ALIKE, _LEAST = 4, 250
"""Powers of two within which channels are pooled; what is smaller than this many such steps counts as zero."""

_TOGETHER = 1 << 16
"""Elements up to which an error and its bounds are cut into blocks together: NumPy's time is that of its calls there.
Of more a copy is memory."""


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
    whole = bool(bounds.keep.all())
    given = (bounds.truth, bounds.eager, bounds.spread)
    truth, eager, spread = given if whole else (np.where(bounds.keep, x, 0.0) for x in given)
    worst = Judgement(0.0, "rms", "all", ())
    four = (error, truth, eager, spread)
    together = [np.stack(four)] if truth.size <= _TOGETHER else [x[None] for x in four]
    for part in partitions(truth, constants.minimum):
        parts = zip(*(_blocks(part, x) for x in together), strict=True)
        norms, (e_peak, y_peak, ee_peak, s_peak) = map(np.concatenate, parts)
        size = part.sizes if whole else part.totals(part.rows(bounds.keep).sum(axis=1))
        e_rms, y_rms, ee_rms, s_rms = norms / np.sqrt(np.maximum(size, 1.0))
        rms_bound = constants.rms * np.maximum(ee_rms, s_rms) + bounds.roundoff * y_rms + bounds.floor
        max_bound = constants.peak * np.maximum(np.maximum(ee_peak, constants.spread * s_rms), s_peak)
        max_bound += 2 * bounds.roundoff * y_peak + 2 * bounds.floor
        # Few elements average nothing: an RMS of theirs is a maximum held against the narrower bound
        enough = np.logical_or(part.sizes >= constants.minimum, part.axis is None)
        with np.errstate(over="ignore"):  # beyond the smallest bounds there are is beyond all bounds
            found = {"rms": np.where(enough, e_rms, 0.0) / rms_bound, "max": e_peak / max_bound}
        for kind, ratios in found.items():
            at = int(np.argmax(ratios))
            if ratios[at] > worst.ratio:
                index = np.unravel_index(int(np.argmax(error)), error.shape)
                place = tuple(int(i) for i in index)
                worst = Judgement(float(ratios[at]), kind, part.name(at), place)
    return worst


@dataclass(frozen=True)
class Partition:
    """An output cut into blocks: along an axis, channels of like size pooled where one alone has few elements.

    Args:
        label: what a channel is called. axis: which is cut; None for one block. order: of the channels, block by block.
        starts: where in it each block begins. sizes: elements per block.
    """

    label: str
    axis: int | None
    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]
    sizes: npt.NDArray[np.intp]

    def rows(self, x: Array, *, ahead: int = 0) -> Array:
        """Return an array of the output's shape as (channels in order, elements); axes ahead of it stay."""
        if self.axis is None:
            return x.reshape(*x.shape[:ahead], 1, -1)
        first = x.swapaxes(ahead, ahead + self.axis)
        rows = first.reshape(*first.shape[: ahead + 1], -1)
        return rows if self.order.size == self.starts.size else rows[..., self.order, :]

    def totals(self, channels: Floats) -> Floats:
        """Add up one number per channel (in order) to one per block."""
        return np.asarray(np.add.reduceat(channels, self.starts))

    def members(self, block: int) -> list[int]:
        """Return the channels of a block."""
        ends = [*self.starts[1:].tolist(), self.order.size]
        return sorted(int(i) for i in self.order[self.starts[block] : ends[block]])

    def name(self, block: int) -> str:
        """Return a block in words."""
        if self.axis is None:
            return self.label
        members = self.members(block)
        shown = ", ".join(map(str, members[:4])) + (", ..." if len(members) > 4 else "")
        return f"{self.label} {shown}"


def _blocks(part: Partition, arrays: Floats) -> tuple[Floats, Floats]:
    """Return Euclidean norm and maximum of each block of a few arrays of the output's shape: (arrays, blocks) each."""
    rows = part.rows(arrays, ahead=1)
    top = np.abs(rows).max(axis=2)
    rows = rows / np.where(top > 0, top, 1.0)[..., None]  # so that squares of subnormals do not vanish
    norms = top * np.sqrt(np.square(rows, out=rows).sum(axis=2))
    return np.hypot.reduceat(norms, part.starts, axis=1), np.maximum.reduceat(top, part.starts, axis=1)


def partitions(truth: Floats, minimum: int) -> Iterator[Partition]:
    """Yield the partitions of an output: as a whole, by its channels (axis 1) and by its last axis.

    A channel of fewer than ``minimum`` elements is pooled with others whose values are as large within a factor of 16:
    a score beside pixel coordinates has its own rounding.
    """
    shape, one = truth.shape, np.zeros(1, np.intp)
    yield Partition("all", None, one, one, np.asarray([truth.size]))
    axes = {1: "channel"} if len(shape) >= 2 else {}
    if len(shape) != 2:
        axes |= {len(shape) - 1: "last-axis slice"} if shape else {}
    for axis, label in axes.items():
        count, others = shape[axis], truth.size // max(shape[axis], 1)
        if count > 1:
            yield _partition(truth, axis, label, group=max(1, -(-minimum // max(others, 1))))


def _partition(truth: Floats, axis: int, label: str, *, group: int) -> Partition:
    count, others = truth.shape[axis], truth.size // truth.shape[axis]
    order = np.arange(count)
    if group == 1:
        return Partition(label, axis, order, order, np.full(count, others))
    top = np.abs(np.moveaxis(truth, axis, 0).reshape(count, -1)).max(axis=1)
    with np.errstate(divide="ignore"):
        size = np.minimum(np.floor(np.log2(top.max() / np.where(top > 0, top, 1.0)) / _ALIKE), _LEAST)
    size = np.where(top > 0, size, _LEAST)
    order = np.argsort(size, kind="stable")
    first = np.searchsorted(size[order], size[order])  # where each one's class begins
    place = np.arange(count) - first
    members = np.searchsorted(size[order], size[order], side="right") - first
    # What is left of a class after full groups joins the last full one
    begins = (place % group == 0) & ((place == 0) | (members - place >= group))
    starts = np.flatnonzero(begins)
    sizes = np.diff([*starts, count]) * others
    return Partition(label, axis, order, starts, sizes)


def rms(x: Floats) -> float:
    """Return the root mean square of ``x``; 0 for an empty array."""
    if not x.size:
        return 0.0
    with np.errstate(over="ignore"):
        found = float(np.sqrt(np.mean(np.square(x))))
    if np.isfinite(found) or not np.isfinite(x).all():
        return found
    top = np.abs(x).max()  # numbers whose squares leave float64's range
    return float(top * np.sqrt(np.mean(np.square(x / top))))


def relative_rms(right: Array, found: Array) -> float:
    """Return RMS(found - right) / RMS(right) over what is finite on both sides.

    It is the RMS of the difference itself where RMS(right) is 0, and infinite where the shapes differ.
    """
    if right.shape != found.shape:
        return float("inf")
    keep = np.isfinite(right) & np.isfinite(found)
    return rms(found[keep] - right[keep]) / (rms(right[keep]) or 1.0)


def outputs_apart(right: Sequence[Array], found: Sequence[Array]) -> float:
    """Return the largest :func:`relative_rms` of the outputs that are floats."""
    pairs = ((x, y) for x, y in zip(right, found, strict=True) if is_float(y))
    return max((relative_rms(x.astype(np.float64), y.astype(np.float64)) for x, y in pairs), default=0.0)


def finite_alike(one: Array, other: Array) -> bool:
    """Tell whether two arrays have one shape and are finite at the same places."""
    return one.shape == other.shape and np.array_equal(np.isfinite(one), np.isfinite(other))


def _masked(x: Floats, keep: npt.NDArray[np.bool_]) -> Floats:
    return x if keep.all() else np.where(keep, x, 0.0)
