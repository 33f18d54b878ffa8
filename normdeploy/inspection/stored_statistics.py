"""Checks of stored statistics: never updated, impossible, dead, amplifying; epsilons that vanish.

Each check takes one ``StoredNorm`` and yields findings; nothing else is needed than its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.inspection.findings import Finding
from normdeploy.inspection.site import StoredNorm

# unit roundoff of what a norm computes in
UNIT: dict[ir.DataType, float] = {
    ir.DataType.DOUBLE: 2.0**-53,
    ir.DataType.FLOAT: 2.0**-24,
    ir.DataType.FLOAT16: 2.0**-11,
    ir.DataType.BFLOAT16: 2.0**-8,
}
# what rounds to zero in each format: half of its smallest positive number
VANISHES: dict[ir.DataType, float] = {
    ir.DataType.DOUBLE: 0.0,
    ir.DataType.FLOAT: 2.0**-150,
    ir.DataType.FLOAT16: 2.0**-25,
    ir.DataType.BFLOAT16: 2.0**-134,
}
# rounding of x reaches the output u |m| / sqrt(v + e) times as large, in units of the output's spread
AMPLIFIED = 1e-4
# a product larger than this turns rounding of a small x into visible error whatever the mean is
LARGE_FACTOR = 1e4


def check_statistics(site: StoredNorm) -> Iterator[Finding]:
    """Yield what is wrong or risky in one normalization's numbers."""
    impossible = [*_impossible_variance(site), *_impossible_numbers(site)]
    yield from impossible
    yield from _never_updated(site)
    yield from check_epsilon(site.where, site.epsilon, site.dtype)
    yield from _outside_root(site)
    yield from _dead_channels(site)
    if not impossible:
        yield from _constant_channels(site)
        yield from _amplified(site)


def _impossible_variance(site: StoredNorm) -> Iterator[Finding]:
    variance = site.variance.reshape(-1)
    broken = ~np.isfinite(variance)
    if broken.any():
        yield Finding(
            "error",
            "variance",
            site.where,
            f"the stored variance is NaN or infinite in {_channels(broken)}: these channels are NaN or a constant in "
            "every deployed output",
            "training diverged, or the weights are damaged: take an earlier checkpoint, or re-estimate the statistics",
            detail={"channels": _indices(broken)},
        )
    negative = variance < 0
    if negative.any():
        lowest = float(variance[negative].min())
        effect = (
            "NaN in every deployed output"
            if lowest + site.epsilon <= 0 or site.outside
            else "the root is of less than epsilon"
        )
        yield Finding(
            "error",
            "variance",
            site.where,
            f"the stored variance is negative in {_channels(negative)} (down to {lowest:.3g}; epsilon "
            f"{site.epsilon:g}): {effect}",
            "E[x^2] - E[x]^2 loses its digits where the mean is large, or a conversion went wrong: re-estimate the "
            "statistics in two passes",
            detail={"channels": _indices(negative), "lowest": lowest},
        )
    vanishing = (variance == 0) & (site.epsilon <= VANISHES.get(site.dtype, 0.0))
    if vanishing.any():
        yield Finding(
            "error",
            "variance",
            site.where,
            f"the stored variance is zero in {_channels(vanishing)} and epsilon {site.epsilon:g} is zero in "
            f"{site.dtype.name.lower()}: these channels are NaN or infinite in every deployed output",
            "use an epsilon that the format holds (1e-5 in float32, 1e-3 in float16)",
            detail={"channels": _indices(vanishing)},
        )


def _impossible_numbers(site: StoredNorm) -> Iterator[Finding]:
    """What is no finite number in mean, scale or shift."""
    for word, values in (("mean", site.mean), ("scale", site.scale), ("shift", site.shift)):
        if values is None:
            continue
        broken = ~np.isfinite(values.reshape(-1))
        if broken.any():
            yield Finding(
                "error",
                "not-finite",
                site.where,
                f"its {word} is NaN or infinite in {_channels(broken)}: these channels are NaN or infinite in every "
                "deployed output",
                "training diverged, or the weights are damaged: take an earlier checkpoint",
                detail={"channels": _indices(broken)},
            )


def _never_updated(site: StoredNorm) -> Iterator[Finding]:
    if site.variance.size < 2 or not np.all(site.variance == 1) or site.mean is None or np.any(site.mean != 0):
        return
    yield Finding(
        "warning",
        "never-updated",
        site.where,
        "its running statistics are still mean 0 and variance 1: it normalizes nothing, deployed outputs are those of "
        "a network without it",
        "run training-mode batches through it (or estimate population statistics) before exporting; check that the "
        "weights file holds running_mean and running_var",
    )


