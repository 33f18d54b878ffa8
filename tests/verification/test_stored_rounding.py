"""Stored numbers against what they should be: what is told, however soon it is seen that they are others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.verification import verify
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.gauges import alike, composed
from normdeploy.verification.derivation.related.stored_rounding import compare
from normdeploy.verification.hints import unchanged

FLOAT = ir.DataType.FLOAT
SIZES = [(20, 20), (130, 120)]
"""Looked at as a whole, and by a few rows first."""


def drawn(shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 1.0, shape).astype(np.float32)


@pytest.mark.parametrize("shape", SIZES)
def test_other_numbers_are_told_by_the_one_that_is_furthest_off(shape: tuple[int, int]):
    want = drawn(shape)
    have = want * np.float32(1.01)
    have[7, 5] = 100.0  # in no row that is looked at first
    found = compare(have, FLOAT, want)
    assert found is not None
    assert not found.rounding
    assert (
        found.text == f"is 100 at [7, 5]; expected {float(want[7, 5]):.12g} ({want.size} of {want.size} numbers differ)"
    )
    named = found.of("weights of Conv")
    assert (named.text, named.rounding) == (f"weights of Conv: {found.text}", False)


@pytest.mark.parametrize("shape", SIZES)
def test_one_number_among_right_ones_is_found(shape: tuple[int, int]):
    want = drawn(shape)
    have = want.copy()
    have[11, 3] += 0.25
    found = compare(have, FLOAT, want.astype(np.float64), np.ones(shape))
    assert found is not None
    assert not found.rounding
    assert "at [11, 3]" in found.text
    assert f"(1 of {want.size} numbers differ)" in found.text


@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_matrices_are_read_alike_however_they_lie_in_memory(orders: str):
    """Both along memory: one that a Transpose turned takes three times as long otherwise."""
    drawn_numbers = np.random.default_rng(1)
    want = drawn_numbers.standard_normal((300, 500)).astype(np.float32)
    factor = drawn_numbers.uniform(0.5, 2.0, (300, 1))
    right = (want.astype(np.float64) * factor).astype(np.float32)
    laid = [np.array(array, order=order) for array, order in zip((right, want), orders, strict=True)]
    assert compare(laid[0], FLOAT, laid[1], factor) is None
    laid[0][131, 402] *= np.float32(1.5)
    found = compare(laid[0], FLOAT, laid[1], factor)
    assert found is not None
    assert not found.rounding
    number = float(want[131, 402]) * float(factor[131, 0])
    assert f"at [131, 402]; expected {number:.12g} (1 of 150000 numbers differ)" in found.text


def test_a_number_beyond_float32_is_no_infinity():
    want = np.full(8, 3e38, np.float32)
    found = compare(np.full(8, np.inf, np.float32), FLOAT, want, np.full(8, 2.0))
    assert found is not None
    assert not found.rounding


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize(("units", "rounding"), [(0, None), (4, True), (400, False)])
def test_units_in_the_last_place_are_another_rounding_as_long_as_they_are_few(
    shape: tuple[int, int], units: int, rounding: bool | None
):
    want = drawn(shape)
    have = (want.view(np.int32) + units).view(np.float32)
    found = compare(have, FLOAT, want)
    assert (None if found is None else found.rounding) is rounding


@pytest.mark.parametrize("shape", SIZES)
def test_a_large_number_elsewhere_allows_small_ones_its_own_rounding(shape: tuple[int, int]):
    """As sums that cancel leave it: a unit of the largest, in the rows looked at or not."""
    want = drawn(shape)
    want[7, 5] = 2.0**20
    have = want.copy()
    have[0, 0] += np.float32(2.0**-4)  # half a unit of the largest
    found = compare(have, FLOAT, want.astype(np.float64) * (1 + 2.0**-40))  # computed: no float32 is what is expected
    assert found is not None
    assert found.rounding


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_one_number_among_copies_is_no_other_rounding(shape: tuple[int, int], dtype: type[np.floating]):
    """A weight of float16 that is 4 units off is 0.4 % off, and nothing was computed that could have rounded it."""
    want = drawn(shape).astype(dtype)
    have = want.copy()
    have[7, 5] += 4 * np.spacing(have[7, 5])
    kind = ir.DataType.from_numpy(np.dtype(dtype))
    found = compare(have, kind, want)
    assert found is not None
    assert not found.rounding
    assert f"(1 of {want.size} numbers differ)" in found.text
    for near in (
        compare(have, kind, want.astype(np.float64) * (1 + 2.0**-40)),
        compare(have[7:8, 5], kind, want[7:8, 5]),
    ):
        assert near is not None
        assert near.rounding  # of a fold, or of one number alone


@pytest.mark.parametrize("shape", [(1,), *SIZES])
@pytest.mark.parametrize(
    ("want", "have"), [(-np.inf, -1e4), (-np.inf, -3.4028235e38), (np.inf, -np.inf), (1.0, np.inf)]
)
def test_no_number_is_near_infinity(shape: tuple[int, ...], want: float, have: float):
    """Rounding in proportion to the number is infinite there: a mask of -10000 stood for one of -inf."""
    wanted = np.ones(shape)
    wanted[-1] = want
    found = compare(np.where(wanted == want, have, 1.0).astype(np.float32), FLOAT, wanted)
    assert found is not None
    assert not found.rounding
    assert compare(wanted.astype(np.float32), FLOAT, wanted) is None
    assert compare(wanted.astype(np.float32), FLOAT, wanted, np.ones(shape), size=1.0) is None


MASKED = """<ir_version: 10, opset_import: ["": 20]> g (float[2,3] x, bool[2,3] m) => (float[2,3] z)
<float[3] s = {{2.0, 0.5, 1.5}}> {{ a = Mul(x, s) {made} y = Where(m, a, c) z = Softmax(y) }}"""
MINUS_INFINITY = "c = Constant<value = float {-inf}>()"


@pytest.mark.parametrize(
    "made",
    ["c = Constant<value = float {-10000.0}>()", "d = Constant<value = float {10000.0}>() c = Neg(d)"],
    ids=["stored", "computed"],
)
def test_a_mask_of_a_large_number_is_not_one_of_minus_infinity(made: str):
    """Rows that are masked whole are NaN by one, and alike by the other."""
    source, file = (ir.from_onnx_text(MASKED.format(made=text)) for text in (MINUS_INFINITY, made))
    shapes = [{"x": (2, 3), "m": (2, 3)}]
    assert check_derivation(source, source.clone(), unchanged(source), shapes).confirmed
    found = check_derivation(source, file, unchanged(source), shapes)
    assert not found.confirmed
    assert "Where" in [row.node.op_type for row in found.open]


def test_an_infinite_shift_is_no_rounding_of_nothing():
    one, nought, much = np.ones(1), np.zeros(1), np.full(1, -np.inf)
    assert composed(one, much, one, one)[1].tolist() == [-np.inf]
    assert composed(one, -one, one, one)[1].tolist() == [0.0]
    assert alike(one, one * (1 + 1e-16))
    assert not alike(nought, much)


@pytest.mark.parametrize("damaged", [None, "w", "b"])
def test_one_integer_of_a_quantized_operator_is_told_though_few_steps_turn(
    damaged: str | None, write: Callable[..., Path]
):
    """A bias that is one off turns one result in hundreds by a step, as an optimizer's rounding does."""
    rng = np.random.default_rng(0)
    known = {
        "s": np.float32(0.02), "z": np.uint8(100), "n": np.int8(0), "t": np.float32(0.3),
        "b": np.array([10, 5, 50], np.int32),
        "w": rng.integers(-100, 100, (3, 4, 3, 3)).astype(np.int8),
    }  # fmt: skip
    text = "g (uint8[N,4,6,6] x) => (uint8[N,3,A,B] y) { y = QLinearConv(x, s, z, w, s, n, t, z, b) }"
    right = write(text, "right", **known)
    if damaged:
        known[damaged] = known[damaged].copy()
        known[damaged].reshape(-1)[0] += 1
    verdict = verify(right, write(text, "file", **known), level="quick")
    assert verdict.check("derivation").status == ("fail" if damaged else "pass")


@pytest.mark.parametrize(
    "ends",
    [
        "y = MatMul(n, w)",
        "m = ReduceMean<keepdims=0>(x) c = Greater(m, o) y = If(c) <then_branch = t () => (float[N,4] a) "
        "{ a = MatMul(n, w) }, else_branch = e () => (float[N,4] b) { b = Relu(n) }>",
    ],
    ids=["read by an operator", "read by branches alone"],
)
def test_an_epsilon_that_is_a_thousandth_off_is_told(ends: str, write: Callable[..., Path]):
    """Among numbers of a variance near 1 it is less than a rounding."""
    known = {"s": np.ones(4, np.float32), "w": np.eye(4, dtype=np.float32), "o": np.float32(0)}
    text = f"g (float[N,4] x) => (float[N,4] y) {{ n = LayerNormalization<axis=-1, epsilon=@>(x, s) {ends} }}"
    right = write(text.replace("@", "0.00001"), "right", **known)
    for epsilon, status in (("0.00001", "pass"), ("0.00001001", "fail")):
        verdict = verify(right, write(text.replace("@", epsilon), "file", **known), level="quick")
        assert verdict.check("derivation").status == status, verdict.summary()
