"""Pads that add on one side and take off on the other, against onnxruntime on the same file."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser
from onnxruntime_outputs import run_onnxruntime

from normdeploy.graph import Evaluator


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize(("low", "high"), list(itertools.product([-1, 0, 2], repeat=2)))
def test_a_negative_width_takes_off_before_the_rest_goes_round(mode: str, low: int, high: int):
    text = f"""<ir_version: 9, opset_import: ["" : 20]> g (float[2, 5] x) => (float[a, b] y)
        <int64[4] p = {{0, {low}, 0, {high}}}> {{ y = Pad <mode = "{mode}"> (x, p) }}"""
    model = parser.parse_model(text)
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    (want,) = run_onnxruntime(model, {"x": x})
    np.testing.assert_array_equal(Evaluator(ir.from_proto(model)).run({"x": x})["y"].numpy(), want)
