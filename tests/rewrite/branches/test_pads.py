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
