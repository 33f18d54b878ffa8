"""What distinguishes one normalization from another of the same kind: correction and the place of epsilon.

With n values, mean m and biased variance v (correction 0), the variance of correction c is ``r v`` with ``r = n / (n -
c)``, and

* epsilon on the variance:  ``y = (x - m) / sqrt(r v + e)``
* epsilon on the deviation: ``y = (x - m) / (sqrt(r v) + e)``

For epsilon on the variance the correction is a change of units: ``(x - m) / sqrt(r v + e) = (1 / sqrt r) (x - m) /
sqrt(v + e / r)``, so a kernel for correction 0 computes every correction with scale ``g / sqrt r`` and epsilon ``e /
r``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from normdeploy.errors import UsageError

EpsOn = Literal["variance", "deviation"]


def check_convention(correction: float, eps: float, eps_on: str) -> None:
    """Check the arguments that all normalizations share.

    Raises:
        UsageError: a negative correction or epsilon, or another word for ``eps_on``.
    """
    if correction < 0:
        raise UsageError(f"correction={correction}; expected 0 (biased), 1 (unbiased) or another number from 0 on")
    if not (eps >= 0 and math.isfinite(eps)):
        raise UsageError(f"eps={eps}; expected a finite number from 0 on")
    if eps_on not in ("variance", "deviation"):
        raise UsageError(f"eps_on={eps_on!r}; expected 'variance' (under the root) or 'deviation' (added to the root)")


def placed_as(*tensors: Tensor | None) -> dict[str, Any]:
    """Return device and dtype of the first tensor that is there, as a module's constructor takes them."""
    like = next((tensor for tensor in tensors if tensor is not None), None)
    return {} if like is None else {"device": like.device, "dtype": like.dtype}


def ratio(count: float, correction: float) -> float:
    """Return ``r = n / (n - c)``, by which a biased variance is multiplied to have correction c.

    Raises:
        UsageError: there are not more values than the correction takes off.
    """
    if count <= correction:
        raise UsageError(
            f"{count} values per statistic with correction {correction}; expected more values than that: use a "
            "larger batch or correction=0"
        )
    return count / (count - correction)


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x`` in a dtype whose sums are safe: half precisions are promoted to float32, the others stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def standardize(
    x: Tensor, dims: Sequence[int], *, correction: float, eps: float, eps_on: EpsOn
) -> tuple[Tensor, Tensor, Tensor]:
    """Subtract the mean and divide by the deviation, written out; for conventions torch has no kernel for.

    Args:
        x: any shape, floating point.
        dims: axes that are averaged over.
        correction: c above.
        eps: e above.
        eps_on: where it is added.

    Returns:
        tuple: the result (dtype of x), mean and variance of that correction (both with the axes kept as 1, without
            gradient).

    Raises:
        UsageError: there are not more values than the correction takes off.
    """
    wide = at_least_float32(x)
    axes = list(dims)
    if torch.compiler.is_compiling():  # a symbolic count would be fixed to its value by a comparison
        return _traced(x, wide, axes, correction, eps, eps_on)
    count = math.prod(x.shape[d] for d in axes)
    ratio(count, correction)
    mean = wide.mean(axes, keepdim=True)
    centred = wide - mean
    # from the centred values: torch.var and torch.std take three to ten times as long on a CPU, to the same rounding
    deviation = _length(centred, axes) / math.sqrt(count - correction)
    variance = deviation.detach().square()
    inverse = (deviation + eps).reciprocal() if eps_on == "deviation" else (deviation.square() + eps).rsqrt()
    kept = torch.is_grad_enabled() and (centred.requires_grad or inverse.requires_grad)
    result = centred * inverse if kept else centred.mul_(inverse)
    return result.to(x.dtype), mean.detach(), variance


def _length(centred: Tensor, axes: list[int]) -> Tensor:
    """Return the root of the sum of squares over ``axes``, kept as 1, whose gradient at 0 is 0."""
    trailing = sorted(d % centred.ndim for d in axes) == list(range(centred.ndim - len(axes), centred.ndim))
    if trailing:  # one pass; over other axes torch's kernel is the slow one
        length: Tensor = torch.linalg.vector_norm(centred, dim=axes, keepdim=True)  # torch leaves it untyped
        return length
    squares = centred.square().sum(axes, keepdim=True)
    some = squares > 0
    return torch.where(some, torch.where(some, squares, 1).sqrt(), 0)


def _traced(
    x: Tensor, wide: Tensor, axes: list[int], correction: float, eps: float, eps_on: EpsOn
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the same in few operators, for graphs: a compiler fuses them, and recognition knows them."""
    mean = wide.mean(axes, keepdim=True)
    if eps_on == "deviation":
        # torch.std has the gradient 0 where the deviation is 0; sqrt(var) would give NaN there
        deviation = wide.std(axes, correction=correction, keepdim=True)
        variance = deviation.square()
        result = (wide - mean) / (deviation + eps)
    else:
        variance = wide.var(axes, correction=correction, keepdim=True)
        result = (wide - mean) * torch.rsqrt(variance + eps)
    return result.to(x.dtype), mean.detach(), variance.detach()
