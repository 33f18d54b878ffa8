"""A norm whose constants, taken together, no longer fit the type of its numbers stays as it was written."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

SPELLED = """<ir_version: 10, opset_import: ["": 20]> g (KIND[n, 6] x) => (KIND[n, 6] y) {
    m = ReduceMean <keepdims = 1> (x, axes)
    d = Sub (x, m)
    q = Mul (d, d)
    v = ReduceMean <keepdims = 1> (q, axes)
    e = Add (v, epsilon)
    r = Sqrt (e)
    h = Div (d, r)
    a = Mul (h, s)
    b = Mul (a, t)
    y = Identity (b)
}"""


def spelled(scale: float, factor: float, kind: str) -> ir.Model:
    model = parser.parse_model(SPELLED.replace("KIND", kind))
    dtype = np.float16 if kind == "float16" else np.float32
    constants = {
        "axes": np.array([-1]),
        "epsilon": dtype(1e-3),
        "s": np.full(6, scale, dtype),
        "t": np.full(6, factor, dtype),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    return ir.from_proto(model)


@pytest.mark.parametrize(
    ("scale", "factor", "reason"),
    [
        (300, 300, "its scale or shift, taken together, would overflow float16"),
        (1e-3, 1e-3, "its scale, taken together, would lose digits: float16 has fewer for numbers so small"),
    ],
)
def test_what_float16_does_not_hold_stays(scale: float, factor: float, reason: str) -> None:
    result = rewrite(spelled(scale, factor, "float16"))
    assert reason in [row.reason for row in result.ledger]
    kinds = [node.op_type for node in result.model.graph]
    assert "LayerNormalization" not in kinds
    assert "Sqrt" in kinds
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float16)
    wide, narrow = x.astype(np.float64), float(np.float16(1e-3))
    centred = wide - wide.mean(-1, keepdims=True)
    s, t = (float(np.float16(number)) for number in (scale, factor))
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + narrow) * s * t
    found = Evaluator(result.model).run({"x": x})["y"].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(("scale", "factor"), [(300, 300), (1e-3, 1e-3)])
def test_float32_holds_both(scale: float, factor: float) -> None:
    result = rewrite(spelled(scale, factor, "float"))
    assert [node.op_type for node in result.model.graph] == ["LayerNormalization"]
