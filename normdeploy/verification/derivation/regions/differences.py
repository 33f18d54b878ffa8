"""How far two results are apart, each row by its own size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from normdeploy.verification.derivation.related.stored_rounding import Wrong

TOLERANCE = 1e-9
"""Largest difference in units of the largest result: float64's rounding in a statistic, far below an epsilon's part."""

_ROUNDED = 256 * 2.0**-24
"""Difference that stored constants explain which are rounded otherwise, or computed in their own precision."""


def differs(want: Tensor, have: Tensor, tolerance: float = TOLERANCE) -> Wrong | None:
    """Return how two results differ, each row of the last axes by its own size; None if they do not."""
    if want.shape != have.shape:
        return Wrong(f"its shape is {list(have.shape)}; expected {list(want.shape)}")
    if not want.numel():
        return None
    size = want.abs()
    if not math.isfinite(float(size.max()) + float(have.abs().max())):  # a sum of two finite numbers may be none
        last = torch.isinf(want) & (have == want.sign() * torch.finfo(torch.float32).max)
        if bool(last.any()):
            found = differs(want.masked_fill(last, 0.0), have.masked_fill(last, 0.0), tolerance)
            return found or Wrong("holds the last number of its type where an infinity is expected", last=True)
        if not bool(torch.isfinite(want).all() & torch.isfinite(have).all()):
            return Wrong(
                f"it is {_not_finite(have)}, the source's {_not_finite(want)}; expected both to be at the same places"
            )
    off, size = of_rows((want - have).abs(), size)
    worst = float((off / size).nan_to_num(0.0).max())
    text = f"it differs by {worst:.3g} of its size"
    return None if worst <= tolerance else Wrong(text, worst <= _ROUNDED)


def not_finite_alike(want: Tensor, have: Tensor) -> str:
    """Return a reason where two results are NaN or infinite at the same places: these say nothing. Else ""."""
    if want.shape != have.shape or bool(torch.isfinite(want).all()):
        return ""
    if not bool(((want == have) | (want.isnan() & have.isnan()) | (want.isfinite() & have.isfinite())).all()):
        return ""
    return (
        f"it is {_not_finite(have)}, as the source is; expected finite numbers, which alone can be compared: "
        "normdeploy inspect names constants that are none, and statistics that make none"
    )


def _not_finite(result: Tensor) -> str:
    """Say how many numbers of a result are none."""
    return f"NaN or infinite at {int((~torch.isfinite(result)).sum())} of {result.numel()} places"


def of_rows(off: Tensor, size: Tensor, axes: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Return the largest difference of each row of the last axes, and its size.

    Args:
        off, size: differences, and the sizes of what they are of. axes: more of them, along which rows are told apart.
    """
    axis = 1 if off.dim() > 2 else -1
    others = [i for i in range(off.dim()) if i != axis % off.dim() and i not in axes]
    most, size = (t.amax(others, keepdim=True) if others else t for t in (off, size))
    return most, torch.maximum(size, 1e-3 * size.max())
