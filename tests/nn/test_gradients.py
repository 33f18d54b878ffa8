"""Gradients of every configuration, checked against finite differences in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normdeploy.nn import BatchNorm, GroupNorm, LayerNorm, RMSNorm

CONVENTIONS = [(c, e) for c in (0, 1) for e in ("variance", "deviation")]


def check(module: nn.Module, *shape: int) -> None:
    module.double()
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    tensors = list(module.parameters())
    with torch.no_grad():
        for p in tensors:
            p.add_(torch.randn(p.shape, generator=generator, dtype=torch.float64))

    def function(x: Tensor, *values: Tensor) -> Tensor:
        names = [name for name, _ in module.named_parameters()]
        result: Tensor = torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))
        return result

    inputs = [x.requires_grad_(), *(p.detach().clone().requires_grad_() for p in tensors)]
    assert torch.autograd.gradcheck(function, inputs, eps=1e-6, atol=1e-7)


@pytest.mark.parametrize(("correction", "eps_on"), CONVENTIONS)
@pytest.mark.parametrize("track", [True, False])
def test_batchnorm(correction: int, eps_on: Any, track: bool) -> None:
    module = BatchNorm(3, 0.1, correction=correction, running_correction=0, eps_on=eps_on, track_running_stats=track)
    check(module, 4, 3, 2)
    check(module.eval(), 4, 3, 2)
    check(BatchNorm((3, 2), 0.1, correction=correction, eps_on=eps_on, over=(0,), track_running_stats=track), 4, 3, 2)


@pytest.mark.parametrize(("correction", "eps_on"), CONVENTIONS)
@pytest.mark.parametrize("dims", [None, (1,)])
def test_layernorm(correction: int, eps_on: Any, dims: Any) -> None:
    check(LayerNorm(4, 0.1, correction=correction, eps_on=eps_on, dims=dims), 2, 4, 4)
    check(LayerNorm(4, 0.1, elementwise_affine=False, correction=correction, eps_on=eps_on, dims=dims), 2, 4, 4)


@pytest.mark.parametrize("unit_offset", [True, False])
@pytest.mark.parametrize("eps_on", ["variance", "deviation"])
def test_rmsnorm(unit_offset: bool, eps_on: Any) -> None:
    check(RMSNorm(4, 0.1, unit_offset=unit_offset, eps_on=eps_on), 2, 3, 4)


@pytest.mark.parametrize(("correction", "eps_on"), CONVENTIONS)
def test_groupnorm(correction: int, eps_on: Any) -> None:
    check(GroupNorm(2, 4, 0.1, correction=correction, eps_on=eps_on), 2, 4, 3)


@pytest.mark.parametrize(
    "module",
    [
        LayerNorm(4, correction=1, eps_on="deviation"),
        RMSNorm(4, eps_on="deviation"),
        GroupNorm(1, 4, eps_on="deviation"),
        BatchNorm(4, correction=1, eps_on="deviation"),
    ],
    ids=lambda m: type(m).__name__,
)
def test_constant_rows_have_finite_gradients(module: nn.Module) -> None:
    x = torch.zeros(3, 4, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
