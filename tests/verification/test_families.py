"""What is fed: masks as batches are padded, integers to the ends of casts, every row of a table, images, spots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.verification import verify
from normdeploy.verification.checks.reference_runs import left_out_in_words
from normdeploy.verification.samples import families as drawing
from normdeploy.verification.samples.families import make_families
from normdeploy.verification.samples.family import Family
from normdeploy.verification.samples.ranges import InputRange, input_specs

Write = Callable[..., Path]


def families(*specs: InputRange) -> dict[str, Family]:
    return {family.name: family for family in make_families(list(specs))}


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5), st.integers(2, 9), st.sampled_from([np.bool_, np.int64, np.int32]), st.booleans())
def test_masks_come_padded_at_either_end_alone_and_not_at_all(rows: int, length: int, dtype: type, extra: bool):
    shape = (rows, 1, length) if extra else (rows, length)
    spec = InputRange("m", np.dtype(dtype), shape, {})
    drawn = np.concatenate([f.feeds["m"].reshape(-1, length).astype(bool) for f in families(spec).values()])
    for one in (drawn, ~drawn):  # masks that say what counts, masks that say what does not
        assert any(not r[0] and r[-1] and (np.diff(r.astype(int)) >= 0).all() for r in one)
        assert any(r[0] and not r[-1] and (np.diff(r.astype(int)) <= 0).all() for r in one)
        assert any(r.sum() == 1 for r in one)
        assert any(not r.any() for r in one)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (2, 3, 0, 0), (2, 3, 4, 0), (0, 3, 4, 4)])
def test_every_family_is_drawn_of_no_elements(shape: tuple[int, ...], dtype: type):
    drawn = families(InputRange("x", np.dtype(dtype), shape, {}))
    assert drawn
    assert {(f.feeds["x"].shape, f.feeds["x"].dtype) for f in drawn.values()} == {(shape, np.dtype(dtype))}


def test_a_family_that_nobody_asks_for_is_not_drawn(monkeypatch: pytest.MonkeyPatch):
    def never(*_: object) -> None:
        raise AssertionError("drawn")

    spec = InputRange("x", np.dtype(np.float32), (2, 3), {})
    (want,) = (family for name, family in families(spec).items() if name == "normal")
    monkeypatch.setattr(drawing, "_spots", never)
    found = families(spec)  # all are named
    np.testing.assert_array_equal(found["normal"].feeds["x"], want.feeds["x"])
    assert found["normal"].feeds is found["normal"].feeds
    with pytest.raises(AssertionError, match="drawn"):
        assert found["spots"].feeds


def graph(text: str) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 20]> {text}')


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "uint8", "int8"])
def test_integers_that_are_only_computed_with_reach_beyond_every_cast(dtype: str):
    model = graph(f"g ({dtype}[N,3] i) => (float[N,3] y) {{ f = Cast<to=1>(i) y = Relu(f) }}")
    (spec,) = input_specs(model, {"i": np.zeros((2, 3), dtype)})
    drawn = np.concatenate([f.feeds["i"].reshape(-1) for f in make_families([spec])])
    info = np.iinfo(dtype)
    assert drawn.max() == info.max
    for narrower in ("int8", "uint8", "int16", "uint16", "int32", "uint32"):
        if np.iinfo(narrower).max < info.max:
            assert (drawn.astype(narrower).astype(float) != drawn).any(), narrower


@pytest.mark.parametrize(
    "body",
    [
        "y = Gather(x, i)",
        "n = ReduceMax<keepdims=0>(i) s = Unsqueeze(n, zero) e = Expand(one, s) y = Cast<to=1>(e)",
        "f = Cast<to=1>(i) g = Sqrt(f) h = Cast<to=7>(g) y = Gather(x, h)",
        "s = Slice(x, i, i) y = Relu(s)",
    ],
)
def test_integers_that_are_an_index_a_size_or_come_back_stay_in_range(body: str):
    model = graph(
        f"g (float[9] x, int64[3] i) => (float[M] y) <int64[1] zero = {{0}}, float[1] one = {{1}}> {{ {body} }}"
    )
    specs = input_specs(model, {"x": np.zeros(9, np.float32), "i": np.array([1, 5, 2])})
    assert specs[1].ends == ()


@pytest.mark.parametrize("to", [3, 5, 6, 2, 12])
def test_a_cast_that_wraps_is_found(to: int, write: Write):
    """Right for the example's numbers, wrong for others that the input's type holds."""
    plain = write("g (int64[N,4] i) => (float[N,4] y) { f = Cast<to=1>(i) y = Mul(f, s) }", "a", s=np.float32(0.5))
    text = f"g (int64[N,4] i) => (float[N,4] y) {{ n = Cast<to={to}>(i) f = Cast<to=1>(n) y = Mul(f, s) }}"
    example = {"i": np.array([[3, 0, 9, 4]])}
    assert verify(plain, write(text, "b", s=np.float32(0.5)), args=example, level="default").status == "fail"
    assert verify(plain, plain, args=example).status == "pass"


def test_every_row_of_a_small_table_is_fed(write: Write):
    """Two rows exchanged that neither the example nor the table's ends touch, in a file that is written otherwise."""
    table = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    body = "g (int64[N,3] ids) => (float[N,3,8] y) { y = Gather(table, ids) }"
    other = "g (int64[N,3] ids) => (float[N,3,8] y) { z = Gather(table, ids) y = Mul(z, one) }"
    wrong = table.copy()
    wrong[[17, 23]] = wrong[[23, 17]]
    one = np.float32(1)
    reference = write(body, "a", table=table)
    assert verify(reference, write(other, "b", table=table, one=one)).status == "pass"
    assert verify(reference, write(other, "b", table=wrong, one=one), level="quick").status == "fail"


