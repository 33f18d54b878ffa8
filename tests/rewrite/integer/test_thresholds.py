"""Integer functions of accumulators against exact arithmetic on every integer of the range."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.errors import RewriteError
from normdeploy.rewrite.integer import thresholds as module
from normdeploy.rewrite.integer.monotone import Chain, Clamp, Exceeds, Leaky, Level, Map, Rounds, Signs
from normdeploy.rewrite.integer.multiplier import multiplier_of
from normdeploy.rewrite.integer.thresholds import breakpoints, thresholds_of

settings.load_profile("affine")
SCALE = st.one_of(
    st.sampled_from([Fraction(1, 2), Fraction(1, 4), Fraction(-1, 8), Fraction(1), Fraction(0), Fraction(3, 8)]),
    st.floats(-4, 4, width=32).map(Fraction),
)
SHIFT = st.one_of(st.integers(-40, 40).map(lambda n: Fraction(n, 4)), st.floats(-9, 9, width=32).map(Fraction))
POSITIVE = st.one_of(
    st.sampled_from([Fraction(1, 4), Fraction(1, 2), Fraction(1)]), st.floats(0.0625, 3, width=32).map(Fraction)
)


def even(x: Fraction) -> int:
    """The nearest integer, halves to even, by the definition."""
    below = math.floor(x)
    rest = x - below
    if rest == Fraction(1, 2):
        return below if below % 2 == 0 else below + 1
    return below if rest < Fraction(1, 2) else below + 1


def quantized(x: Fraction, step: Fraction, zero: int, low: int, high: int) -> int:
    return min(max(even(x / step) + zero, low), high)


@st.composite
def rounding(draw) -> Rounds:
    low = draw(st.sampled_from([0, -8, -128, -7]))
    high = draw(st.sampled_from([1, 7, 15, 127]))
    return Rounds(draw(POSITIVE), draw(st.integers(max(low, -5), min(high, 5))), low, high)


@st.composite
def parts(draw):
    """A chain of two channels, and what it is as a function written out by itself."""
    functions, written = [], []
    for kind in draw(st.lists(st.sampled_from(["map", "clamp", "leaky", "level"]), min_size=1, max_size=4)):
        if kind == "map":
            a, b = draw(st.tuples(SCALE, SCALE)), draw(st.tuples(SHIFT, SHIFT))
            functions.append(Map(a, b))
            written.append(lambda x, c, a=a, b=b: a[c] * x + b[c])
        elif kind == "clamp":
            low = draw(st.none() | SHIFT)
            high = draw(st.none() | SHIFT)
            functions.append(Clamp(low, high))
            written.append(lambda x, _, low=low, high=high: cut(x, low, high))
        elif kind == "leaky":
            slope = draw(POSITIVE)
            functions.append(Leaky((slope,)))
            written.append(lambda x, _, slope=slope: x if x > 0 else slope * x)
        else:
            inner = draw(rounding())
            functions.append(Level(inner))
            written.append(lambda x, _, q=inner: Fraction(quantized(x, q.step, q.zero, q.low, q.high)))
    ending = draw(rounding())

    def level(accumulator: int, channel: int) -> int:
        x = Fraction(accumulator)
        for function in written:
            x = function(x, channel)
        return quantized(x, ending.step, ending.zero, ending.low, ending.high)

    return Chain(functions, ending), level


def cut(x, low, high):
    if low is not None and x < low:
        x = low
    return high if high is not None and x > high else x


@given(parts(), st.integers(-300, 100), st.integers(0, 300))
def test_a_chain_is_its_thresholds_on_every_accumulator(made, low, size):
    chain, level = made
    lows = np.array([low, low - 3])
    found = thresholds_of(chain, lows, lows + size)
    for channel in range(2):
        accumulators = np.arange(lows[channel], lows[channel] + size + 1)
        expected = [level(int(acc), channel) for acc in accumulators]
        got = found.levels(np.stack([accumulators] * 2, axis=1))[:, channel]
        assert got.tolist() == expected


@given(parts(), st.integers(-300, 100), st.integers(0, 300))
def test_a_multiplier_is_its_thresholds_on_every_accumulator(made, low, size):
    chain, level = made
    lows = np.array([low, low - 3])
    found = thresholds_of(chain, lows, lows + size)
    by = multiplier_of(found)
    if by is None:
        return
    for channel in range(2):
        for acc in range(int(lows[channel]), int(lows[channel]) + size + 1):
            product = int(by.factor[channel]) * acc + int(by.addend[channel])
            assert abs(product) < 1 << (by.bits - 1)
            whole = abs(product) // by.divisor * (1 if product >= 0 else -1)  # integer division cuts towards 0
            assert found.base + min(max(whole, 0), found.count) == level(acc, channel)


@given(st.integers(1, 6), st.integers(-9, 9), st.sampled_from([1, -1]))
def test_ties_of_steps_that_are_powers_of_two_have_thresholds_and_no_multiplier(shift, zero, sign):
    """round(acc / 2^s), halves to even: thresholds are 2^s apart, but for one more or less."""
    chain = Chain([Map((Fraction(sign, 1 << shift),), (Fraction(0),))], Rounds(Fraction(1), zero, -128, 127))
    reach = np.array([(12 << shift)])
    found = thresholds_of(chain, -reach, reach)
    for acc in range(-int(reach[0]), int(reach[0]) + 1):
        expected = min(max(even(Fraction(sign * acc, 1 << shift)) + zero, -128), 127)
        assert found.levels(np.array([[acc]]))[0, 0] == expected
    assert multiplier_of(found) is None


def test_a_plain_step_is_a_small_multiplier():
    chain = Chain([Map((Fraction(0.0123),), (Fraction(0.4),))], Rounds(Fraction(0.7), 3, 0, 255))
    found = thresholds_of(chain, np.array([-2000]), np.array([2000]))
    by = multiplier_of(found)
    assert by is not None
    assert by.bits == 32


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (Signs(), lambda x: (x > 0) - (x < 0)),
        (Exceeds(Fraction(3, 2), strict=False), lambda x: int(x >= Fraction(3, 2))),
        (Exceeds(Fraction(3, 2), strict=True), lambda x: int(x > Fraction(3, 2))),
    ],
)
@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(-1, 2), Fraction(1, 3)])
def test_signs_and_comparisons(ending, expected, scale):
    chain = Chain([Map((scale,), (Fraction(0),))], ending)
    found = thresholds_of(chain, np.array([-9]), np.array([9]))
    for acc in range(-9, 10):
        assert found.levels(np.array([[acc]]))[0, 0] == expected(acc * scale)


def test_a_channel_that_is_constant_has_its_level_everywhere():
    chain = Chain([Map((Fraction(0), Fraction(1)), (Fraction(5), Fraction(0)))], Rounds(Fraction(1), 0, 0, 15))
    found = thresholds_of(chain, np.array([-50, 0]), np.array([50, 9]))
    assert set(found.levels(np.stack([np.arange(-50, 51)] * 2, axis=1))[:, 0].tolist()) == {5}


def test_thresholds_that_are_not_the_function_are_not_let_out(monkeypatch):
    chain = Chain([Map((Fraction(1, 3),), (Fraction(0),))], Rounds(Fraction(1), 0, 0, 15))
    right = thresholds_of(chain, np.array([0]), np.array([30]))
    assert len(breakpoints(right)[0]) > 10
    for move in (-1, 1):
        wrong = module.Thresholds(right.base, right.rises.copy(), right.direction, right.low, right.high)
        wrong.rises[0, 4] += move
        with pytest.raises(RewriteError, match="expected"):
            module.prove(chain, wrong)
