"""Exact constants: float64 until one rounding."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.graph import ExactTensor, constant64


@settings(max_examples=40, deadline=None)
@given(
    value=st.floats(-1e4, 1e4),
    factors=st.lists(st.floats(0.1, 3), min_size=1, max_size=5),
    dtype=st.sampled_from([ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16]),
)
def test_a_chain_of_folds_rounds_once(value, factors, dtype):
    tensor = ir.Tensor(np.array([value], np.float32))
    exact = np.array([value], np.float32).astype(np.float64)
    current = ExactTensor(lambda: tensor.numpy().astype(np.float64), dtype, (1,))
    for factor in factors:
        previous = current
        current = ExactTensor(lambda previous=previous, factor=factor: previous.numpy64() * factor, dtype, (1,))
        exact = exact * factor
    assert current.numpy64() == exact
    target = {ir.DataType.FLOAT: np.float32, ir.DataType.FLOAT16: np.float16, ir.DataType.BFLOAT16: ml_dtypes.bfloat16}
    with np.errstate(over="ignore"):  # beyond the dtype's range the rounding is infinity
        rounded = exact.astype(target[dtype])
    assert current.numpy() == rounded
    assert current.tobytes() == rounded.tobytes()


def test_a_wrong_shape_is_refused():
    with pytest.raises(ValueError, match="expected \\(2,\\)"):
        ExactTensor(lambda: np.zeros(3), ir.DataType.FLOAT, (2,)).numpy64()


def test_an_initializer_that_is_a_graph_input_is_no_constant():
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x, float[2] w = {1, 2}) => (float[2] y)'
        " <float[2] b = {3, 4}> { c = Constant <value = float[2] {5, 6}> () t = Mul(x, w) u = Add(t, b) y = Add(u, c) }"
    )
    nodes = {node.outputs[0].name: node for node in model.graph}
    assert constant64(nodes["t"].inputs[1]) is None
    assert constant64(nodes["u"].inputs[1]).tolist() == [3, 4]
    assert constant64(nodes["y"].inputs[1]).tolist() == [5, 6]
    assert constant64(nodes["y"].inputs[0]) is None
    assert constant64(None) is None


def test_it_can_be_shown():
    tensor = ExactTensor(lambda: np.zeros(3), ir.DataType.FLOAT, (3,), "w")
    assert repr(tensor) == "ExactTensor<FLOAT,[3]>(name='w')"
