"""Sizes of resampled tensors: what a float32 runtime rounds down, not what float64 would."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnxruntime_outputs import run_onnxruntime
from torch.nn import functional

from normdeploy.graph import Evaluator

RESIZE = 'y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">'
CASES = {
    "Resize": (19, f"{RESIZE} (x, roi, scales)"),
    "Resize of axes": (19, f"{RESIZE.replace('<', '<axes = [2, 3], ')} (x, roi, two)"),
    "Resize 10": (10, "y = Resize (x, scales)"),
    "Upsample": (9, "y = Upsample (x, scales)"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("size", "scale"), [(5, 1.8), (10, 0.7), (7, 1.5), (3, 2.0)])
def test_sizes_are_the_runtimes(case: str, size: int, scale: float):
    if case == "Upsample" and scale < 1:
        pytest.skip("an Upsample does not shrink")
    opset, body = CASES[case]
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[1,1,{size},{size}] x) => (float[a,b,c,d] y)
        <float[4] scales = {{1.0, 1.0, {scale}, {scale}}}, float[2] two = {{{scale}, {scale}}}, float[0] roi = {{}}>
        {{ {body} }}"""
    )
    x = np.arange(size * size, dtype=np.float32).reshape(1, 1, size, size)
    got = Evaluator(ir.from_proto(proto)).run({"x": x})["y"]
    assert tuple(got.shape) == run_onnxruntime(proto, {"x": x})[0].shape
    assert tuple(got.shape) == tuple(functional.interpolate(torch.from_numpy(x), scale_factor=scale).shape)


@pytest.mark.parametrize("scale", [1.5, 2.3, 0.6])
@pytest.mark.parametrize(("mode", "kind"), [("cubic", "bicubic"), ("linear", "bilinear")])
def test_weights_are_computed_in_float64(mode: str, kind: str, scale: float):
    """The coefficient of a cubic Resize is stored in float32; its weights follow from it in float64, as torch's do."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 1, 9, 8)))
    stored = float(np.float32(scale))
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : 19]> g (float[1,1,9,8] x) => (float[a,b,c,d] y)
        <float[4] scales = {{1.0, 1.0, {scale}, {scale}}}>
        {{ y = Resize <mode = "{mode}", coordinate_transformation_mode = "half_pixel"> (x, , scales) }}"""
    )
    (found,) = Evaluator(model).run({"x": x.numpy()}).values()
    expected = functional.interpolate(x, scale_factor=stored, mode=kind)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
