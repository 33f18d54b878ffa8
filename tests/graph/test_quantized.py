"""QuantizeLinear and DequantizeLinear in float64 against NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.graph import Evaluator

TEXT = """<ir_version: 10, opset_import: ["" : {opset}]>
g (float[3,4] x) => (float[3,4] y) {{
    q = QuantizeLinear {attributes} (x, s, z) y = DequantizeLinear {attributes} (q, s, z)
}}"""


def constant(model: ir.Model, name: str, array: np.ndarray) -> None:
    value = next(value for node in model.graph for value in node.inputs if value is not None and value.name == name)
    value.const_value = ir.tensor(array, name=name)
    value.shape, value.dtype = ir.Shape(array.shape), value.const_value.dtype
    model.graph.register_initializer(value)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([np.int8, np.uint8, np.int16, np.uint16]),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([13, 18, 21]),
)
@settings(deadline=None, max_examples=40)
def test_there_and_back(seed, dtype, axis, opset):
    rng = np.random.default_rng(seed)
    model = ir.from_onnx_text(TEXT.format(opset=opset, attributes="" if axis is None else f"<axis = {axis}>"))
    count = () if axis is None else ((3, 4)[axis],)
    info = np.iinfo(dtype)
    steps = rng.uniform(0.01, 0.1, count).astype(np.float32)
    zero = rng.integers(info.min, info.max, count, endpoint=True).astype(dtype)
    constant(model, "s", steps)
    constant(model, "z", zero)
    x = rng.normal(size=(3, 4)).astype(np.float32)
    shape = () if axis is None else [-1 if at == axis else 1 for at in range(2)]
    step, offset = steps.astype(np.float64).reshape(shape), zero.astype(np.float64).reshape(shape)
    whole = np.clip(np.rint(x.astype(np.float64) / step) + offset, info.min, info.max)
    got = Evaluator(model).run({"x": x})["y"].numpy()
    np.testing.assert_allclose(got, (whole - offset) * step, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("dtype", "block"), [(ir.DataType.INT4, 2), (ir.DataType.UINT4, 3), (ir.DataType.INT8, 2)])
def test_blocks_and_four_bits(dtype, block):
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 7, (5, 4))
    steps = rng.uniform(0.1, 1, (-(-5 // block), 4)).astype(np.float32)
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[5,4] x) => (float[5,4] y) {{ w = DequantizeLinear <axis = 0, block_size = {}> (q, s) y = Add (x, w) }}"""
    model = ir.from_onnx_text(text.format(block))
    constant(model, "s", steps)
    constant(model, "q", stored.astype(dtype.numpy()))
    got = Evaluator(model).run({"x": np.zeros((5, 4))})["y"].numpy()
    expected = stored * np.repeat(steps.astype(np.float64), block, axis=0)[:5]
    np.testing.assert_allclose(got, expected, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_what_is_no_number_is_the_lowest_integer(dtype):
    """As in onnxruntime; infinities are the type's ends."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => ({dtype}[N] y)'
        f"<float q = {{0.1}}, {dtype} z = {{5}}> {{ y = QuantizeLinear (x, q, z) }}"
    )
    x = np.array([np.nan, np.inf, -np.inf, 0.26, -0.26] * 7, np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = Evaluator(ir.from_proto(model)).run({"x": x})["y"].numpy()
    np.testing.assert_array_equal(found.astype(np.int64), session.run(None, {"x": x})[0].astype(np.int64))
