"""Exact constants: float64 until one rounding."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.graph import ExactTensor, Parts, constant64


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
    if dtype == ir.DataType.BFLOAT16:
        exact = np.copysign([_nearest_bfloat16(float(exact[0]))], exact)
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


def _nearest_bfloat16(value: float) -> float:
    """The nearest number of 8 bits, ties to even, in exact arithmetic."""
    if value == 0:
        return 0.0
    exact = Fraction(value)
    power = max(math.frexp(value)[1] - 1, -126)
    unit = Fraction(2) ** (power - 7)
    return float(round(exact / unit) * unit)


@given(
    st.lists(
        st.builds(
            lambda head, tail, sign: sign * head * (1 + 2.0**-8 * tail),
            st.floats(1e-37, 1e37),
            st.sampled_from([0.0, 1.0, 1 + 2.0**-30, 1 - 2.0**-30, 3.0, 3 - 2.0**-32]),
            st.sampled_from([-1.0, 1.0]),
        ),
        min_size=1,
    )
)
def test_bfloat16_is_rounded_once(values: list[float]):
    rounded = ExactTensor(lambda: np.array(values), ir.DataType.BFLOAT16, (len(values),)).numpy()
    assert [float(item) for item in rounded] == [_nearest_bfloat16(value) for value in values]


@pytest.mark.parametrize("head", [1.0, -1.5, 2.0**-130, 2.0**120])
@pytest.mark.parametrize("tail", [-1, 0, 1])
def test_halfway_to_the_next_bfloat16_and_a_little_aside(head: float, tail: int):
    """What float32 does not see decides."""
    unit = 2.0 ** (max(math.frexp(head)[1] - 1, -126) - 7)
    value = abs(head) + unit / 2 + tail * unit * 2.0**-40
    (rounded,) = ExactTensor(lambda: np.array([math.copysign(value, head)]), ir.DataType.BFLOAT16, (1,)).numpy()
    assert float(rounded) == math.copysign(_nearest_bfloat16(value), head)


def test_what_bfloat16_does_not_hold():
    values = np.array([np.inf, -np.inf, np.nan, 1e39, -1e300, 3.4e38, 1e-60, -0.0])
    rounded = ExactTensor(lambda: values, ir.DataType.BFLOAT16, (8,)).numpy().astype(np.float64)
    np.testing.assert_array_equal(rounded, [np.inf, -np.inf, np.nan, np.inf, -np.inf, np.inf, 0.0, 0.0])
    assert np.signbit(rounded[-1])


def test_pieces_of_a_bfloat16_are_rounded_once():
    value = np.full((4, 3), 1 + 2.0**-8 + 2.0**-40)
    parts = Parts(0, lambda: lambda start, stop: value[start:stop].copy())
    tensor = ExactTensor(lambda: value, ir.DataType.BFLOAT16, (4, 3), parts=parts)
    assert (tensor.numpy().astype(np.float64) == 1 + 2.0**-7).all()