def check_epsilon(where: str, epsilon: float, dtype: ir.DataType) -> Iterator[Finding]:
    """Yield whether an epsilon is none, vanishes in what the norm computes in, or would in float16."""
    if not np.isfinite(epsilon) or epsilon < 0:
        effect = (
            "what is normalized becomes a constant"
            if epsilon == np.inf
            else "deployed outputs are NaN"
            if not np.isfinite(epsilon)
            else "deployed outputs are NaN where a variance is smaller than that"
        )
        yield Finding(
            "error",
            "epsilon",
            where,
            f"its epsilon is {epsilon:g}: {effect}",
            "use a small positive epsilon (1e-5), the one that the network was trained with",
            detail={"epsilon": float(np.nan_to_num(epsilon, posinf=1e300, neginf=-1e300))},
        )
        return
    if epsilon == 0:
        return
    if epsilon <= VANISHES.get(dtype, 0.0):
        yield Finding(
            "warning",
            "epsilon-underflow",
            where,
            f"its epsilon {epsilon:g} is zero in {dtype.name.lower()} (smallest number {2 * VANISHES[dtype]:.2g}): "
            "constant inputs give NaN or infinity in deployed outputs",
            "use a larger epsilon, or compute this normalization in float32",
            detail={"epsilon": epsilon},
        )
    elif dtype == ir.DataType.FLOAT and epsilon <= VANISHES[ir.DataType.FLOAT16]:
        yield Finding(
            "note",
            "epsilon-underflow",
            where,
            f"its epsilon {epsilon:g} would be zero in float16 (smallest number 6e-08); in float32 it works",
            "keep normalizations in float32 when converting to float16",
            detail={"epsilon": epsilon},
        )


def _outside_root(site: StoredNorm) -> Iterator[Finding]:
    if not site.outside or site.epsilon <= 0:
        return
    variance = site.variance.reshape(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(1.0 / np.sqrt(variance + site.epsilon) / site.factor - 1)
    largest = float(np.nan_to_num(apart, nan=0.0, posinf=0.0).max(initial=0.0))
    yield Finding(
        "note",
        "outside-root",
        site.where,
        f"it adds epsilon {site.epsilon:.3g} to the standard deviation, torch.nn.BatchNorm adds it to the variance: "
        f"with these statistics outputs would differ by up to {largest:.1g} of their size",
        "nothing for deployment, it is folded exactly; do not exchange it for torch.nn.BatchNorm with the same weights",
        detail={"epsilon": site.epsilon, "largest": largest},
    )


def _dead_channels(site: StoredNorm) -> Iterator[Finding]:
    if site.scale is None or site.scale.size < 2:
        return
    dead = site.scale.reshape(-1) == 0
    if not dead.any():
        return
    every = bool(dead.all())
    yield Finding(
        "note",
        "dead-channels",
        site.where,
        f"scale is zero in {_channels(dead)}: {'its output is' if every else 'there the output is'} the shift, "
        "whatever the input",
        "if it was trained so, prune what computes these channels; if not (zero-initialized residual branches), train",
        detail={"channels": _indices(dead)},
    )


def _constant_channels(site: StoredNorm) -> Iterator[Finding]:
    variance = site.variance.reshape(-1)
    constant = variance == 0
    if constant.any():
        largest = float(np.max(site.factor[constant]))
        yield Finding(
            "warning",
            "variance",
            site.where,
            f"the stored variance is zero in {_channels(constant)}: the channel was constant in training, and "
            f"deployment multiplies any deviation from that by {largest:.3g}",
            "check what computes these channels (a dead ReLU, an unused input); prune them",
            detail={"channels": _indices(constant), "factor": largest},
        )


def _amplified(site: StoredNorm) -> Iterator[Finding]:
    factor = site.factor
    unit = UNIT.get(site.dtype, 2.0**-24)
    slope = np.abs(site.slope) if site.slope is not None else factor
    mean = np.abs(_flat_like(site.mean, factor))
    # relative to the output's spread (the scale), what rounding x to the format does
    lost = unit * mean * factor
    risky = (lost > AMPLIFIED) | (slope > LARGE_FACTOR)
    risky &= site.variance.reshape(-1) != 0  # told above
    if not risky.any():
        return
    worst = int(np.argmax(np.where(risky, lost + slope / LARGE_FACTOR * AMPLIFIED, -1)))
    yield Finding(
        "warning",
        "amplified-rounding",
        site.where,
        f"in {_channels(risky)} 1/sqrt(v + e) amplifies rounding: worst channel {worst} has mean {mean[worst]:.3g}, "
        f"variance {site.variance.reshape(-1)[worst]:.3g} and multiplies by {slope[worst]:.3g}; rounding of its input "
        f"in {site.dtype.name.lower()} moves the output by about {lost[worst]:.1g} of its spread",
        "subtract the mean in front (centre the input), or check the channel: its variation is far below its offset",
        detail={"channels": _indices(risky), "lost": float(lost[worst]), "slope": float(slope[worst])},
    )


def _flat_like(values: Floats | None, like: Floats) -> Floats:
    if values is None or values.size not in (1, like.size):
        return np.zeros_like(like)
    return np.broadcast_to(values.reshape(-1), like.shape).astype(np.float64)


def _indices(mask: npt.NDArray[np.bool_]) -> list[int]:
    return [int(index) for index in np.flatnonzero(mask)]


def _channels(mask: npt.NDArray[np.bool_]) -> str:
    indices = _indices(mask)
    if len(indices) == mask.size:
        return f"all {mask.size} channels"
    named = ", ".join(str(index) for index in indices[:5]) + (", ..." if len(indices) > 5 else "")
    return f"{len(indices)} of {mask.size} channels ({named})"
