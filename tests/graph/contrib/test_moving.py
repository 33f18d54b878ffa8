"""Operators that move and choose, against the kernels."""

from __future__ import annotations

import numpy as np
import pytest
from contrib_kernels import agree

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 5)).astype(np.float32)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("matrix", [False, True])
def test_pads(mode, matrix):
    pads = np.array([0, 1, 2, 0, 0, 1])
    feeds = {"x": X, "pads": pads[None] if matrix else pads}
    agree("Pad", feeds | ({"value": np.float32([0.7])} if mode == "constant" else {}), mode=mode)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, -1, 2])
def test_triangles(upper, k):
    agree("Trilu", {"x": X} | ({} if k is None else {"k": np.array(k)}), upper=upper)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_slices_by_index(depth):
    at = np.stack([RNG.integers(0, size, 4) for size in X.shape[:depth]], axis=-1)
    agree("GatherND", {"x": X, "at": at})


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("border", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_samples_of_a_grid(mode, border, align):
    x = RNG.standard_normal((2, 3, 5, 6)).astype(np.float32)
    grid = RNG.uniform(-1.3, 1.3, (2, 4, 3, 2)).astype(np.float32)
    agree("GridSample", {"x": x, "grid": grid}, mode=mode, padding_mode=border, align_corners=align)


@pytest.mark.parametrize("size", [2, 3, 9])
def test_repeated_ngrams(size):
    ids = np.array([[1, 2, 3, 1, 2, 4, 1, 2], [5, 5, 5, 5, 5, 5, 5, 5]])
    scores = RNG.standard_normal((2, 7)).astype(np.float32)
    got = agree("NGramRepeatBlock", {"ids": ids, "scores": scores}, ngram_size=size)[0]
    assert set(np.flatnonzero(np.isinf(got[0]))) == {2: {3, 4}, 3: {3, 4}, 9: set()}[size]


@pytest.mark.parametrize(("dim", "size", "step"), [(1, 2, 1), (2, 3, 2), (-1, 4, 1)])
def test_windows_of_an_axis(dim, size, step):
    agree("UnfoldTensor", {"x": X}, dim=dim, size=size, step=step)


def test_ranges_and_new_axes():
    agree("Range", {"a": np.array([1]), "b": np.array([9]), "c": np.array([3])})
    agree("Range", {"a": np.array([1], np.float32), "b": np.array([4], np.float32)})
    for axis in (0, 1, -1):
        agree("ExpandDims", {"x": X, "axis": np.array(axis, np.int32)}, constants=["axis"])
