"""Parts whose ends are computed from the shape of what is cut, as tracers write ``x.chunk(2, 1)``."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

CUT = """
    {x}_shape = Shape({x}) {x}_channels = Gather<axis = 0>({x}_shape, one_axis) {x}_more = Add({x}_channels, one)
    {x}_half = Div({x}_more, two) {x}_end = Mul({x}_half, one) {x}_last = Mul({x}_half, two)
    {x}_a = Slice({x}, zero, {x}_end, first) {x}_b = Slice({x}, {x}_end, {x}_last, first)
"""


def network(nested: bool) -> ir.Model:
    """Return a convolution, its halves (and a half's halves) behind norms of their own, joined and convolved."""
    rng = np.random.default_rng(0)
    cut, parts = CUT.format(x="c"), [("c_a", 4), ("c_b", 4)]
    if nested:
        cut, parts = (
            cut + " r = AveragePool<kernel_shape = [1, 1]>(c_a)" + CUT.format(x="r"),
            [("r_a", 2), ("r_b", 2), ("c_b", 4)],
        )
    norms = " ".join(f"{x}_n = BatchNormalization({x}, g{n}, h{n}, h{n}, g{n})" for x, n in parts)
    joined = ", ".join(f"{x}_n" for x, _ in parts)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 13]> g (float[batch, 3, 8, 8] x) => (float[batch, 2, 4, 4] y)
        <int64[1] one_axis = {{1}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] zero = {{0}},
         int64[1] first = {{1}}> {{
        c = Conv(x, w) {cut} {norms} j = Concat<axis = 1>({joined}) a = Relu(j) y = Conv(a, v) }}"""
    )
    weights = {"w": rng.normal(size=(8, 3, 3, 3)), "v": rng.normal(size=(2, 8, 3, 3))}
    for n in (2, 4):
        weights |= {f"g{n}": rng.uniform(0.5, 2, n), f"h{n}": rng.normal(size=n)}
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return ir.from_proto(model)


@pytest.mark.parametrize("nested", [False, True])
def test_norms_of_computed_parts_fold(nested: bool):
    model = network(nested)
    result = rewrite(model)
    kinds = [node.op_type for node in result.model.graph]
    assert "BatchNormalization" not in kinds, result.ledger
    assert "Shape" not in kinds
    assert all(row.action == "folded" for row in result.ledger)
    x = np.random.default_rng(1).normal(size=(2, 3, 8, 8))
    before, after = (Evaluator(m).run({"x": x})["y"].numpy() for m in (model, result.model))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


def test_a_size_that_stays_unknown_ends_the_search():
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["" : 13]> g (float[batch, time] x, int64[k] ends) => (float[p, q] y)
        <int64[1] zero = {0}, int64[1] two = {2}> { four = Mul(two, two) part = Slice(x, zero, ends, zero)
        y = Slice(part, zero, four, zero) }"""
    )
    kinds = [node.op_type for node in rewrite(model).model.graph]
    assert kinds == ["Slice", "Slice"]
