"""A sum of affine maps of one value is one affine map, and leaves into the operators around it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import normdeploy as nd
from normdeploy.graph import Evaluator
from normdeploy.rewrite import RewriteResult, rewrite


def _summed(terms: list[tuple[np.ndarray | None, np.ndarray | None, bool]], shape: tuple[int, ...]) -> onnx.ModelProto:
    """Return y = Sigmoid(+-(s x + t) +- ...), x behind a Relu; a term without s and t is x itself."""
    nodes, known = [helper.make_node("Relu", ["in"], ["x"])], []
    total = ""
    for number, (scale, shift, minus) in enumerate(terms):
        value = "x"
        for kind, operand in (("Mul", scale), ("Add", shift)):
            if operand is not None:
                known.append(numpy_helper.from_array(operand.astype(np.float32), f"{kind}{number}"))
                nodes.append(helper.make_node(kind, [value, f"{kind}{number}"], [f"{kind}{number}.y"]))
                value = f"{kind}{number}.y"
        if total:
            nodes.append(helper.make_node("Sub" if minus else "Add", [total, value], [f"sum{number}"]))
            value = f"sum{number}"
        total = value
    nodes.append(helper.make_node("Sigmoid", [total], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape]) for name in ("in", "y")]
    graph = helper.make_graph(nodes, "sums", ends[:1], ends[1:], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _checked(model: onnx.ModelProto, shape: tuple[int, ...]) -> RewriteResult:
    result = rewrite(ir.from_proto(model))
    x = np.random.default_rng(0).standard_normal((3, *shape))
    before, after = (Evaluator(graph).run({"in": x})["y"].numpy() for graph in (ir.from_proto(model), result.model))
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)  # the file's one rounding of each constant
    return result


@given(data=st.data())
def test_any_sum_of_maps_of_one_value_is_at_most_one_map(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    numbers = np.random.default_rng(data.draw(st.integers(0, 99)))
    channels = data.draw(st.integers(0, len(shape) - 1))

    def constant() -> np.ndarray:
        varies = data.draw(st.booleans())
        sizes = [size if varies and axis == channels else 1 for axis, size in enumerate(shape)]
        return numbers.normal(size=(1, *sizes)) + 0.1

    terms = []
    for number in range(data.draw(st.integers(2, 4))):
        scaled, shifted = (data.draw(st.booleans()) or number == 1, data.draw(st.booleans()))
        terms.append((constant() if scaled else None, constant() if shifted else None, data.draw(st.booleans())))
    result = _checked(_summed(terms, shape), shape)
    left = [node.op_type for node in result.model.graph if node.op_type not in ("Relu", "Sigmoid")]
    assert len(left) <= 2, left  # a map, as one operator or as a product and a sum
    assert sum(node.op_type in ("Add", "Sub") for node in result.model.graph) <= 1


def test_other_operands_of_the_sum_stay_with_their_signs() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]> g (float[n, 4] in, float[n, 4] z) => (float[n, 4] y)
        <float[4] s = {0.5, -1, 2, 3}>
        { x = Relu(in) a = Mul(x, s) b = Sub(z, a) c = Sub(b, x) d = Add(c, z) y = Sigmoid(d) }"""
    )
    result = rewrite(ir.from_proto(model)).model
    x, z = np.random.default_rng(0).standard_normal((2, 3, 4))
    got = Evaluator(result).run({"in": x, "z": z})["y"].numpy()
    want = 1 / (1 + np.exp(-(2 * z - (np.array([0.5, -1, 2, 3]) + 1) * np.maximum(x, 0))))
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert [node.op_type for node in result.graph].count("Mul") <= 1


@pytest.mark.parametrize("total", ["Sum (a, x, c)", "Sum (c, x, a)", "Sum (a, c, x, c)"])
@pytest.mark.parametrize("constant", ["float[4] c = {3, 1, 4, 2}", "float c = {3}", "float[2, 1] c = {3, 1}"])
def test_a_constant_of_the_sum_joins_the_map_where_it_is_one_number_per_channel(total: str, constant: str) -> None:
    """One that varies along another axis would make it no map of the channels: it stays an Add."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 20]> g (float[2, 4] in) => (float[2, 4] y)
        <float[4] s = {{0.5, -1, 2, 3}}, {constant}> {{ x = Relu(in) a = Mul(x, s) y = {total} }}"""
    )
    result = rewrite(ir.from_proto(model)).model
    x = np.random.default_rng(0).standard_normal((2, 4))
    sides = (Evaluator(graph).run({"in": x})["y"].numpy() for graph in (ir.from_proto(model), result))
    np.testing.assert_allclose(*sides, rtol=1e-12)
    left = [node.op_type for node in result.graph]
    assert left.count("Add") == (total.count("c") if "2, 1" in constant else 0), left


def test_a_map_that_something_else_reads_is_left_alone() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]> g (float[n, 4] in) => (float[n, 4] y, float[n, 4] a)
        <float[4] s = {0.5, -1, 2, 3}>
        { x = Relu(in) a = Mul(x, s) b = Add(x, a) y = Sigmoid(b) }"""
    )
    result = rewrite(ir.from_proto(model))
    assert [row.action for row in result.ledger] == ["kept"]
    assert [node.op_type for node in result.model.graph] == ["Relu", "Mul", "Add", "Sigmoid"]


def test_a_sum_whose_scale_a_file_cannot_hold_is_left_alone() -> None:
    model = _summed([(np.full((1, 1), 3e38), None, False), (np.full((1, 1), 3e38), None, False)], (4,))
    result = rewrite(ir.from_proto(model))
    assert "Add" in [node.op_type for node in result.model.graph]


class Mixed(nn.Module):
    """The mean of a value and its norm, then a lerp towards a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 2, 1)
        self.norm, self.rest = nn.BatchNorm2d(6), nn.Parameter(torch.randn(6, 1, 1))
        self.norm.running_mean, self.norm.running_var = torch.randn(6), torch.rand(6) + 0.2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        x = torch.lerp(self.rest, 0.5 * x + 0.5 * self.norm(x), 0.7)
        out: torch.Tensor = self.after(torch.relu(x))
        return out


@pytest.mark.parametrize("level", ["quick", "default"])
def test_a_norm_beside_what_it_normalizes_leaves_and_is_proven_for_every_input(tmp_path: Path, level: str) -> None:
    torch.manual_seed(0)
    verify = True if level == "default" else level
    result = nd.export(Mixed().eval(), torch.randn(2, 3, 8, 8), tmp_path / "net.onnx", verify=verify)
    assert {row.action for row in result.ledger} == {"folded"}
    assert [node.op_type for node in result.program.graph] == ["Conv", "Relu", "Conv"]
    assert result.verdict is not None
    assert result.verdict.check("derivation").status == "pass", result.verdict.summary()
