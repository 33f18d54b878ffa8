"""The algebra of linear maps: A @ B is A after B, A + B their sum, whatever kernels, strides, groups and pads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from normdeploy.rewrite.branches.linear_map import LinearMap
from normdeploy.rewrite.branches.window import Apart, Window

SIZES = (23, 26)
CHANNELS = st.sampled_from([2, 4, 6, 12])


def apply(mapping: LinearMap, x: np.ndarray, convolve) -> np.ndarray:
    """Compute y in float64 by torch (or by rows of a matrix)."""
    window, kernel = mapping.window, np.ascontiguousarray(mapping.kernel())
    bias = None if mapping.bias is None else mapping.bias()
    if window.rank:
        options = {"strides": window.stride, "pads": (*window.begin, *window.end), "dilations": window.dilation}
        return convolve(x, kernel, bias, group=mapping.group, **options)
    blocks = kernel.reshape(mapping.group, mapping.outs // mapping.group, -1)
    inputs = x.reshape(len(x), mapping.group, -1)
    y = np.einsum("ngi,goi->ngo", inputs, blocks).reshape(len(x), mapping.outs)
    return y if bias is None else y + bias


@st.composite
def maps(draw, rank: int, ins: int, outs: int) -> LinearMap:
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    group = draw(st.sampled_from([g for g in (1, 2, 3, 4, 6, 12) if ins % g == 0 and outs % g == 0]))
    size, dilation = (tuple(draw(st.integers(1, 3)) for _ in range(rank)) for _ in range(2))
    stride = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    begin, end = (tuple(draw(st.sampled_from([0, 0, 1, 2])) for _ in range(rank)) for _ in range(2))
    kernel, bias = rng.standard_normal((outs, ins // group, *size)), rng.standard_normal(outs)
    given_bias = (lambda: bias) if draw(st.booleans()) else None
    window = Window(size, stride, dilation, begin, end)

    def read(start: int, stop: int) -> np.ndarray:
        return kernel[start:stop].copy()

    size = float(np.linalg.norm(kernel))
    return LinearMap(outs, ins, group, window, SIZES[:rank], lambda: read, given_bias, bound=lambda: size)


@st.composite
def in_a_row(draw):
    rank, ins, between, outs = draw(st.integers(0, 2)), draw(CHANNELS), draw(CHANNELS), draw(CHANNELS)
    x = np.random.default_rng(draw(st.integers(0, 2**31))).standard_normal((2, ins, *SIZES[:rank]))
    return draw(maps(rank, ins, between)), draw(maps(rank, between, outs)), x


@st.composite
def side_by_side(draw):
    rank, ins, outs = draw(st.integers(0, 2)), draw(CHANNELS), draw(CHANNELS)
    x = np.random.default_rng(draw(st.integers(0, 2**31))).standard_normal((2, ins, *SIZES[:rank]))
    return draw(maps(rank, ins, outs)), draw(maps(rank, ins, outs)), x


def same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1e-12 * max(1.0, np.abs(expected).max())


def in_pieces(mapping: LinearMap) -> None:
    """A kernel is the same read row by row as read at once, and its numbers are as small as its bound says."""
    read = mapping.open()
    rows = [read(row, row + 1) for row in range(mapping.outs)]
    np.testing.assert_allclose(np.concatenate(rows), mapping.kernel(), rtol=1e-12, atol=1e-14)
    assert mapping.kernel().shape == mapping.shape
    assert np.linalg.norm(mapping.kernel()) <= mapping.bound() * (1 + 1e-12)


@settings(deadline=None, max_examples=150)
@given(in_a_row())
def test_a_product_is_one_after_the_other(convolve, case):
    first, second, x = case
    try:
        whole = second @ first
    except Apart:
        padded = [axis for axis in range(second.window.rank) if second.window.begin[axis] or second.window.end[axis]]
        assert padded  # and the zeros are not what the first makes of zeros
        assert first.bias is not None or any(first.window.size[axis] > 1 for axis in padded)
        return
    same(apply(whole, x, convolve), apply(second, apply(first, x, convolve), convolve))
    in_pieces(whole)


@settings(deadline=None, max_examples=150)
@given(side_by_side(), st.booleans())
def test_a_sum_is_the_sum_of_both(convolve, case, less):
    a, b, x = case
    results = apply(a, x, convolve), apply(b, x, convolve)
    try:
        whole = a - b if less else a + b
    except Apart:
        assert results[0].shape != results[1].shape or a.window.stride != b.window.stride
        return
    assume(results[0].shape == results[1].shape)
    same(apply(whole, x, convolve), results[0] - results[1] if less else results[0] + results[1])
    in_pieces(whole)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(0, 2), CHANNELS)
def test_a_diagonal_is_its_scale_and_its_bias(convolve, data, rank, channels):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    scale, bias = rng.standard_normal(channels), rng.standard_normal(channels)
    mapping = LinearMap.diagonal(scale, lambda: bias, window=Window.point(rank), sizes=SIZES[:rank])
    x = rng.standard_normal((2, channels, *SIZES[:rank]))
    spread = (1, -1, *(1,) * rank)
    same(apply(mapping, x, convolve), scale.reshape(spread) * x + bias.reshape(spread))
    other = data.draw(maps(rank, channels, channels))
    through = LinearMap.identity(channels, SIZES[:rank])
    same(apply(other @ through, x, convolve), apply(other, x, convolve))
    in_pieces(mapping)
    in_pieces(through)
    same(apply((-other).shifted(lambda: bias), x, convolve), bias.reshape(spread) - apply(other, x, convolve))


def test_a_dynamic_size_fits_all_sizes_or_none(convolve):
    """A window of even padding and one of odd agree for even sizes only."""
    rng = np.random.default_rng(0)
    kernels = rng.standard_normal((2, 2, 3)), rng.standard_normal((2, 2, 2))
    windows = Window((3,), (2,), (1,), (1,), (1,)), Window((2,), (2,), (1,), (0,), (0,))

    def both(size: int | None) -> list[LinearMap]:
        return [
            LinearMap(2, 2, 1, window, (size,), lambda kernel=kernel: lambda start, stop: kernel[start:stop].copy())
            for window, kernel in zip(windows, kernels, strict=True)
        ]

    x = rng.standard_normal((1, 2, 8))
    a, b = both(8)
    same(apply(a + b, x, convolve), apply(a, x, convolve) + apply(b, x, convolve))
    for size, reason in ((None, "for some sizes of the input only"), (9, "their results differ in size")):
        a, b = both(size)
        with pytest.raises(Apart, match=reason):
            a + b
