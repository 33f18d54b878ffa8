"""Constants that pass through a float of fewer digits: what they lose there is no rounding of what is expected."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import Verdict, verify

Judge = Callable[[Path], Verdict]
X = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A BatchNorm to fold, a bias of its own, and rows that follow from the batch's size alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.bias = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Parameter(torch.randn(6))
        self.norm.running_mean, self.norm.running_var = torch.randn(6), torch.rand(6) + 0.5

    def forward(self, x: Tensor) -> Tensor:
        rows = 0.1 * torch.arange(x.shape[0]).unsqueeze(1) + self.bias  # of one row alone one would be left
        return (self.norm(self.first(x)) + rows.sigmoid()).tanh()


def through(proto: onnx.ModelProto, name: str, to: int) -> None:
    """Let a value's readers read it through a type."""
    at = next((i + 1 for i, node in enumerate(proto.graph.node) if name in node.output), 0)
    for node in proto.graph.node:
        node.input[:] = ["wide" if read == name else read for read in node.input]
    casts = [helper.make_node("Cast", [name], ["narrow"], to=to), helper.make_node("Cast", ["narrow"], ["wide"], to=1)]
    for cast in reversed(casts):
        proto.graph.node.insert(at, cast)


def stored(proto: onnx.ModelProto, name: str, _: int) -> None:
    """Store an initializer in float16, and cast it where it is read."""
    tensor = next(t for t in proto.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), name))
    for node in proto.graph.node:
        node.input[:] = ["wide" if read == name else read for read in node.input]
    proto.graph.node.insert(0, helper.make_node("Cast", [name], ["wide"], to=1))


def stored_at(proto: onnx.ModelProto, op: str) -> str:
    """Return the name of an initializer that an operator reads."""
    held = {tensor.name for tensor in proto.graph.initializer}
    return next(name for node in proto.graph.node if node.op_type == op for name in node.input if name in held)


@pytest.fixture(scope="module", params=[True, False], ids=["folded", "plain"])
def right(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Judge, Path]:
    """Return what judges a file, and a right one."""
    net = Net().eval()
    traced = trace(net, X)
    rewritten = rewrite(traced.model)
    graph = rewritten.model if request.param else traced.model
    path = save_graph(graph.clone(), tmp_path_factory.mktemp("narrow") / "net.onnx")
    judge = partial(verify, net, args=X, traced=traced, rewritten=rewritten, level="quick")
    assert judge(path).check("derivation").status == "pass"
    return judge, path


@pytest.mark.parametrize(
    ("change", "op", "to"),
    [
        (through, "Gemm", TensorProto.FLOAT16),
        (through, "Gemm", TensorProto.BFLOAT16),
        (stored, "Gemm", TensorProto.FLOAT16),
        (through, "Add", TensorProto.FLOAT16),
        (through, "Add", TensorProto.DOUBLE),
    ],
    ids=["weight through float16", "weight through bfloat16", "weight in float16", "sized", "sized, in double"],
)
def test_a_constant_through_a_narrow_type_is_another_number(
    change, op: str, to: int, right: tuple[Judge, Path], tmp_path: Path
):
    judge, file = right
    proto = onnx.load(file)
    followed = next(node.output[0] for node in proto.graph.node if node.op_type == "Sigmoid")
    change(proto, followed if op == "Add" else stored_at(proto, op), to)
    onnx.save(proto, tmp_path / "net.onnx")
    verdict = judge(tmp_path / "net.onnx")
    exact = to == TensorProto.DOUBLE
    assert (verdict.check("derivation").status == "pass") is exact, verdict.summary()
    assert (verdict.status == "pass") is exact, verdict.summary()
