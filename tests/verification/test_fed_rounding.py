"""What is fed at a site directly stands for the result of an operator: it has that one's rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from normdeploy.exporting.trace import Traced, trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import RewriteResult, rewrite
from normdeploy.verification import verify
from normdeploy.verification.bounds.noise import NoisyGraph


class Places(nn.Module):
    """Places that the input counts, any of its rows alike: divided by their last and an epsilon, at three speeds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slowness", torch.tensor([1.0, 1.0, 10.0, 10.0, 100.0, 100.0]))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        count = (x[..., 0] > -1e30).to(x.dtype).cumsum(1)
        turns = count / (count[:, -1:] + 1e-6) * 15.3
        speed = torch.where(x > -1e30, 1 / self.slowness, x)  # no constant that a scale could go into
        return self.head(x + (turns[..., None] * speed).sin())


@pytest.fixture(scope="module")
def places() -> tuple[Places, Tensor, Traced, RewriteResult]:
    torch.manual_seed(1)
    model, x = Places().eval(), torch.randn(2, 16, 6)
    traced = trace(model, x)
    return model, x, traced, rewrite(traced.model)


@pytest.mark.parametrize(("factor", "status"), [(1.0, "pass"), (10.0, "fail"), (0.1, "fail")])
def test_a_scale_folded_in_front_of_an_epsilon_passes_at_the_site_and_a_wrong_one_fails(
    places: tuple[Places, Tensor, Traced, RewriteResult], tmp_path: Path, factor: float, status: str
):
    """1 / (x + e) * s is folded to 1 / (x / s + e / s), whose sum errs by a rounding of x / s where e cancels it."""
    model, x, traced, rewritten = places
    path = tmp_path / "net.onnx"
    save_graph(rewritten.model.clone(), path)
    proto = onnx.load(str(path))
    shifts = [t for t in proto.graph.initializer if t.name.endswith(".bias") and t.name != "head.bias"]
    assert len(shifts) == 1
    for tensor in shifts:
        shift = numpy_helper.to_array(tensor)
        assert np.allclose(shift, 1e-6 / 15.3, rtol=1e-6)
        tensor.CopyFrom(numpy_helper.from_array((shift * np.float32(factor)).astype(np.float32), tensor.name))
    name = proto.graph.input[0].name
    for node in proto.graph.node:
        if node.op_type == "Add":
            node.input[:] = ["again" if n == name else n for n in node.input]
    for node in (
        helper.make_node("Mul", ["sign", "size"], ["again"]),  # no algebra explains it, so that all is sampled
        helper.make_node("Abs", [name], ["size"]),
        helper.make_node("Sign", [name], ["sign"]),
    ):
        proto.graph.node.insert(0, node)
    onnx.save(proto, str(path))
    level = "default" if factor == 1.0 else "quick"
    verdict = verify(model, path, args=(x,), traced=traced, rewritten=rewritten, level=level)
    assert factor != 1.0 or any(check.name == "site" for check in verdict.checks)
    assert verdict.status == status, verdict.reasons


def test_what_is_fed_has_the_rounding_of_what_it_stands_for():
    """Exact numbers have none: x + e with e nearly -x is exact then, and errs by u |x| where x was computed."""
    x, e = np.float32(-1e-6) * (1 + np.arange(4096, dtype=np.float32) / 2**20), np.float32(1e-6)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "e"], ["y"])],
        "sum",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4096])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4096])],
        [numpy_helper.from_array(np.asarray(e), "e")],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    u = 2.0**-24
    expected = u * np.sqrt(np.mean(np.square(x.astype(np.float64))) / 3)  # the RMS of u |x| U[-1, 1]
    spreads = []
    for computed in ((), ("x",)):
        *_, (spread,) = NoisyGraph(model, computed=computed).spreads({"x": x}, roundoff=u, floor=0.0, runs=16)
        *_, (fast,) = NoisyGraph(model, computed=computed).spreads_fast({"x": x}, roundoff=u, runs=16)
        spreads.append([float(np.sqrt(np.mean(np.square(s)))) / expected for s in (spread, fast)])
    assert max(spreads[0]) < 0.1
    assert all(0.8 < ratio < 1.3 for ratio in spreads[1])
