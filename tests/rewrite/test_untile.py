"""Running statistics that are repeated per sample are read once, over the channels."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from normdeploy.graph import Evaluator
from normdeploy.rewrite.untile import UntileStatistics

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n,3,4,5] x) => (float[n,3,4,5] y)
<float[3] g = {1.5, 0.5, 2.0}, float[3] b = {1.0, -1.0, 0.5}, float[3] m = {0.1, 0.2, 0.3},
 float[3] v = {1.0, 2.0, 0.5},
 int64[4] there = {1, -1, 4, 5}, int64[4] back = {-1, 3, 4, 5}, float[1,c,4,5] w, float[1,c,4,5] z>
{
    s = Shape <start = 0, end = 1> (x)
    w = Reshape (x, there)
    gn = Tile (g, s)
    bn = Tile (b, s)
    mn = Tile (m, s)
    vn = Tile (v, s)
    z = BatchNormalization (w, gn, bn, mn, vn)
    y = Reshape (z, back)
}"""


def test_it_is_a_batch_norm_over_the_channels():
    model = ir.from_onnx_text(TEXT)
    x = np.random.default_rng(0).standard_normal((3, 3, 4, 5))
    expected = Evaluator(model).run({"x": x})["y"].numpy()
    assert UntileStatistics()(model).modified
    assert [node.op_type for node in model.graph] == ["BatchNormalization"]
    onnx.checker.check_model(ir.to_proto(model))
    np.testing.assert_allclose(Evaluator(model).run({"x": x})["y"].numpy(), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("there = {1, -1, 4, 5}", "there = {1, -1, 5, 4}"),  # other trailing dimensions
        ("end = 1> (x)", "end = 2> (x)"),  # another count
        ("y = Reshape (z, back)", "t = Add (z, z)\n y = Reshape (t, back)"),  # something in between
        ("BatchNormalization (w,", "BatchNormalization <training_mode = 1> (w,"),  # statistics of the batch
    ],
)
def test_anything_else_stays(old, new):
    assert old in TEXT
    text = TEXT.replace(old, new)
    if "5, 4}" in new:
        text = text.replace("float[1,c,4,5]", "float[1,c,5,4]")
    model = ir.from_onnx_text(text)
    assert not UntileStatistics()(model).modified
