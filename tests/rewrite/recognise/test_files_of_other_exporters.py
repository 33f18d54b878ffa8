"""Graphs that never met the dynamo exporter: old operator sets, axes as attributes, no shapes on inner values."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

# what the TorchScript exporter writes for a LayerNorm module below operator set 17
TORCHSCRIPT = """
<ir_version: 6, opset_import: ["" : 13]>
net (float[n, t, 4] x) => (float[n, t, 4] y)
<float[4] g = {0.5, 1.5, -1, 2}, float[4] b = {0.1, 0.2, 0.3, 0.4}, float two = {2}, float e = {0.001}>
{
  m = ReduceMean <axes = [-1]> (x)
  d = Sub(x, m)
  q = Pow(d, two)
  v = ReduceMean <axes = [-1]> (q)
  ve = Add(v, e)
  s = Sqrt(ve)
  z = Div(d, s)
  zg = Mul(z, g)
  y = Add(zg, b)
}
"""

# what Keras converters write: scale joined to the root, moments by two reductions of x
KERAS = """
<ir_version: 6, opset_import: ["" : 12]>
net (float[n, t, 4] x) => (float[n, t, 4] y)
<float[4] g = {0.5, 1.5, -1, 2}, float[4] b = {0.1, 0.2, 0.3, 0.4}, float e = {0.001}>
{
  m = ReduceMean <axes = [2], keepdims = 1> (x)
  d = Sub(x, m)
  q = Mul(d, d)
  v = ReduceMean <axes = [2], keepdims = 1> (q)
  ve = Add(v, e)
  s = Sqrt(ve)
  r = Reciprocal(s)
  f = Mul(r, g)
  mf = Mul(m, f)
  c = Sub(b, mf)
  xf = Mul(x, f)
  y = Add(xf, c)
}
"""


@pytest.mark.parametrize("text", [TORCHSCRIPT, KERAS])
def test_old_files_are_read(text, reference):
    model = ir.from_onnx_text(text)
    result = rewrite(model)
    assert [node.op_type for node in result.model.graph] == ["LayerNormalization"]
    assert [(row.kind, row.action) for row in result.ledger] == [("LayerNormalization", "fused")]
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    expected = reference(x, (-1,), epsilon=0.001, scale=[0.5, 1.5, -1, 2], shift=[0.1, 0.2, 0.3, 0.4])
    torch.testing.assert_close(Evaluator(result.model).run({"x": x})["y"], expected, rtol=1e-6, atol=1e-6)


def test_norm_on_both_sides_of_a_shared_projection_keeps_its_users():
    """The centred values are an output too: the norm is recognised without taking them away."""
    text = TORCHSCRIPT.replace("=> (float[n, t, 4] y)", "=> (float[n, t, 4] y, float[n, t, 4] d)")
    model = ir.from_onnx_text(text)
    result = rewrite(model)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    old, new = (Evaluator(item).run({"x": x}) for item in (model, result.model))
    for name in ("y", "d"):
        torch.testing.assert_close(new[name], old[name], rtol=1e-6, atol=1e-6)
    assert [row.kind for row in result.ledger if row.kind == "LayerNormalization"] == ["LayerNormalization"]
