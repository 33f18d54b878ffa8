"""Folds over many tokens are right, and a wrong one is caught."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.errors import RewriteError
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite
from normdeploy.rewrite.gauge.rules import products

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
agraph (float[n,{tokens},8] x) => (float[n,{tokens},{heads},2] y)
<float[n,{tokens},{width}] p, float[n,{tokens},{heads},2] r, int64[4] target = {{-1, {tokens}, {heads}, 2}}>
{{
    p = MatMul (x, w)
    r = Reshape (p, target)
    y = Mul (r, s)
}}"""


def attention(tokens: int = 50, heads: int = 3) -> ir.Model:
    rng = np.random.default_rng(0)
    model = ir.from_onnx_text(TEXT.format(tokens=tokens, heads=heads, width=2 * heads))
    arrays = {"w": rng.standard_normal((8, 2 * heads)), "s": rng.random((heads, 1)) + 0.5}
    for value in {value for node in model.graph for value in node.inputs if value is not None}:
        if value.name in arrays:
            array = arrays[value.name].astype(np.float32)
            value.const_value, value.shape = ir.tensor(array, name=value.name), ir.Shape(array.shape)
            value.dtype = ir.DataType.FLOAT
            model.graph.register_initializer(value)
    return model


def test_a_fold_over_many_tokens_is_right_and_a_wrong_one_is_still_caught(monkeypatch):
    model = attention()
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 50, 8)).astype(np.float32)}
    expected = Evaluator(model).run(feeds)["y"]
    result = rewrite(model)
    assert [node.op_type for node in result.model.graph] == ["MatMul", "Reshape"]
    got = Evaluator(result.model).run(feeds)["y"]
    assert float((got - expected).abs().max()) <= 1e-12 * float(expected.abs().max())
    right = products.rescale
    monkeypatch.setattr(
        products,
        "rescale",
        lambda edit, at, weight, factor, rows: right(edit, at, weight, factor * 1.000001, rows=rows),
    )
    with pytest.raises(RewriteError, match="gauge of MatMul"):
        rewrite(attention())
