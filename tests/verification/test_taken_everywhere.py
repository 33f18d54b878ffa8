"""A Where by a constant that takes one operand everywhere is that operand, to what is compared behind it."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from normdeploy.graph.derivation import Derivation
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.hints import unchanged

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[n, 3] x) => (float[n, 3] y) '
VALUES = "p = Relu(x) q = Sigmoid(x) r = Tanh(x) "


def model(mask: str, text: str) -> ir.Model:
    constants = f"<float a = {{0.25}}, float b = {{0.75}}, bool[3] m = {{{mask}}}>"
    return ir.serde.deserialize_model(onnx.parser.parse_model(f"{HEAD} {constants} {{ {VALUES} {text} }}"))


def confirmed(mask: str, taken: str) -> bool:
    """Tell whether a blend of what a Where takes is confirmed as a sum of two products, one of them of ``taken``."""
    source = model(mask, "w = Where(m, p, q) d = Sub(r, w) t = Mul(a, d) y = Add(w, t)")
    file = model(mask, f"u = Mul({taken}, b) v = Mul(r, a) y = Add(u, v)")
    sizes = [{"x": (n, 3)} for n in (2, 5)]
    reports = [check_derivation(source, file, hints, sizes) for hints in (unchanged(source), Derivation())]
    return any(report.confirmed for report in reports)


@pytest.mark.parametrize(("mask", "taken"), [("1, 1, 1", "p"), ("0, 0, 0", "q")])
def test_what_is_taken_everywhere_is_confirmed(mask, taken):
    assert confirmed(mask, taken)


@pytest.mark.parametrize(("mask", "taken"), [("1, 1, 1", "q"), ("0, 0, 0", "p"), ("1, 1, 0", "p"), ("1, 1, 0", "q")])
def test_the_other_operand_is_not(mask, taken):
    assert not confirmed(mask, taken)
