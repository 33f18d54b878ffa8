"""Our modules go through torch.compile and torch.export whole, without graph breaks, and compute the same there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from normdeploy.nn import BatchNorm, GroupNorm, LayerNorm, RMSNorm

MODULES: list[nn.Module] = [
    BatchNorm(4),
    BatchNorm(4, correction=1, running_correction=0),
    BatchNorm(4, momentum=None),
    BatchNorm(4, correction=1, eps_on="deviation", momentum=None),
    BatchNorm(4, correction=1, track_running_stats=False),
    BatchNorm((4, 3), over=(0,)),
    LayerNorm(3, correction=1),
    LayerNorm(4, 1e-6, correction=1, eps_on="deviation", dims=(1,)),
    RMSNorm(3, unit_offset=True),
    GroupNorm(2, 4, correction=1),
]


EVALUATED = (MODULES[0], MODULES[3], MODULES[5])
"""The others compute in evaluation what one of these does, or what they compute in training."""


@pytest.mark.parametrize(
    ("module", "training"),
    [*((module, True) for module in MODULES), *((module, False) for module in EVALUATED)],
    ids=str,
)
def test_compiled_whole(module: nn.Module, training: bool) -> None:
    torch._dynamo.reset()
    eager, traced = copy.deepcopy(module).train(training), copy.deepcopy(module).train(training)
    # eager backend: the graph is what is under test here, and it must be one (fullgraph), not the machine code
    compiled = torch.compile(traced, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (5, 6, 7):
        x = torch.randn(rows, 4, 3)
        mine, yours = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, wanted = compiled(mine), eager(yours)
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
        got.square().sum().backward()
        wanted.square().sum().backward()
        torch.testing.assert_close(mine.grad, yours.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(traced.state_dict(), eager.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_exported_with_a_dynamic_batch(module: nn.Module) -> None:
    module = copy.deepcopy(module).eval()
    program = torch.export.export(
        module, (torch.randn(3, 4, 3),), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},), strict=False
    )
    for rows in (2, 5):
        x = torch.randn(rows, 4, 3)
        got: Any = program.module()(x)
        torch.testing.assert_close(got, module(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("module", MODULES, ids=str)
def test_half_precision_inputs_keep_their_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    module = copy.deepcopy(module)
    x = torch.randn(8, 4, 3)
    wide = copy.deepcopy(module)(x)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        got = (
            module.to(dtype)(x.to(dtype))
            if isinstance(module, (LayerNorm, RMSNorm, GroupNorm))
            else module(x.to(dtype))
        )
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), wide, rtol=0.05, atol=0.05)
