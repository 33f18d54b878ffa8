"""Numbers that a file computes from sizes: what agrees at the example's size alone is not confirmed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from normdeploy.verification import verify

GRAPH = """<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x) => (float[n,4] y) <int64 k = {{{}}}> {{
    s = Shape<start=0, end=1>(x) {} c = Cast<to=1>(q) m = Mul(x, c) y = Add(m, x) }}"""


def written(path: Path, divisor: int, q: str) -> Path:
    onnx.save(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(GRAPH.format(divisor, q))), path)
    return path


@pytest.mark.parametrize("divisor", [2, 3])
def test_a_size_is_no_multiple_of_a_number_for_every_input(divisor: int, tmp_path: Path) -> None:
    """k (n / k), in integers, is n wherever k divides n."""
    source = written(tmp_path / "source.onnx", divisor, "q = Identity(s)")
    same = verify(source, written(tmp_path / "same.onnx", divisor, "t = Add(s, k) q = Sub(t, k)"), level="quick")
    assert same.check("derivation").status == "pass", same.summary()
    rounded = written(tmp_path / "rounded.onnx", divisor, "t = Div(s, k) q = Mul(t, k)")
    verdict = verify(source, rounded, level="quick")
    assert verdict.status == "fail"
    assert verdict.check("derivation").status != "pass", verdict.summary()


SIZES = """<ir_version: 8, opset_import: ["": 18]> g (float[n,m] x) => (float[n,m] y)
    <int64[1] first = {0}, int64[1] second = {1}, int64[1] one = {1}, int64[1] nought = {0}, int64[1] far = {512}> {
    s = Shape(x) n = Gather(s, first) m = Gather(s, second) """
"""Numbers of sizes that are of one formula at all sizes that are tried, and of another beyond."""

BEYOND = {
    "max(1, m - 512)": ("d = Sub(m, far) k = Max(one, d)", "k = Identity(one)"),
    "max(n, m - 512)": ("d = Sub(m, far) k = Max(n, d)", "k = Identity(n)"),
    "min(n, m, n + 512)": ("d = Add(n, far) k = Min(m, d, n)", "k = Min(m, n)"),
    "m / (n + 512)": ("d = Add(n, far) k = Div(m, d)", "k = Sub(n, n)"),
    "m % 512": ("k = Mod(m, far)", "k = Identity(m)"),
    "sign of m - 512": ("d = Sub(m, far) k = Sign(d)", "k = Neg(one)"),
    "size of m - 512": ("d = Sub(m, far) k = Abs(d)", "k = Sub(far, m)"),
    "8 bits": ("d = Cast<to=3>(m) k = Cast<to=7>(d)", "k = Identity(m)"),
    "float16": ("d = Cast<to=10>(m) k = Cast<to=7>(d)", "k = Identity(m)"),
}


def sized(path: Path, body: str) -> Path:
    onnx.save(onnx.parser.parse_model(f"{SIZES} {body} c = Cast<to=1>(k) y = Mul(x, c) }}"), path)
    return path


@pytest.mark.parametrize("what", BEYOND)
def test_a_decision_on_sizes_that_fell_one_way_is_not_confirmed(what: str, tmp_path: Path) -> None:
    """Whether the file has it or has lost it: no size shows what it does, and it is named."""
    paths = [sized(tmp_path / f"{place}.onnx", body) for place, body in enumerate(BEYOND[what])]
    example = {"x": np.arange(48.0, dtype=np.float32).reshape(3, 16)}
    for source, file in (paths, paths[::-1]):
        verdict = verify(source, file, args=example, level="quick")
        assert verdict.status == "not-exercised", verdict.summary()
        assert verdict.check("derivation").status != "pass", verdict.summary()
    same = verify(paths[0], paths[0], args=example, level="quick")
    assert same.status == "pass", same.summary()
    assert same.check("derivation").status == "pass", same.summary()


def test_a_size_is_above_what_is_at_most_nought_at_all_sizes(tmp_path: Path) -> None:
    """max(m, 0) and max(m, -1) are m, which needs no size to be tried."""
    source = sized(tmp_path / "source.onnx", "k = Identity(m)")
    for number, body in enumerate(("k = Max(m, nought)", "d = Neg(one) k = Max(m, d)", "k = Abs(m)")):
        verdict = verify(source, sized(tmp_path / f"{number}.onnx", body), level="quick")
        assert verdict.check("derivation").status == "pass", verdict.summary()


PLACES = """<ir_version: 8, opset_import: ["": 18]> g (float[n,m] x) => (float[n,m] y)
    <int64[1] second = {{1}}, int64 start = {{{start}}}, int64 step = {{{step}}}, int64 number = {{{number}}},
     float nought = {{0}}, float low = {{-9}}> {{
    s = Shape(x) t = Gather(s, second) m = Squeeze(t) r = Range(start, m, step) d = {compared}
    k = Where(d, nought, low) y = Add(x, k) }}"""
"""A mask of places, which are numbered from ``start`` on, compared to a number."""

AT_ALL_SIZES = [
    ("GreaterOrEqual(r, number)", 0, True),
    ("LessOrEqual(number, r)", 0, True),
    ("Greater(r, number)", -1, True),
    ("Less(number, r)", -2, True),
    ("Less(r, number)", 512, False),
    ("GreaterOrEqual(number, r)", 512, False),
]


@pytest.mark.parametrize(("compared", "number", "always"), AT_ALL_SIZES)
def test_places_are_never_below_the_first(compared: str, number: int, always: bool, tmp_path: Path) -> None:
    """0, 1, 2, ... are at least 0 whatever the size, as in the masks of transformers; and below 512 for some alone."""
    paths = [tmp_path / "source.onnx", tmp_path / "file.onnx"]
    text = PLACES.format(start=0, step=1, number=number, compared=compared)
    for path, read in zip(paths, (text, text.replace("-9", "-8")), strict=True):  # a number that nothing selects
        onnx.save(onnx.parser.parse_model(read), path)
    verdict = verify(*paths, args={"x": np.ones((3, 16), np.float32)}, level="quick")
    assert (verdict.check("derivation").status == "pass") == always, verdict.summary()
    assert verdict.status == ("pass" if always else "not-exercised"), verdict.summary()


def test_places_that_count_down_are_below_any_number_at_some_size(tmp_path: Path) -> None:
    """Range(0, -m, -1) starts at 0 and ends at 1 - m."""
    paths = [tmp_path / "source.onnx", tmp_path / "file.onnx"]
    text = PLACES.format(start=0, step=-1, number=-400, compared="GreaterOrEqual(r, number)")
    text = text.replace("m = Squeeze(t)", "u = Neg(t) m = Squeeze(u)")
    for path, read in zip(paths, (text, text.replace("-9", "-8")), strict=True):
        onnx.save(onnx.parser.parse_model(read), path)
    verdict = verify(*paths, args={"x": np.ones((3, 16), np.float32)}, level="quick")
    assert verdict.status == "not-exercised", verdict.summary()


CHAIN = """<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x) => (float[n,4] y)
    <int64[1] one = {{1}}, int64[1] nought = {{0}}, float low = {{-1000}}, float high = {{1000000}}> {{
    k0 = Shape<start=0, end=1>(x) {steps} c = Cast<to=1>(k{last}) z = Mul(x, c) y = {end} }}"""


def test_what_cannot_be_followed_is_shown_by_samples(tmp_path: Path) -> None:
    """Sizes computed in 700 steps are more than the derivation follows: a bound that no sample reaches is named."""
    last = 700
    steps = " ".join(
        f"k{i + 1} = {'Max' if i % 2 else 'Add'}(k{i}, {'one' if i % 2 else 'nought'})" for i in range(last)
    )
    paths = [tmp_path / "plain.onnx", tmp_path / "bounded.onnx"]
    for path, end in zip(paths, ("Identity(z)", "Clip(z, low, high)"), strict=True):
        onnx.save(onnx.parser.parse_model(CHAIN.format(steps=steps, last=last, end=end)), path)
    for source, file in (paths, paths[::-1]):
        verdict = verify(source, file, level="quick")
        assert verdict.status in ("fail", "not-exercised"), verdict.summary()
        assert "RecursionError" in verdict.check("derivation").detail
