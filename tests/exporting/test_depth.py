"""Modules in modules in modules: what eager torch runs is exported; what it does not is told with the reason."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.errors import InputError


class Shell(nn.Module):
    """A norm around another module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = nn.BatchNorm1d(4), inner

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.inner(self.norm(x))
        return inner


def nested(depth: int) -> nn.Module:
    """Return a Linear layer in so many modules, with the statistics 0 and 1 of new norms."""
    torch.manual_seed(0)
    module: nn.Module = nn.Linear(4, 4)
    for _ in range(depth):
        module = Shell(module)
    return module.eval()


def test_forty_modules_in_each_other_are_exported_and_folded(tmp_path: Path) -> None:
    model, x = nested(40), torch.randn(2, 4)
    result = nd.export(model, (x,), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.passed
    linear = next(module for module in model.modules() if isinstance(module, nn.Linear))
    weight, bias = linear.weight.detach().double().numpy(), linear.bias.detach().double().numpy()
    scaled = x.double().numpy() / np.sqrt(1 + 1e-5) ** 40
    np.testing.assert_allclose(
        nd.load(tmp_path / "net.onnx")(x.numpy()), scaled @ weight.T + bias, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("call", ["inspect", "export"])
def test_what_ends_at_pythons_limit_says_so(call: str, tmp_path: Path) -> None:
    model, x = nested(400), torch.randn(2, 4)
    with pytest.raises(RecursionError):
        model(x)
    with pytest.raises(
        InputError, match=rf"recursion limit of {sys.getrecursionlimit()} .* expected .*setrecursionlimit"
    ):
        list(nd.inspect(model, (x,))) if call == "inspect" else nd.export(model, (x,), tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []
