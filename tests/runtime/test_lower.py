"""The variant in float16: graphs that the converter alone makes invalid."""

from __future__ import annotations

import numpy as np
import onnx

from normdeploy.runtime import load
from normdeploy.runtime.tuning.half_precision import write_float16


def test_a_norm_whose_inverse_deviation_is_read_stays_in_float32(write_model):
    draw = np.random.default_rng(4)
    scale, weight = draw.normal(size=6).astype(np.float32), draw.normal(size=(6, 5)).astype(np.float32)
    path = write_model(
        """net (float[batch, 6] x) => (float[batch, 5] y) {
            n, , r = LayerNormalization <epsilon = 1e-6> (x, g)
            z = Mul(n, r)
            y = MatMul(z, W)
        }""",
        {"g": scale, "W": weight},
    )
    target = path.with_name("half.onnx")
    write_float16(path, target)
    half = onnx.load(target).graph
    assert {tensor.name: tensor.data_type for tensor in half.initializer}["W"] == onnx.TensorProto.FLOAT16
    x = draw.normal(size=(7, 6))
    centred = x - x.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    truth = (centred * inverse * scale * inverse) @ weight
    found = load(target)(x.astype(np.float32))
    np.testing.assert_allclose(found, truth, rtol=0, atol=0.01 * np.abs(truth).max())
    assert np.abs(found - truth).max() > 1e-5  # it did compute in less than float32
