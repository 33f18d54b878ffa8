"""A layer with integer weights and a BatchNormalization between quantizers, which tests give their constants."""

from __future__ import annotations

LAYER = """
<ir_version: 10, opset_import: ["" : 20]>
g (uint8[n, 2, 4, 4] x) => (uint8[n, 3, 4, 4] y) {
    real = DequantizeLinear (x, s, zero)
    w = DequantizeLinear <axis = 0> (whole, steps, zeros)
    sums = Conv <pads = [1, 1, 1, 1]> (real, w)
    normed = BatchNormalization (sums, scale, shift, mean, variance)
    cut = Relu (normed)
    y = QuantizeLinear (cut, t, origin)
}
"""
