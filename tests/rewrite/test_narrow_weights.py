"""Weights of 8 bits and fewer, floats too, behind DequantizeLinear: the step takes a norm's scale, the numbers stay."""

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper, parser

import normdeploy as nd

TYPES = {
    "float8_e4m3fn": 21,
    "float8_e4m3fnuz": 21,
    "float8_e5m2": 21,
    "float8_e5m2fnuz": 21,
    "int4": 21,
    "uint4": 21,
    "int2": 25,
    "int8": 21,
    "int16": 21,
}
GRAPH = """
agraph (float[N,3,8,8] x) => (float[N,4,6,6] y) {
  w = DequantizeLinear(stored, step)
  c = Conv(x, w)
  y = BatchNormalization(c, scale, shift, mean, variance)
}
"""


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_the_step_takes_the_scale_and_the_numbers_stay_up_to_its_sign(name, negative, tmp_path):
    rng = np.random.default_rng(0)
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    limits = ml_dtypes.iinfo(dtype) if "int" in name else None
    drawn = rng.normal(size=(4, 3, 3, 3)) * (limits.max / 2 if limits else 1.0)
    stored = (drawn if limits is None else np.clip(np.rint(drawn), -limits.max * (limits.min < 0), limits.max)).astype(
        dtype
    )
    norm = {"scale": rng.uniform(0.5, 2, 4), "shift": rng.normal(size=4)}
    if negative:
        norm["scale"][1] *= -1
    norm |= {"mean": rng.normal(size=4), "variance": rng.uniform(0.5, 2, 4)}
    norm = {key: value.astype(np.float32) for key, value in norm.items()}
    step = np.float32(0.25)
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {TYPES[name]}]>{GRAPH}')
    for key, value in {**norm, "step": np.array(step), "stored": stored}.items():
        model.graph.initializer.append(numpy_helper.from_array(value, key))
    onnx.save(model, tmp_path / "net.onnx")
    result = nd.fold(tmp_path / "net.onnx", tmp_path / "folded.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.passed, result.verdict.summary()
    if negative and name == "uint4":  # without a zero point it has no negative numbers
        (row,) = result.ledger
        assert "has no opposite in uint4" in row.reason
        return
    assert [node.op_type for node in result.program.graph] == ["DequantizeLinear", "Conv"]
    kept = result.program.graph[0].inputs[0]
    assert kept is not None
    assert isinstance(kept.const_value, ir.TensorProtocol)
    sign = np.where([negative and channel == 1 for channel in range(4)], -1, 1).reshape(-1, 1, 1, 1)
    assert np.array_equal(kept.const_value.numpy().astype(np.float64), stored.astype(np.float64) * sign)
    zero = result.program.graph[0].inputs[2:]
    assert len(zero) == (name == "int8")  # a runtime that is asked for exact products gives it one zero point else

    x = rng.normal(size=(2, 3, 8, 8)).astype(np.float32)
    plain = torch.nn.functional.conv2d(torch.from_numpy(x).double(), torch.from_numpy(stored.astype(np.float64) * step))
    wide = {key: torch.from_numpy(value).double().reshape(-1, 1, 1) for key, value in norm.items()}
    expected = (plain - wide["mean"]) / torch.sqrt(wide["variance"] + 1e-5) * wide["scale"] + wide["shift"]
    found = nd.load(tmp_path / "folded.onnx")(x)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4 * np.abs(expected.numpy()).max())
