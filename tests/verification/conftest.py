"""One small model, traced and rewritten once, and what is needed to damage files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper, parser
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.trace import Traced, trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import RewriteResult, rewrite
from normdeploy.verification import Verdict, verify


class Small(nn.Module):
    """Conv, BatchNorm, a second padded Conv behind a BatchNorm, LayerNorm, Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.before = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.rows = nn.LayerNorm(6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        return self.head(self.rows(self.second(self.before(x)).mean((2, 3))))


def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every normalization statistics and an affine map that matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
                module.running_var.copy_(torch.rand(module.num_features, generator=generator) * 1.5 + 0.5)
            if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.LayerNorm)) and module.weight is not None:
                module.weight.copy_(torch.rand(module.weight.shape, generator=generator) + 0.5)
                module.bias.copy_(torch.randn(module.bias.shape, generator=generator))
    return model.eval()


@dataclass
class Exported:
    """A model, its trace, its rewriting and both files."""

    model: nn.Module
    args: tuple[Any, ...]
    traced: Traced
    rewritten: RewriteResult
    folded: Path
    plain: Path

    def verdict(self, path: Path, **options: Any) -> Verdict:
        return verify(self.model, path, args=self.args, traced=self.traced, rewritten=self.rewritten, **options)


def export_once(model: nn.Module, args: tuple[Any, ...], folder: Path) -> Exported:
    traced = trace(model, args)
    rewritten = rewrite(traced.model)
    folded = save_graph(rewritten.model.clone(), folder / "folded.onnx")
    plain = save_graph(traced.model.clone(), folder / "plain.onnx")
    return Exported(model, args, traced, rewritten, folded, plain)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    torch.manual_seed(0)
    model = randomized(Small())
    return export_once(model, (torch.randn(2, 3, 8, 8),), tmp_path_factory.mktemp("small"))


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[[Path, Callable[[onnx.ModelProto], None]], Path]:
    """Return a function that writes a damaged copy of a file."""

    def damage(source: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
        proto = onnx.load(str(source))
        change(proto)
        target = tmp_path / "damaged.onnx"
        onnx.save(proto, str(target))
        return target

    return damage


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes an ONNX text body as a file."""

    def from_text(body: str, name: str = "graph", opset: int = 20, **initializers: Any) -> Path:
        proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {body}')
        for key, value in initializers.items():
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), key))
        target = tmp_path / f"{name}.onnx"
        onnx.save(proto, str(target))
        return target

    return from_text


@pytest.fixture
def graph_of() -> Callable[[str], ir.Model]:
    def parse(body: str) -> ir.Model:
        return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 20]> {body}')

    return parse


@dataclass(frozen=True)
class FoldedByTorch:
    """A module and its file, in which torch folded the BatchNorm in float32: right, half a unit off here and there."""

    model: nn.Module
    x: Tensor
    path: Path


@pytest.fixture
def folded_by_torch(tmp_path: Path) -> FoldedByTorch:
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
    model = nn.Sequential(conv, norm, nn.ReLU()).eval()
    fused = nn.Sequential(fuse_conv_bn_eval(conv.eval(), norm.eval()), nn.ReLU()).eval()
    x = torch.randn(2, 3, 9, 9)
    nd.export(fused, x, tmp_path / "net.onnx", verify=False)
    return FoldedByTorch(model, x, tmp_path / "net.onnx")
