"""A product and the bias behind it are one linear operator: the product is not held against each product nearby."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from normdeploy.exporting.trace import trace
from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.rewrite import RewriteResult, rewrite
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.laws import linear_laws
from normdeploy.verification.hints import unchanged

SIZES = [{"x": (2, 5, 8)}, {"x": (3, 7, 8)}]
PRODUCT = "val_3"  # of the second layer, whose weights take up the scale behind it


class Scaled(nn.Module):
    """A residual branch whose last scale the layer in front takes up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.second(torch.relu(self.first(x)))


@pytest.fixture(scope="module")
def traced() -> ir.Model:
    torch.manual_seed(0)
    return trace(Scaled().eval(), torch.randn(2, 5, 8)).model


@pytest.fixture(scope="module")
def rewritten(traced: ir.Model) -> RewriteResult:
    found = rewrite(traced)
    assert "Mul" not in {node.op_type for node in found.model.graph}
    assert PRODUCT in {str(node.outputs[0].name) for node in found.model.graph}
    assert PRODUCT not in found.derivation.by_name()
    return found


def test_its_weights_are_compared_with_the_sum_alone(traced: ir.Model, rewritten: RewriteResult):
    with mock.patch.object(linear_laws, "_equal", wraps=linear_laws._equal) as equal:
        report = check_derivation(traced, rewritten.model, rewritten.derivation, SIZES)
    assert report.confirmed
    assert PRODUCT not in {call.args[3].name for call in equal.call_args_list}
    assert {row.result: row.identity for row in report.rows}[PRODUCT] == "linear: W' = W s_x / s_y"


@pytest.mark.parametrize("off", [1 + 2.0**-22, 1.5])
def test_a_wrong_weight_is_told_all_the_same(traced: ir.Model, rewritten: RewriteResult, off: float):
    damaged = rewritten.model.clone()
    weight = next(node for node in damaged.graph if node.outputs[0].name == PRODUCT).inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    array = np.array(weight.const_value.numpy())
    array[3, 2] *= np.float32(off)
    weight.const_value = ir.tensor(array)
    report = check_derivation(traced, damaged, rewritten.derivation, SIZES)
    assert not report.confirmed
    assert [row.result for row in report.contradicted] == [PRODUCT]
    assert f"is {array[3, 2]:.9g} at [3, 2]" in report.contradicted[0].reason


@pytest.mark.parametrize("says", [("linear_1", 2.0), ("output", 1.0), ("linear", 1.0)])
def test_where_the_sum_is_not_what_a_derivation_says_the_product_is_looked_at(
    traced: ir.Model, says: tuple[str, float]
):
    """The file is the trace as it is; the hint of the layer's sum is wrong, that of its product is missing."""
    right = [hint for hint in unchanged(traced).hints if hint.value not in ("linear_1", PRODUCT)]
    wrong = Hint(says[0], "linear_1", "", np.full((), says[1]), np.zeros(()))
    assert check_derivation(traced, traced.clone(), Derivation((*right, wrong)), SIZES).confirmed


def test_a_product_whose_sum_nothing_shows_is_known_itself(traced: ir.Model):
    """Another bias leaves the product what it was."""
    damaged = traced.clone()
    bias = next(node for node in damaged.graph if node.outputs[0].name == "linear_1").inputs[1]
    assert bias is not None
    bias.const_value = ir.tensor(np.full(8, 7.0, np.float32))
    hints = Derivation(tuple(hint for hint in unchanged(traced).hints if hint.value != PRODUCT))
    report = check_derivation(traced, damaged, hints, SIZES)
    found = {row.result: row for row in report.rows}
    assert found[PRODUCT].identity
    assert found["linear_1"].wrong


def test_what_waits_and_is_read_twice_is_asked_once():
    """A square inside of a region that is no region of the source: what is open is named, nothing ends by it."""
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[2,3] x) => (float[2,1] y) <int64[1] last = {{-1}},
        float f = {{{0}}}, float e = {{0.1}}> {{ h{0} = Mul(x, f) m{0} = ReduceMean(h{0}, last) d{0} = Sub(h{0}, m{0})
        q{0} = Mul(d{0}, d{0}) v{0} = ReduceMean(q{0}, last) y = Add(v{0}, e) }}"""
    source, file = (ir.from_onnx_text(text.format(factor)) for factor in (2, 3))
    report = check_derivation(source, file, Derivation((Hint("y", "y"),)), [{"x": (2, 3)}])
    assert not report.confirmed
    assert report.open
