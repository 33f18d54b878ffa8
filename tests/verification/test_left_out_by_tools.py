"""What other tools leave out because it does nothing, behind sizes that an old export spells out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from normdeploy.verification import verify

Write = Callable[..., Path]

TOKEN = """g (float[b,3,4] x) => (float[b,4,4] y) {
    s = Shape(x) n = Gather<axis=0>(s, zero) m = Unsqueeze(n, at)
    target = Concat<axis=0>(m, one, minus)
    three = Shape(target) ones = ConstantOfShape<value=int64[1] {1}>(three) none = Mul(ones, minus)
    keeps = Equal(target, none) sizes = Where(keeps, ones, target)
    row = Expand(token, sizes) z = Concat<axis=1>(row, x)
    k = Shape(z) q = Reshape(z, k) t = Transpose<perm=[0,2,1]>(%s) y = MatMul(t, w) }"""
"""A class token in front of every row, expanded as torch's older exporter spells it, and a Reshape to its own shape."""

MASK = """g (float[b,n] x, bool[b,n] m) => (float[b,n] y) {
    s = Shape(x) n = Gather<axis=0>(s, one) places = Range(zero, n, one)
    h = GreaterOrEqual(places, zero) %s both = And(%s, m) v = Where(both, x, low) y = Neg(v) }"""


def token(write: Write, name: str, read: str, *, w: np.ndarray) -> Path:
    rng = np.random.default_rng(1)
    return write(
        TOKEN % read, name, zero=np.int64(0), at=np.array([0]), one=np.array([1]), minus=np.array([-1]),
        token=rng.standard_normal((1, 1, 4)).astype(np.float32), w=w,
    )  # fmt: skip


@pytest.mark.parametrize("wrong", [False, True])
def test_a_reshape_behind_an_expanded_token(write: Write, wrong: bool):
    w = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    other = w.copy()
    other[1, 2] *= np.float32(1.001 if wrong else 1)
    verdict = verify(token(write, "a", "q", w=w), token(write, "b", "z", w=other), level="quick")
    assert verdict.check("derivation").status == ("fail" if wrong else "pass"), verdict.summary()
    assert verdict.status == ("fail" if wrong else "pass"), verdict.summary()


@pytest.mark.parametrize("compare", ["GreaterOrEqual", "Greater"])
def test_a_cast_of_truth_to_truth(write: Write, compare: str):
    constants = {"zero": np.int64(0), "one": np.int64(1), "low": np.float32(-3)}
    own = write(MASK % ("c = Cast<to=9>(h)", "c"), "a", **constants)
    its = write((MASK % ("", "h")).replace("GreaterOrEqual", compare), "b", **constants)
    verdict = verify(own, its, level="quick")
    right = compare == "GreaterOrEqual"
    assert (verdict.check("derivation").status == "pass") == right, verdict.summary()
    assert verdict.status == ("pass" if right else "fail"), verdict.summary()


def test_a_size_that_is_compared_with_one_that_it_may_reach_is_still_a_decision(write: Write):
    """b == 100 turns at no size that is tried: a file without the choice is not confirmed."""
    text = TOKEN.replace("none = Mul(ones, minus)", "none = Mul(ones, hundred)")
    constants = {
        "zero": np.int64(0), "at": np.array([0]), "one": np.array([1]), "minus": np.array([-1]),
        "hundred": np.array([100]), "w": np.ones((4, 4), np.float32), "token": np.ones((1, 1, 4), np.float32),
    }  # fmt: skip
    text = text.replace("target = Concat<axis=0>(m, one, minus)", "target = Concat<axis=0>(m, one, one)")
    own = write(text % "q", "a", **constants)
    its = write((text % "q").replace("Expand(token, sizes)", "Expand(token, target)"), "b", **constants)
    assert verify(own, its, level="quick").check("derivation").status != "pass"


ROWS = """g (float[b,3] x) => (float[b,3] y) {
    s = Shape<start=0, end=1>(x) b = Squeeze(s) r = Range(zero, b, one) last = Sub(b, one) p = %s
    places = Unsqueeze(p, at) u = Add(x, x) w = ScatterND%s(x, places, u) y = Relu(w) }"""
"""What ``x[...] += x`` on a view of the whole becomes."""


@pytest.mark.parametrize(
    ("places", "how", "whole"),
    [("Identity(r)", "", True), ("Identity(r)", '<reduction="add">', False), ("Sub(last, r)", "", False)],
    ids=["every row", "added", "in reverse"],
)
def test_rows_that_are_all_written_over(write: Write, places: str, how: str, whole: bool):
    """A ScatterND of every row in its place is its updates; torch's own optimizer leaves it out."""
    source = write(ROWS % (places, how), "a", zero=np.int64(0), one=np.int64(1), at=np.array([-1]))
    file = write("g (float[b,3] x) => (float[b,3] y) { u = Add(x, x) y = Relu(u) }", "b")
    verdict = verify(source, file, level="quick")
    assert verdict.check("derivation").status == ("pass" if whole else "note"), verdict.summary()
    assert verdict.status == ("pass" if whole else "fail"), verdict.summary()
