"""A convolution that branches were merged into is computed as one of them was, and is not held against that one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import normdeploy as nd


class WrittenBorder(nn.Module):
    """A 1x1 convolution, what its norm makes of zeros written around that, and a 3x3 one; another one beside them.

    No law says what the written border is, so that the merged convolution is shown by samples alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.point, self.norm = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.wide, self.beside = nn.Conv2d(4, 4, 3, bias=False), nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.pad(self.norm(self.point(x)), (1, 1, 1, 1))
        scale = self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)
        border = (self.norm.bias - self.norm.running_mean * scale).view(1, -1, 1, 1)
        y[:, :, :1, :] = border
        y[:, :, -1:, :] = border
        y[:, :, :, :1] = border
        y[:, :, :, -1:] = border
        return torch.relu(self.wide(y) + self.beside(x))


def test_a_merged_convolution_is_not_held_against_one_branch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = WrittenBorder().eval(), torch.randn(2, 3, 6, 5)
    net.norm.running_mean.normal_()
    nn.init.normal_(net.norm.bias)
    result = nd.export(net, x, tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass"
    made = nd.load(tmp_path / "net.onnx")(x.numpy())
    torch.testing.assert_close(torch.from_numpy(made), net.double()(x.double()).float(), rtol=1e-5, atol=1e-5)