@pytest.mark.parametrize("level", [60.0, 200.0])
def test_what_only_a_photograph_wakes_is_found(write: Write, level: float):
    """A channel that stays below zero until its pixel is bright, but not as bright as an offset of 1000 makes all."""
    body = """g (float[N,1,8,8] x) => (float[N,1,8,8] y) {
        low = Clip(x, zero, limit) over = Sub(low, bright) r = Relu(over) g = Mul(r, gain) y = Add(x, g) }"""
    known = {"zero": np.float32(0), "limit": np.float32(255), "bright": np.float32(level)}
    reference = write(body, "a", gain=np.float32(1e-2), **known)
    dead = """g (float[N,1,8,8] x) => (float[N,1,8,8] y) {
        big = Greater(x, many) f = Cast<to=1>(big) low = Clip(x, zero, limit) over = Sub(low, bright) r = Relu(over)
        g = Mul(r, gain) h = Mul(g, f) y = Add(x, h) }"""
    damaged = write(dead, "b", gain=np.float32(1e-2), many=np.float32(400), **known)
    assert verify(reference, damaged, level="quick").status == "fail"


def test_images_are_smooth_and_fill_their_range():
    drawn = families(InputRange("x", np.dtype(np.float32), (2, 3, 32, 32), {}))
    for name, top in (("image of 0 to 255", 255.0), ("image of 0 to 1", 1.0)):
        x = drawn[name].feeds["x"]
        assert x.min() == 0.0
        assert x.max() == pytest.approx(top)
        assert np.abs(np.diff(x, axis=-1)).mean() < 0.2 * x.std()
    spots = drawn["spots"].feeds["x"]
    assert 0 < np.count_nonzero(spots) < 0.2 * spots.size
    assert spots.max() > 1 > -1 > spots.min()


def test_families_that_are_refused_alike_are_told_in_one_sentence():
    told = left_out_in_words({"it is 0 (x)": ["zeros", "masks, inverted"], "it is 7": ["ones"]})
    assert told == ["2 input families ('zeros', 'masks, inverted'): it is 0 (x)", "input family 'ones': it is 7"]
