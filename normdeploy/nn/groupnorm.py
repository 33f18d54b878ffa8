"""Group normalization with the conventions torch lacks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from normdeploy.errors import InputError, ModelError, UsageError
from normdeploy.nn.convention import EpsOn, check_convention, placed_as, ratio, standardize


class GroupNorm(nn.Module):
    """Normalize groups of channels of each sample over channels and space: y = g (x - m) / sqrt(v + e) + b.

    With one group it is a LayerNorm over (C, *) with a scale per channel; with C groups it is InstanceNorm.

    Args:
        num_groups: number of groups.
        num_channels: number C of channels, a multiple of it.
        eps: epsilon e.
        affine: whether there are a scale g and a shift b per channel.
        correction: of the variance: 0 biased, 1 unbiased.
        eps_on: ``"variance"``: sqrt(v + e); ``"deviation"``: sqrt(v) + e.

    Shape:
        input (N, C, *), output the same.

    Raises:
        UsageError: an argument does not fit.
        InputError: the input's shape does not fit.

    Source:
        Y. Wu, K. He, Group Normalization, 2018, equations 1, 2, 3 and 7.
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        correction: float = 0,
        eps_on: EpsOn = "variance",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_convention(correction, eps, eps_on)
        if num_groups < 1 or num_channels % num_groups:
            raise UsageError(f"{num_channels} channels in {num_groups} groups; expected groups of equal size")
        self.num_groups, self.num_channels, self.affine = num_groups, num_channels, affine
        self.eps, self.correction, self.eps_on = eps, correction, eps_on
        for name, fill in (("weight", torch.ones), ("bias", torch.zeros)):
            tensor = nn.Parameter(fill(num_channels, device=device, dtype=dtype)) if affine else None
            self.register_parameter(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x`` of shape (N, C, *)."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise InputError(f"GroupNorm got shape {tuple(x.shape)}; expected {self.num_channels} channels on axis 1")
        # the change of units needs n as a number, which it is not while a dynamic shape is traced
        if self.eps_on == "variance" and (self.correction == 0 or not torch.compiler.is_compiling()):
            r = ratio(math.prod(x.shape[1:]) // self.num_groups, self.correction)
            scale = self.weight
            if r != 1:
                ones = torch.ones(self.num_channels, dtype=x.dtype, device=x.device) if scale is None else scale
                scale = ones / math.sqrt(r)
            return functional.group_norm(x, self.num_groups, scale, self.bias, self.eps / r)
        grouped = x.reshape(x.shape[0], self.num_groups, -1)
        result, _, _ = standardize(grouped, (2,), correction=self.correction, eps=self.eps, eps_on=self.eps_on)
        result = result.reshape(x.shape)
        if self.weight is not None and self.bias is not None:
            seen = [1, self.num_channels] + [1] * (x.ndim - 2)
            result = result * self.weight.view(seen) + self.bias.view(seen)
        return result.to(x.dtype)

    def coincides_with_torch(self) -> bool:
        """Tell whether torch's GroupNorm computes the same."""
        return self.correction == 0 and self.eps_on == "variance"

    @classmethod
    def from_torch(cls, module: nn.GroupNorm) -> GroupNorm:
        """Return a GroupNorm with the configuration and a copy of the state of a stock module."""
        ours = cls(
            module.num_groups,
            module.num_channels,
            module.eps,
            module.affine,
            **placed_as(module.weight),
        )
        ours.load_state_dict(module.state_dict())
        return ours.train(module.training)

    def to_torch(self) -> nn.GroupNorm:
        """Return a stock module with the same configuration and a copy of the state.

        Raises:
            ModelError: torch's convention is another one.
        """
        if not self.coincides_with_torch():
            raise ModelError(
                f"{self} has no equal in torch, whose GroupNorm has correction=0, eps_on='variance': keep this module"
            )
        stock = nn.GroupNorm(
            self.num_groups,
            self.num_channels,
            self.eps,
            self.affine,
            **placed_as(self.weight),
        )
        stock.load_state_dict(self.state_dict())
        return stock.train(self.training)

    def extra_repr(self) -> str:
        """Describe the convention."""
        text = f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
        return text + f", correction={self.correction}, eps_on={self.eps_on!r}"
