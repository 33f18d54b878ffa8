"""Convolutions in a row become one where the border allows and the product is cheaper."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def close(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1e-12 * np.abs(expected).max()


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_a_point_and_a_wide_convolution_are_one(net, rank, group, k, stride, dilation, point_first, b1, b2, seed):
    rng = np.random.default_rng(seed)
    n = net(("n", 4, *[f"d{i}" for i in range(rank)]))
    pads = [] if point_first and b1 else [1] * rank
    window = {"strides": [stride] * rank, "dilations": [dilation] * rank, "pads": [1 if pads else 0] * 2 * rank}
    wide = rng.standard_normal((4, 4 // group, *(k,) * rank)).astype(np.float32)
    point = rng.standard_normal((4, 4 // group, *(1,) * rank)).astype(np.float32)
    shifts = [rng.standard_normal(4).astype(np.float32) if has else None for has in (b1, b2)]
    value, expected = n.x, torch.from_numpy(n.feeds(seed)["x"])
    for weight, shift, options in zip(
        (point, wide) if point_first else (wide, point),
        shifts,
        ({}, window) if point_first else (window, {}),
        strict=True,
    ):
        extra = [] if shift is None else [n.constant(shift)]
        value = n.op("Conv", value, n.constant(weight), *extra, group=group, **options)
        expected = CONV[rank](
            expected,
            torch.from_numpy(weight).double(),
            None if shift is None else torch.from_numpy(shift).double(),
            options.get("strides", 1),
            options.get("pads", [0] * rank)[:rank],
            options.get("dilations", 1),
            group,
        )
    n.end(value)
    assert n.merge() == ["Conv"]
    close(n.run(n.feeds(seed)), expected.numpy())


def test_three_in_a_row_without_padding(net):
    rng = np.random.default_rng(0)
    n = net(("n", 2, "h", "w"))
    value = n.x
    for size in ((2, 2, 3, 1), (2, 2, 1, 3), (2, 2, 1, 1)):
        value = n.op("Conv", value, n.constant(rng.standard_normal(size)), n.constant(rng.standard_normal(2)))
    n.end(value)
    before = n.run()
    merged = n.merge()
    close(n.run(), before)
    assert merged == ["Conv"]


def test_a_depthwise_point_scales_any_convolution(net):
    rng = np.random.default_rng(1)
    n = net(("n", 6, "h", "w"))
    value = n.op("Conv", n.x, n.constant(rng.standard_normal((6, 1, 1, 1))), group=6)
    value = n.op("Conv", value, n.constant(rng.standard_normal((4, 3, 3, 3))), group=2, pads=[1, 1, 1, 1])
    n.end(n.op("Relu", n.op("Conv", value, n.constant(rng.standard_normal((4, 1, 1, 1))), group=4)))
    before = n.run()
    assert n.merge() == ["Conv", "Relu"]
    close(n.run(), before)


@pytest.mark.parametrize(
    "case",
    ["bias behind the border", "both padded", "read twice", "graph output", "strided first", "groups", "low rank",
     "run-time weight", "dilations differ"],
)  # fmt: skip
def test_what_is_not_exact_or_does_not_pay_stays(net, case):
    rng = np.random.default_rng(2)
    n = net(("n", 4, 9, 9))

    def w(*shape):
        return n.constant(rng.standard_normal(shape))

    extra = []
    if case == "bias behind the border":
        first = n.op("Conv", n.x, w(4, 4, 1, 1), w(4))
        last = n.op("Conv", first, w(4, 4, 3, 3), pads=[0, 0, 0, 1])
    elif case == "both padded":
        first = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[1, 1, 1, 1])
        last = n.op("Conv", first, w(4, 4, 3, 3), pads=[1, 1, 1, 1])
    elif case == "read twice":
        first = n.op("Conv", n.x, w(4, 4, 1, 1))
        last = n.op("Conv", first, w(4, 4, 1, 1))
        extra = [n.op("Relu", first)]
    elif case == "graph output":
        first = n.op("Conv", n.x, w(4, 4, 1, 1))
        last = n.op("Conv", first, w(4, 4, 1, 1))
        extra = [first]
    elif case == "strided first":
        first = n.op("Conv", n.x, w(4, 4, 1, 1), strides=[2, 2])
        last = n.op("Conv", first, w(4, 4, 3, 3))
    elif case == "groups":
        first = n.op("Conv", n.x, w(4, 2, 1, 1), group=2)
        last = n.op("Conv", first, w(4, 4, 1, 1))
    elif case == "low rank":
        n = net(("n", 256, 9, 9))
        first = n.op("Conv", n.x, w(8, 256, 1, 1))
        last = n.op("Conv", first, w(256, 8, 1, 1))
    elif case == "run-time weight":
        first = n.op("Conv", n.x, w(4, 4, 1, 1))
        last = n.op("Conv", first, n.op("Relu", w(4, 4, 1, 1)))
    elif case == "dilations differ":
        first = n.op("Conv", n.x, w(4, 4, 2, 2))
        last = n.op("Conv", first, w(4, 4, 2, 2), dilations=[2, 2])
    n.end(last, *extra)
    before, text = n.run(), n.operators()
    assert n.merge() == text
    close(n.run(), before)


def test_float16_overflow_is_refused(net):
    n = net(("n", 2, 4, 4), ir.DataType.FLOAT16)
    first = n.op("Conv", n.x, n.constant(np.full((2, 2, 1, 1), 300.0)))
    n.end(n.op("Conv", first, n.constant(np.full((2, 2, 1, 1), 300.0))))
    assert n.merge() == ["Conv", "Conv"]
