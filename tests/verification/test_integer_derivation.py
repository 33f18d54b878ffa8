"""Files on integers followed by the checker: confirmed as they are, and not once a number computes another."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from integer_layers import LAYER
from onnx import helper, numpy_helper, parser
from onnxruntime_outputs import run_onnxruntime

from normdeploy.graph.derivation import Derivation
from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.integers.on_intervals import Leaf, pieces
from normdeploy.verification.derivation.integers.spans import Unclear
from normdeploy.verification.derivation.integers.stepwise import Cut, Decided, Sloped, levels, scaled
from normdeploy.verification.derivation.side.checked_side import Side

SHAPES = [{"x": (2, 2, 4, 4)}, {"x": (5, 2, 4, 4)}]


def source(rng, *, norm=True, slope=None, kind=np.uint8, power=False):
    model = parser.parse_model(LAYER)
    unit = np.float32(0.25) if power else np.float32(0.02)
    constants = {
        "s": unit, "t": np.float32(0.5) if power else np.float32(rng.uniform(0.01, 1)), "zero": np.uint8(3),
        "zeros": np.zeros(3, np.int8), "origin": kind(rng.integers(0, 100)),
        "whole": rng.integers(-127, 128, (3, 2, 3, 3)).astype(np.int8),
        "steps": np.full(3, 0.125, np.float32) if power else rng.uniform(0.001, 0.01, 3).astype(np.float32),
    }  # fmt: skip
    if norm:
        signs = rng.choice([-1.0, 1.0], 3)
        constants |= {
            "scale": (signs * rng.uniform(0.2, 2, 3)).astype(np.float32),
            "shift": rng.normal(size=3).astype(np.float32),
            "mean": rng.normal(size=3).astype(np.float32),
            "variance": rng.uniform(0.1, 2, 3).astype(np.float32),
        }
    else:
        del model.graph.node[3]
        model.graph.node[3].input[0] = "sums"
    if slope is not None:
        place = 4 if norm else 3
        read = model.graph.node[place].input[0]
        model.graph.node[place].CopyFrom(helper.make_node("LeakyRelu", [read], ["cut"], alpha=slope))
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())
    model.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    return ir.from_proto(model)


def written(model):
    return ir.from_proto(ir.to_proto(rewrite(model.clone(), integer=True).model))


def checked(model, file):
    return check_derivation(model, file, Derivation(), SHAPES)


@settings(max_examples=15, phases=[Phase.generate], deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([None, 0.125]), st.sampled_from([np.uint8, np.int8]),
    st.booleans(),
)  # fmt: skip
def test_every_operator_is_confirmed_without_a_hint(seed, norm, slope, kind, power):
    model = source(np.random.default_rng(seed), norm=norm, slope=slope, kind=kind, power=power)
    file = written(model)
    assert "ConvInteger" in [node.op_type for node in file.graph]
    report = checked(model, file)
    assert report.confirmed
    assert not report.open


def outputs(file, x):
    return run_onnxruntime(file, {"x": x})[0]


@pytest.mark.parametrize("power", [False, True])
def test_a_number_that_changes_an_output_is_never_confirmed(power):
    model = source(np.random.default_rng(7), norm=not power, power=power)
    good = written(model)
    x = np.random.default_rng(0).integers(0, 256, (64, 2, 4, 4)).astype(np.uint8)
    want = outputs(good, x)
    caught, side = 0, Side(model, SHAPES)
    for name in list(good.graph.initializers):
        for step in (1, -1, 5):
            wrong = good.clone()
            value = wrong.graph.initializers[name]
            array = np.array(value.const_value.numpy())
            array.reshape(-1)[-1] += np.asarray(step).astype(array.dtype)
            value.const_value = ir.tensor(array, name=name)
            try:
                same = np.array_equal(outputs(wrong, x), want)
            except Exception:  # onnxruntime refuses an index outside its table
                same = False
            if not same:
                caught += 1
                assert not checked(side, wrong).confirmed, (name, step)
    assert caught > 10


def test_a_wrong_threshold_and_a_wrong_weight_are_named():
    model = source(np.random.default_rng(3), norm=False, power=True)  # all ties: a search among thresholds
    for part, says in ((".thresholds", "expected"), (".weight", "stands for")):
        wrong = written(model)
        name = next(name for name in wrong.graph.initializers if name.endswith(part))
        value = wrong.graph.initializers[name]
        array = np.array(value.const_value.numpy())
        array.reshape(-1)[40 if part == ".thresholds" else 0] += 1
        value.const_value = ir.tensor(array, name=name)
        report = checked(model, wrong)
        assert not report.confirmed
        assert report.contradicted
        assert any(says in row.reason for row in report.contradicted)


def net(text):
    return Side(ir.from_proto(parser.parse_model(text)), [{"q": (1, 2)}])


HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'


@given(st.integers(-50, 50), st.integers(-40, 40), st.integers(1, 30), st.integers(-9, 0), st.integers(0, 9))
def test_intervals_cover_the_range_and_say_what_every_integer_becomes(factor, addend, divisor, low, high):
    side = net(
        f"""{HEAD}g (int32[1, 2] q) => (int8[1, 2] y) <int32[2] m = {{{factor}, {-factor}}}, int32[1] c = {{{addend}}},
        int32[1] d = {{{divisor}}}, int32 l = {{{low}}}, int32 h = {{{high}}}>
        {{ a = Mul (q, m) b = Add (a, c) e = Div (b, d) f = Clip (e, l, h) y = Cast <to = 3> (f) }}"""
    )
    start = side.graph.inputs[0]
    leaf = Leaf(start, ir.DataType.INT32, -1, 2, np.array([-60, -30]), np.array([50, 70]))
    found = pieces(side, side.graph.outputs[0], leaf)
    seen = {}
    for channel, first, last, value in zip(found.channel, found.low, found.high, found.value, strict=True):
        for q in range(first, last + 1):
            assert (channel, q) not in seen
            seen[channel, q] = value
    expected = {}
    for channel, sign in enumerate((1, -1)):
        for q in range(int(leaf.low[channel]), int(leaf.high[channel]) + 1):
            whole = int(Fraction(sign * factor * q + addend, divisor))  # towards 0
            expected[channel, q] = min(max(whole, low), high)
    assert seen == expected


def test_what_may_wrap_around_is_not_followed():
    side = net(
        f"""{HEAD}g (int32[1, 2] q) => (int32[1, 2] y) <int32[1] m = {{70000}}, int32[1] d = {{70000}}>
        {{ a = Mul (q, m) y = Div (a, d) }}"""
    )
    ends = np.array([-40000, -40000]), np.array([40000, 40000])
    with pytest.raises(Unclear, match="may leave the range of int32"):
        pieces(side, side.graph.outputs[0], Leaf(side.graph.inputs[0], ir.DataType.INT32, -1, 2, *ends))


@given(st.integers(-300, 300), st.sampled_from([0.5, 0.25, 0.3, -0.7]), st.sampled_from([0.5, -1.5, 0.1, 0.0]))
def test_levels_are_those_of_exact_arithmetic(x, times, add):
    steps = [scaled(times, 2.0, add), Sloped(0.125), Decided("round"), Cut(-7, 100), scaled(3.0), Decided("above", 4.0)]
    y = Fraction(x) * Fraction(times) / 2 + Fraction(add)
    y = y if y >= 0 else y / 8
    whole = min(max(Fraction(round(y)), Fraction(-7)), Fraction(100)) * 3
    low, high = levels(steps, np.array([x]), np.array([0]))
    assert low[0] == high[0] == int(whole > 4)


def test_constants_that_are_not_exact_leave_open_what_lies_at_a_tie_but_no_more():
    third = scaled(1 / 3, exact=False)
    x = np.arange(-9, 10)
    low, high = levels([third, scaled(1.5, exact=True), Decided("round")], x, np.zeros(19, np.int64))
    near = np.abs(np.abs(x * 0.5) % 1 - 0.5) < 1e-9  # float64's 1/3 is less than a third: x 1.5 / 3 is no exact tie
    assert (low[near] <= high[near]).all()
    assert (low[~near] == high[~near]).all()
    assert (low[~near] == np.rint(x[~near] / 2)).all()


@pytest.mark.parametrize("name", ["mean", "steps", "t", "variance"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_not_finite_confirm_nothing_and_raise_nothing(name, number):
    model = source(np.random.default_rng(5))
    file = written(model)
    value = model.graph.initializers[name]
    array = np.array(value.const_value.numpy())
    array.reshape(-1)[0] = number
    value.const_value = ir.tensor(array, name=name)
    assert not checked(model, file).confirmed
