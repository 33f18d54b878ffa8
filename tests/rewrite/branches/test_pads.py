"""A Pad of zeros becomes the padding of the convolution behind it, with the float64 reference as judge."""

from __future__ import annotations

import numpy as np
import pytest
from affine_graphs import GraphBuilder, fold_proto
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)


def picture(g: GraphBuilder, *sizes: int | str) -> str:
    return g.input("x", ["N", 4, *(sizes or ("H", "W"))])


@given(SEED)
def test_zeros_around_a_convolution_are_its_own(seed):
    rng = np.random.default_rng(seed)
    g = GraphBuilder()
    widths, pads = rng.integers(0, 3, (2, 4))
    groups, kernel = int(rng.choice([1, 2, 4])), rng.integers(1, 4, 2)
    axes = [] if rng.integers(2) else [None, np.array([-2, -1])]
    whole = widths if axes else np.array([0, 0, *widths[:2], 0, 0, *widths[2:]])
    y = g.op("Pad", picture(g), whole, *axes)
    strides, dilations = rng.integers(1, 3, (2, 2))
    y = g.op("Conv", y, rng.normal(size=(4, 4 // groups, *kernel)), rng.normal(size=4), group=groups,
             pads=pads.tolist(), strides=strides.tolist(), dilations=dilations.tolist())  # fmt: skip
    g.output(g.op("Sigmoid", y))
    result = fold_proto(g).agree(g.feeds(rng, N=2, H=6, W=7))
    assert result.ops == {"Conv": 1, "Sigmoid": 1}


def test_a_norm_in_front_of_the_zeros_knows_the_border():
    """Of a picture of static sizes the shift becomes a constant map, as in front of a convolution that pads itself."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    y = g.op("Pad", g.batch_norm(picture(g, 6, 7), 4, rng), np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    g.output(g.op("Conv", y, rng.normal(size=(2, 4, 3, 3))))
    assert fold_proto(g).folded().agree(g.feeds(rng, N=2)).ops == {"Conv": 1, "Add": 1}


@pytest.mark.parametrize("why", ["number", "channels", "negative", "another reader", "mirrored"])
def test_other_pads_stay(why):
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    widths = {"channels": [0, 1, 1, 1, 0, 0, 1, 1], "negative": [0, 0, -1, 1, 0, 0, 1, 1]}
    mode = {"mode": "reflect"} if why == "mirrored" else {}
    value = [np.array(0.5)] if why == "number" else []
    y = g.op("Pad", picture(g), np.array(widths.get(why, [0, 0, 1, 1, 0, 0, 1, 1])), *value, **mode)
    g.output(g.op("Conv", y, rng.normal(size=(2, 5 if why == "channels" else 4, 3, 3))))
    if why == "another reader":
        g.output(g.op("Relu", y))
    assert fold_proto(g).agree(g.feeds(rng, N=2, H=6, W=7)).ops["Pad"] == 1


@given(SEED, st.booleans())
def test_narrow_kernels_that_read_less_of_a_picture_are_in_the_whole_one(seed, fixed):
    """ACNet without padding: what the kernels of one row and of one column cannot reach is cut in front of them."""
    rng = np.random.default_rng(seed)
    g = GraphBuilder()
    x, kernel = picture(g, *([8, 9] if fixed else [])), rng.integers(2, 5, 2)
    y = g.op("Conv", x, rng.normal(size=(3, 4, *kernel)))
    for _ in range(2):
        size = np.array([rng.integers(1, whole + 1) for whole in kernel])
        first = np.array([rng.integers(0, whole - own + 1) for whole, own in zip(kernel, size, strict=True)])
        behind = kernel - size - first
        ends = np.where(behind == 0, 2**63 - 1, (np.array([8, 9]) if fixed and rng.integers(2) else 0) - behind)
        cut = g.op("Slice", x, first, ends, np.array([2, 3]))
        y = g.op("Add", y, g.op("Conv", cut, rng.normal(size=(3, 4, *size)), rng.normal(size=3)))
    g.output(y)
    assert fold_proto(g).agree(g.feeds(rng, N=2, H=6, W=7)).ops == {"Conv": 1}


ROWS = np.array([2]), np.array([1])
"""The axis of a Slice of rows, and its step."""
OTHER_CUTS = {
    "padded": ((np.array([1]), np.array([-1]), *ROWS), (4, 3, 3), {"pads": [1, 0, 1, 0]}),
    "all": ((np.array([1]), np.array([-1]), *ROWS), (4, 1, 3), {}),
    "steps": ((np.array([0]), np.array([2**40]), ROWS[0], np.array([2])), (4, 1, 3), {}),
    "channels": ((np.array([1]), np.array([4]), np.array([1]), ROWS[1]), (3, 3, 3), {}),
    "from the end": ((np.array([-4]), np.array([2**40]), *ROWS), (4, 1, 3), {}),
    "to a place": ((np.array([1]), np.array([5]), *ROWS), (4, 1, 3), {}),
    "at run time": (("at", np.array([-1]), *ROWS), (4, 1, 3), {}),
}
"""What a Slice reads besides pictures of six rows of any number, and the convolution behind it."""


@pytest.mark.parametrize("why", OTHER_CUTS)
def test_other_cuts_stay(why):
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    cut, kernel, pads = OTHER_CUTS[why]
    x = picture(g)
    if why == "at run time":
        g.input("at", [1], np.int64)
    y = g.op("Conv", g.op("Slice", x, *cut), rng.normal(size=(3, *kernel)), **pads)
    if why == "all":
        whole = g.op("Conv", g.op("Slice", x, *cut), rng.normal(size=(3, 4, 1, 3)))
    else:
        strided = why == "steps"
        whole = g.op("Conv", x, rng.normal(size=(3, 4, 2 if strided else 3, 3)), strides=[2 if strided else 1, 1])
    g.output(g.op("Add", whole, y))
    feeds = g.feeds(rng, N=2, H=6, W=7) | ({"at": np.array([1])} if why == "at run time" else {})
    assert fold_proto(g).agree(feeds).ops["Slice"] > 0


@pytest.mark.parametrize("own", [True, False])
def test_zeros_in_the_place_of_what_was_cut_are_not_what_was_there(own):
    """Cut and padded, or cut and convolved with padding: the border is zeros, and no kernel writes these."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    x, pads = picture(g), [1, 0, 1, 0]
    y = g.op("Slice", x, np.array([1]), np.array([-1]), *ROWS)
    y = y if own else g.op("Pad", y, np.array([0, 0, *pads[:2], 0, 0, *pads[2:]]))
    y = g.op("Conv", y, rng.normal(size=(4, 4, 1, 1)), pads=pads if own else [0] * 4)
    g.output(g.op("Add", g.op("Conv", x, rng.normal(size=(4, 4, 1, 1))), y))
    assert fold_proto(g).agree(g.feeds(rng, N=2, H=6, W=7)).ops["Slice"] == 1
