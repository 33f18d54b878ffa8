"""Root-mean-square normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from normdeploy.errors import UsageError
from normdeploy.nn.convention import EpsOn, at_least_float32, check_convention
from normdeploy.nn.layernorm import check_axes, normalized_axes


class RMSNorm(nn.Module):
    """Divide each sample by its root mean square: y = g x / sqrt(mean(x^2) + e); no mean is subtracted.

    Args:
        normalized_shape: sizes of the axes that are averaged over.
        eps: epsilon e.
        elementwise_affine: whether there is a scale g of that shape.
        unit_offset: the scale is 1 + g with g starting at 0, as some language models have it, instead of g starting at
            1.
        eps_on: ``"variance"``: under the root; ``"deviation"``: added to the root.
        dims: axes that are averaged over, as many as ``normalized_shape`` has; None: the last ones.

    Shape:
        input (*, normalized_shape) or as ``dims`` says, output the same.

    Raises:
        UsageError: an argument does not fit.
        InputError: the input's shape does not fit.

    Source:
        B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, 2019, equation 4.
    """

    weight: Tensor | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        *,
        unit_offset: bool = False,
        eps_on: EpsOn = "variance",
        dims: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_convention(0, eps, eps_on)
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.dims = None if dims is None else tuple(dims)
        if self.dims is not None and len(self.dims) != len(self.normalized_shape):
            raise UsageError(f"dims={dims} for normalized_shape={normalized_shape}; expected one axis for each size")
        self.eps, self.eps_on, self.unit_offset = eps, eps_on, unit_offset
        start = torch.full(self.normalized_shape, 0.0 if unit_offset else 1.0, device=device, dtype=dtype)
        self.register_parameter("weight", nn.Parameter(start) if elementwise_affine else None)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x``."""
        axes = normalized_axes(x.ndim, len(self.normalized_shape), self.dims)
        check_axes(self, x, self.normalized_shape, axes)
        last = tuple(range(x.ndim - len(axes), x.ndim))
        moved = x if axes == last else x.movedim(axes, last)
        scale = self.weight
        if scale is not None and self.unit_offset:
            scale = 1 + scale
        if self.eps_on == "variance":
            result = functional.rms_norm(moved, self.normalized_shape, scale, self.eps)
        else:
            wide = at_least_float32(moved)
            # vector_norm has the gradient 0 at 0; the root of a mean of squares would give NaN there
            root = torch.linalg.vector_norm(wide, dim=last, keepdim=True) / math.sqrt(math.prod(self.normalized_shape))
            result = wide / (root + self.eps)
            result = (result if scale is None else result * scale).to(x.dtype)
        return result if axes == last else result.movedim(last, axes)

    def extra_repr(self) -> str:
        """Describe the convention."""
        text = f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.weight is not None}"
        text += f", unit_offset={self.unit_offset}, eps_on={self.eps_on!r}"
        return text + ("" if self.dims is None else f", dims={self.dims}")
