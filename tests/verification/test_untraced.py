"""A file that is what torch traced, where that is not the module: the trace is blamed, and the submodule named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.verification import verify
from normdeploy.verification.record.answers import Localization, Side

X = torch.linspace(-2, 2, 24).reshape(3, 8).sin()


class Asks(nn.Module):
    """Computes something else while it is compiled: on all inputs, or on large ones alone."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        if torch.compiler.is_compiling():
            return y
        return torch.where(x > self.limit, y + 1, y)


class Scaled(Asks):
    """What it returns is a value of the graph, too; the graph goes on from another one."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return 2 * y if torch.compiler.is_compiling() else y


class Around(nn.Module):
    """The module that asks, between others that do not."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 8), inner, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.inner(torch.relu(self.first(x))))
        return result


def blamed(model: nn.Module, path: Path, **options: Any) -> Localization:
    verdict = verify(model, path, args=(X,), level="quick", **options)
    assert verdict.status == "fail", verdict.summary()
    assert verdict.localization is not None
    return verdict.localization


@pytest.mark.parametrize("inner", [Asks(0.5), Asks(30.0), Scaled(0.0)], ids=["often", "rarely", "scaled"])
def test_the_submodule_that_is_traced_otherwise_is_named(inner: nn.Module, tmp_path: Path):
    torch.manual_seed(0)
    model = Around(inner).eval()
    nd.export(model, (X,), tmp_path / "net.onnx", verify=False)
    found = blamed(model, tmp_path / "net.onnx")
    assert (found.side, found.where, found.op) == (Side.TRACE, "inner", type(inner).__name__)
    assert "torch.compiler.is_compiling()" in found.stored
    assert found.likely == ""


def test_the_model_itself_is_named_where_it_asks(tmp_path: Path):
    model = Asks(0.5).eval()
    nd.export(model, (X,), tmp_path / "net.onnx", verify=False)
    found = blamed(model, tmp_path / "net.onnx")
    assert (found.side, found.where) == (Side.TRACE, "Asks")


def test_an_operator_that_is_translated_wrongly_is_named_by_its_module(tmp_path: Path):
    """No module asks anything: the exporter got an attribute wrong, and the file follows it."""
    torch.manual_seed(0)
    model = Around(nn.LayerNorm(8)).eval()
    traced = trace(model, (X,))
    norm = next(node for node in traced.model.graph if node.op_type == "LayerNormalization")
    norm.attributes["epsilon"] = ir.AttrFloat32("epsilon", 0.1)
    save_graph(traced.model.clone(), tmp_path / "net.onnx")
    found = blamed(model, tmp_path / "net.onnx", traced=traced)
    assert (found.side, found.where, found.op, found.stored) == (Side.TRACE, "inner", "LayerNorm", "")
    assert "that is not what the module computes" in found.summary


def test_a_file_that_is_wrong_itself_is_to_blame_whatever_is_asked(tmp_path: Path):
    torch.manual_seed(0)
    model = Around(Asks(30.0)).eval()
    nd.export(model, (X,), tmp_path / "net.onnx", verify=False)
    proto = onnx.load(str(tmp_path / "net.onnx"))
    weight = next(t for t in proto.graph.initializer if list(t.dims) == [3])
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + 0.5, weight.name))
    onnx.save(proto, str(tmp_path / "wrong.onnx"))
    found = blamed(model, tmp_path / "wrong.onnx")
    assert found.side is Side.EXPORT


def test_what_no_sample_shows_is_named_as_not_checked(tmp_path: Path):
    model = Around(Asks(1e30)).eval()
    nd.export(model, (X,), tmp_path / "net.onnx", verify=False)
    verdict = verify(model, tmp_path / "net.onnx", args=(X,), level="quick")
    assert verdict.status == "pass", verdict.summary()
    assert any("'inner'" in text and "is_compiling()" in text for text in verdict.not_checked)
