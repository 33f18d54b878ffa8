"""Whether this onnxruntime's SkipLayerNormalization keeps its digits: 1.28 loses most of them far from zero."""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import parser
from onnxruntime_outputs import run_onnxruntime

_ONE = """<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]>
g (float[4,8] x, float[4,8] z, float[8] s) => (float[4,8] y) {
    y = com.microsoft.SkipLayerNormalization<epsilon=1e-5>(x, z, s)
}"""


@cache
def loses_digits() -> bool:
    """Compare one at an offset of 1000 with NumPy in float64."""
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32) + np.float32(1e3)
    proto = parser.parse_model(_ONE)
    feeds = {"x": x, "z": np.zeros_like(x), "s": np.ones(8, np.float32)}
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return bool(np.abs(run_onnxruntime(proto, feeds)[0] - expected).max() > 0.01)
