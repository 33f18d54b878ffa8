"""Layer normalization in every convention people train with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from normdeploy.errors import InputError, ModelError, UsageError
from normdeploy.nn.convention import EpsOn, check_convention, placed_as, ratio, standardize


def normalized_axes(ndim: int, count: int, dims: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the axes a normalization works on, from 0: the last ``count``, or those that ``dims`` names."""
    return tuple(range(ndim - count, ndim)) if dims is None else tuple(d % ndim for d in dims)


def check_axes(module: nn.Module, x: Tensor, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Check that the axes of ``x`` that are normalized have the sizes the module was built for.

    Raises:
        InputError: they have not.
    """
    got = tuple(x.shape[d] for d in axes) if x.ndim >= len(shape) else ()
    if got != shape:
        raise InputError(
            f"{type(module).__name__} got shape {tuple(x.shape)} with sizes {got} on the axes {axes} it normalizes; "
            f"expected {shape}: "
            "the sizes differ, or dims names other axes than meant"
        )


class LayerNorm(nn.Module):
    """Normalize each sample over chosen axes: y = g (x - m) / sqrt(v + e) + b, the same in training and evaluation.

    Args:
        normalized_shape: sizes of the axes that are averaged over.
        eps: epsilon e.
        elementwise_affine: whether there is a scale g of that shape.
        bias: whether there is a shift b too.
        correction: of the variance: 0 biased, 1 unbiased.
        eps_on: ``"variance"``: sqrt(v + e); ``"deviation"``: sqrt(v) + e.
        dims: axes that are averaged over, as many as ``normalized_shape`` has; None: the last ones. ``dims=(1,)``
            normalizes the channels of (N, C, H, W).

    Shape:
        input (*, normalized_shape) or as ``dims`` says, output the same.

    Raises:
        UsageError: an argument does not fit.
        InputError: the input's shape does not fit.

    With ``correction=0, eps_on="variance", dims=None`` it is torch's LayerNorm and has its state: see
    :meth:`from_torch`.

    Source:
        J. L. Ba, J. R. Kiros, G. E. Hinton, Layer Normalization, 2016, equation 3.
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        correction: float = 0,
        eps_on: EpsOn = "variance",
        dims: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_convention(correction, eps, eps_on)
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.dims = None if dims is None else tuple(dims)
        if self.dims is not None and len(self.dims) != len(self.normalized_shape):
            raise UsageError(f"dims={dims} for normalized_shape={normalized_shape}; expected one axis for each size")
        self.eps, self.correction, self.eps_on = eps, correction, eps_on
        self.elementwise_affine = elementwise_affine
        self._ratio = ratio(math.prod(self.normalized_shape), correction)
        weight = torch.ones(self.normalized_shape, device=device, dtype=dtype) if elementwise_affine else None
        shift = torch.zeros(self.normalized_shape, device=device, dtype=dtype) if elementwise_affine and bias else None
        self.register_parameter("weight", None if weight is None else nn.Parameter(weight))
        self.register_parameter("bias", None if shift is None else nn.Parameter(shift))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x``."""
        axes = normalized_axes(x.ndim, len(self.normalized_shape), self.dims)
        check_axes(self, x, self.normalized_shape, axes)
        last = tuple(range(x.ndim - len(axes), x.ndim))
        moved = x if axes == last else x.movedim(axes, last)
        if self.eps_on == "variance":
            result = functional.layer_norm(
                moved, self.normalized_shape, self._scale(moved), self.bias, self.eps / self._ratio
            )
        else:
            result, _, _ = standardize(moved, last, correction=self.correction, eps=self.eps, eps_on=self.eps_on)
            result = result if self.weight is None else result * self.weight
            result = result if self.bias is None else result + self.bias
            result = result.to(x.dtype)
        return result if axes == last else result.movedim(last, axes)

    def _scale(self, x: Tensor) -> Tensor | None:
        """Return the scale in the units of correction 0, which is what torch's kernel knows."""
        if self._ratio == 1:
            return self.weight
        if self.weight is None:
            return x.new_full(self.normalized_shape, 1 / math.sqrt(self._ratio))
        return self.weight / math.sqrt(self._ratio)

    def coincides_with_torch(self) -> bool:
        """Tell whether torch's LayerNorm computes the same."""
        return self.correction == 0 and self.eps_on == "variance" and self.dims is None

    @classmethod
    def from_torch(cls, module: nn.LayerNorm) -> LayerNorm:
        """Return a LayerNorm with the configuration and a copy of the state of a stock module."""
        ours = cls(
            module.normalized_shape,
            module.eps,
            module.elementwise_affine,
            module.bias is not None,
            **placed_as(module.weight),
        )
        ours.load_state_dict(module.state_dict())
        return ours.train(module.training)

    def to_torch(self) -> nn.LayerNorm:
        """Return a stock module with the same configuration and a copy of the state.

        Raises:
            ModelError: torch's convention is another one.
        """
        if not self.coincides_with_torch():
            raise ModelError(
                f"{self} has no equal in torch, whose LayerNorm has correction=0, eps_on='variance' and the last axes: "
                "keep this module"
            )
        stock = nn.LayerNorm(
            self.normalized_shape,
            self.eps,
            self.elementwise_affine,
            self.bias is not None,
            **placed_as(self.weight),
        )
        stock.load_state_dict(self.state_dict())
        return stock.train(self.training)

    def extra_repr(self) -> str:
        """Describe the convention."""
        text = f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        text += f", bias={self.bias is not None}, correction={self.correction}, eps_on={self.eps_on!r}"
        return text + ("" if self.dims is None else f", dims={self.dims}")
