"""What lies inside of a region of operators is not held against regions of the source while the whole region is one."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from normdeploy.exporting.trace import trace
from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.rewrite import RewriteResult, rewrite
from normdeploy.verification.derivation import nearby
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.regions.analytic import ANALYTIC
from normdeploy.verification.derivation.related.waiting import leads_to
from normdeploy.verification.derivation.side.checked_side import Side

SIZES = [{"x": (2, 5, 16)}, {"x": (3, 7, 16)}]


class Deviations(nn.Module):
    """A norm that divides by deviation + eps, as some write it: a LayerNormalization and more in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16) + 0.5)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.last(torch.relu(self.weight * (x - mean) / (deviation + 1e-6)))


@pytest.fixture(scope="module")
def traced() -> ir.Model:
    torch.manual_seed(0)
    return trace(Deviations().eval(), torch.randn(2, 5, 16)).model


@pytest.fixture(scope="module")
def rewritten(traced: ir.Model) -> RewriteResult:
    found = rewrite(traced)
    assert any(node.op_type == "LayerNormalization" for node in found.model.graph)
    return found


def test_a_confirmed_region_is_compared_once(traced: ir.Model, rewritten: RewriteResult):
    with mock.patch.object(nearby, "confirm_analytic", wraps=nearby.confirm_analytic) as tried:
        report = check_derivation(traced, rewritten.model, rewritten.derivation, SIZES)
    assert report.confirmed
    assert not tried.call_count
    norm = next(node for node in rewritten.model.graph if node.op_type == "LayerNormalization")
    assert {row.node.op_type: row.identity for row in report.rows}["LayerNormalization"].startswith("analytic")
    assert norm.outputs[0].name not in rewritten.derivation.by_name()


def test_a_wrong_number_inside_is_found(traced: ir.Model, rewritten: RewriteResult):
    damaged = rewritten.model.clone()
    norm = next(node for node in damaged.graph if node.op_type == "LayerNormalization")
    norm.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-3)
    assert not check_derivation(traced, damaged, rewritten.derivation, SIZES).confirmed


SOURCE = "square = Mul(x, x) sum = ReduceSum <keepdims = 1> (square, last) more = Add(sum, one) z = Sqrt(more)"
FILE = "part = ReduceSumSquare <keepdims = 1> (x, last) add = Add(part, one) z = Sqrt(add)"


def small(body: str) -> ir.Model:
    constants = "<int64[1] last = {-1}, float[1] one = {1.0}>"
    text = f'<ir_version: 9, opset_import: ["" : 20]> g (float[n, 8] x) => (float[n, 1] z) {constants} {{ {body} }}'
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


@pytest.mark.parametrize("says", [1.0, 2.0])
def test_where_the_result_is_not_what_a_derivation_says_what_is_inside_is_looked_for(says: float):
    derivation = Derivation((Hint("add", "more", "", np.full((), says), np.zeros(())),))
    sizes = [{"x": (3, 8)}, {"x": (5, 8)}]
    with mock.patch.object(nearby, "confirm_analytic", wraps=nearby.confirm_analytic) as tried:
        assert check_derivation(small(SOURCE), small(FILE), derivation, sizes).confirmed
    assert bool(tried.call_count) == (says != 1)


BODIES = """w = If(c) <
    then_branch = t () => (float[3] a) { a = Neg(y) }, else_branch = e () => (float[3] b) { b = Identity(y) }
>"""


@pytest.mark.parametrize(
    ("last", "reader", "waits"),
    [
        ("Neg(y)", "Neg(y)", True),
        ("Add(y, one)", "Neg(y)", True),
        ("Add(y, three)", "Neg(y)", False),
        ("Relu(y)", "Neg(y)", False),
        ("Neg(y)", BODIES, False),
    ],
)
def test_what_waits_for_what_is_behind(last: str, reader: str, waits: bool):
    """Nothing that a body reads, nor what is read beside a constant that is compared number by number."""
    reader = reader if reader is BODIES else f"w = {reader}"
    constants = "<float[1] one = {1.0}, float[3] three = {1.0, 2.0, 3.0}>"
    body = f"y = Mul(x, three) z = {last} {reader}"
    text = f"g (float[3] x, bool c) => (float[3] z, float[3] w) {constants} {{ {body} }}"
    model = ir.serde.deserialize_model(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}'))
    side = Side(model, [{"x": (3,), "c": ()}])
    value, hinted = (side.nodes[place].outputs[0] for place in (0, 1))
    assert leads_to(side, value, ANALYTIC, lambda v: v is hinted) is waits
    assert not leads_to(side, hinted, ANALYTIC, lambda v: v is hinted)


class Interpolated(nn.Module):
    """torch writes both formulas of an interpolation, which are equal, and chooses one by its constant weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight, self.norm = weight, nn.BatchNorm1d(16)
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        nn.init.uniform_(self.norm.running_mean, -1, 1)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.lerp(x, torch.sin(self.norm(self.first(x))), self.weight)
        return torch.lerp(y, torch.cos(self.last(y)).repeat(1, 4), self.weight)


@pytest.mark.parametrize("weight", [0.3, 0.5, 0.7])
def test_a_choice_by_a_constant_between_equal_formulas_is_followed(weight: float):
    torch.manual_seed(0)
    traced = trace(Interpolated(weight).eval(), torch.randn(2, 16)).model
    found = rewrite(traced)
    sizes = [{"x": (2, 16)}, {"x": (3, 16)}]
    assert check_derivation(traced, found.model, found.derivation, sizes).confirmed
    wrong = found.model.clone()
    adds = [node for node in wrong.graph if node.op_type == "Add"]
    adds[-1].replace_input_with(0, adds[-1].inputs[1])
    assert not check_derivation(traced, wrong, found.derivation, sizes).confirmed
