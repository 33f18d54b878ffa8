"""Functions of two numbers: ours against eager torch, in onnxruntime, to the ends of their range."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.trace import trace

INF, MOST = float("inf"), 3e38
ENDS = [0.0, -0.0, 1.0, -1.0, 0.3, 1e-30, -1e-30, 80.0, 120.0, -120.0, 1000.0, -1000.0, 1e25, MOST, -MOST, INF, -INF]
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "signbit": lambda a, b: torch.signbit(a).to(a.dtype) - 2 * torch.signbit(b).to(a.dtype),
}


class Pairs(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.function(a, b)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_eagers_to_the_ends(name: str) -> None:
    net = Pairs(FUNCTIONS[name])
    traced = trace(net, (torch.randn(3, 4), torch.randn(3, 4)))
    session = onnxruntime.InferenceSession(ir.to_proto(traced.model).SerializeToString(), None)
    a, b = (grid.astype(np.float32).ravel()[: 17 * 17 // 4 * 4].reshape(-1, 4) for grid in np.meshgrid(ENDS, ENDS))
    (found,) = session.run(None, {"a": a, "b": b})
    expected = net(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-7)  # of a logarithm near 1
    there = expected != 0  # onnxruntime's Where has one zero
    assert (np.signbit(found) == np.signbit(expected))[there].all() or name == "logaddexp2"  # near 0 by rounding


class Mixed(nn.Module):
    """A norm on either side of one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)
        nn.init.uniform_(self.norm.running_mean, -1, 1)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.first(x))
        z: Tensor = self.last(torch.logaddexp(y, y.flip(-1)) + torch.hypot(y, y.flip(-2)))
        return z


def test_a_file_with_them_is_proven(tmp_path) -> None:
    torch.manual_seed(0)
    verdict = nd.export(Mixed().eval(), torch.randn(2, 3, 6, 6), tmp_path / "net.onnx").verdict
    assert verdict.status == "pass", verdict.summary()
