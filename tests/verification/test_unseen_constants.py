"""Numbers that are small beside others of their constant: no random point shows them, so points do not confirm them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.related.report import Report
from normdeploy.verification.hints import unchanged

HEAD = '<ir_version: 10, opset_import: ["": 20]> g (float[2,3] x) => (float[2,N] z) '
BODIES = {
    "MatMul": "<float[3,3] c = {1, 2, ?, 1, 2, 3, 1, 0, 2}> { z = MatMul(x, c) }",
    "Gemm": "<float[3,3] w = {1, 2, 3, 1, 2, 3, 1, 0, 2}, float[3] c = {1, ?, 2}> { z = Gemm(x, w, c) }",
    "LayerNormalization": "<float[3] c = {1, ?, 1}> { z = LayerNormalization(x, c) }",
    "Add": "<float[3] c = {1, ?, 1}> { z = Add(x, c) }",
    "Concat": "<float[2,1] c = {?, 1}> { z = Concat<axis = 1>(x, c) }",
    "under a root": "<float[3] c = {1, ?, 1}> { a = Mul(x, x) b = Add(a, c) d = Sqrt(b) z = Div(x, d) }",
}
ROOTS = "<float[3] c = {1, 1e-12, 1}, float[3] s = {2, 3, 4}> "


def confirmed(source: str, file: str) -> Report:
    """Return what is confirmed of a file, by the hint that nothing was rewritten."""
    graphs = [ir.from_onnx_text(HEAD + text) for text in (source, file)]
    return check_derivation(graphs[0], graphs[1], unchanged(graphs[0]), [{"x": (2, 3)}])


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("other", ["2e-12", "0", "-1e-12"])
def test_another_small_number_is_confirmed_by_no_points(body: str, other: str):
    assert confirmed(body.replace("?", "1e-12"), body.replace("?", "1e-12")).confirmed
    assert not confirmed(body.replace("?", "1e-12"), body.replace("?", other)).confirmed


@pytest.mark.parametrize(("number", "confirms"), [("1e-12", True), ("2e-12", False), ("0", False)])
def test_constants_of_a_region_are_the_sources_or_of_one_size(number: str, confirms: bool):
    """A product that another tool wrote on the other side of a root: only a region says that it is the same."""
    source = ROOTS + "{ a = Mul(x, x) b = Add(a, c) d = Sqrt(b) e = Div(x, d) z = Mul(e, s) }"
    file = ROOTS + "{ a = Mul(x, x) b = Add(a, c) d = Sqrt(b) p = Mul(x, s) z = Div(p, d) }"
    assert confirmed(source, file.replace("1e-12", number)).confirmed == confirms


def test_constants_of_one_size_are_shown_by_points():
    source = "<float[3] c = {1, 2, 3}, float[3] s = {2, 3, 4}> { a = Add(x, x) b = Mul(a, s) d = Sub(b, c) z = Neg(d) }"
    file = "<float[3] c = {1, 2, 3}, float[3] s = {-4, -6, -8}> { p = Mul(x, s) z = Add(p, c) }"
    assert confirmed(source, file).confirmed
    assert not confirmed(source, file.replace("-6", "-6.01")).confirmed
