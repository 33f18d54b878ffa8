"""Convolutions in a row become one where the border allows and the product is cheaper."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from close_arrays import close
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def pairs(draw):
    """A one-tap convolution in front of or behind a wide one."""
    rank = draw(st.integers(1, 3))
    point_first = draw(st.booleans())
    biases = [draw(st.sampled_from(["given", "absent", "empty name"])) for _ in range(2)]
    unpadded = point_first and biases[0] == "given"
    return {
        "rank": rank,
        "point_first": point_first,
        "biases": biases,
        "group": draw(st.sampled_from([1, 2, 4])),
        "kernel": [draw(st.integers(1, 3)) for _ in range(rank)],
        "dtype": draw(st.sampled_from([ir.DataType.FLOAT, ir.DataType.FLOAT16])),
        "seed": draw(st.integers(0, 2**31)),
        "window": {
            "strides": [draw(st.integers(1, 2)) for _ in range(rank)],
            "dilations": [draw(st.integers(1, 2)) for _ in range(rank)],
            "pads": [0 if unpadded else draw(st.integers(0, 2)) for _ in range(2 * rank)],
        },
    }


@settings(deadline=None, max_examples=40)
@given(pairs())
def test_a_point_and_a_wide_convolution_are_one(net, convolve, case):
    rng = np.random.default_rng(case["seed"])
    rank, group, ones = case["rank"], case["group"], [1] * case["rank"]
    n = net(("n", 4, *[f"d{i}" for i in range(rank)]), case["dtype"])
    parts = [(case["kernel"], case["window"]), (ones, {"strides": ones, "dilations": ones, "pads": [0] * 2 * rank})]
    value, expected = n.x, n.feeds(case["seed"])["x"]
    for (kernel, window), bias in zip(parts[:: -1 if case["point_first"] else 1], case["biases"], strict=True):
        w = rng.standard_normal((4, 4 // group, *kernel))
        b = rng.standard_normal(4) if bias == "given" else None
        extra = [n.constant(b)] if b is not None else [None] if bias == "empty name" else []
        value = n.op("Conv", value, n.constant(w), *extra, group=group, **window)
        expected = convolve(expected, n.rounded(w), None if b is None else n.rounded(b), group=group, **window)
    n.end(value)
    assert n.merge() == ["Conv"]
    close(n.run(n.feeds(case["seed"])), expected)
    n.check_rounding()


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


REFUSALS = {
    # what stays, and what its row says; "" where nobody would expect one operator
    "bias behind the border": "Conv 'conv3', then Conv 'conv5': the second pads with zeros, where the first would give",
    "both padded": "Conv 'conv2', then Conv 'conv4': the second pads with zeros what the first does not make of zeros",
    "read twice": "",
    "graph output": "",
    "low rank": "",
    "separable": "",
    "run-time weight": "",
    "float16 overflow": "as one operator its weights would overflow float16",
}


@pytest.mark.parametrize("case", REFUSALS)
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
        first = n.op("Conv", n.x, w(4, 4, 1, 3), pads=[0, 1, 0, 1])
        last = n.op("Conv", first, w(4, 4, 1, 3), pads=[0, 1, 0, 1])
    elif case == "read twice":
        first = n.op("Conv", n.x, w(4, 4, 1, 1))
        last = n.op("Conv", first, w(4, 4, 1, 1))
        extra = [n.op("Relu", first)]
    elif case == "graph output":
        first = n.op("Conv", n.x, w(4, 4, 1, 1))
        last = n.op("Conv", first, w(4, 4, 1, 1))
        extra = [first]
    elif case == "low rank":
        n = net(("n", 256, 9, 9))
        first = n.op("Conv", n.x, w(8, 256, 1, 1))
        last = n.op("Conv", first, w(256, 8, 1, 1))
    elif case == "separable":
        n = net(("n", 32, 9, 9))
        first = n.op("Conv", n.x, w(32, 1, 3, 3), pads=[1] * 4, group=32)
        last = n.op("Conv", first, w(32, 32, 1, 1))
    elif case == "float16 overflow":
        n = net(("n", 2, 4, 4), ir.DataType.FLOAT16)
        first = n.op("Conv", n.x, n.constant(np.full((2, 2, 1, 1), 300.0)))
        last = n.op("Conv", first, n.constant(np.full((2, 2, 1, 1), 300.0)))
    elif case == "run-time weight":
        first = n.op("Conv", n.x, w(4, 4, 1, 1))
        last = n.op("Conv", first, n.op("Relu", w(4, 4, 1, 1)))
    n.end(last, *extra)
    before, text = n.run(), n.operators()
    assert n.merge() == text
    close(n.run(), before)
    rows = [(row.kind, row.action) for row in n.context.ledger]
    assert rows == ([("operators in a row", "kept")] if REFUSALS[case] else [])
    assert all(REFUSALS[case] in row.reason for row in n.context.ledger)


@pytest.mark.parametrize("case", ["strided first", "groups", "dilations differ", "a pad in front", "one axis each"])
def test_what_reads_the_same_inputs_is_one(net, case):
    rng = np.random.default_rng(3)
    n = net(("n", 4, 31, 32))

    def w(*shape):
        return n.constant(rng.standard_normal(shape))

    if case == "strided first":
        first = n.op("Conv", n.x, w(4, 4, 1, 1), w(4), strides=[2, 2])
        last = n.op("Conv", first, w(4, 4, 3, 3), strides=[2, 1])
    elif case == "groups":
        first = n.op("Conv", n.x, w(4, 2, 1, 1), group=2)
        last = n.op("Conv", first, w(4, 4, 1, 1))
    elif case == "dilations differ":
        first = n.op("Conv", n.x, w(4, 4, 2, 1))
        last = n.op("Conv", first, w(4, 4, 2, 1), dilations=[2, 2])
    elif case == "a pad in front":
        padded = n.op("Pad", n.x, n.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])))
        first = n.op("Conv", padded, w(4, 4, 1, 1), w(4))
        last = n.op("Conv", first, w(4, 4, 3, 3))
    else:
        first = n.op("Conv", n.x, w(4, 4, 1, 3), pads=[0, 1, 0, 1])
        last = n.op("Conv", first, w(4, 4, 3, 1), pads=[1, 0, 1, 0])
    n.end(last)
    before, operators = n.run(), len(n.operators())
    assert n.merge() == ["Conv"]
    close(n.run(), before)
    rows = [(row.where, row.kind, row.action, row.into, row.reason) for row in n.context.ledger]
    became = f"{operators} operators became one"
    assert rows == [(last.producer().name, "operators in a row", "merged", n.graph.node(0).name, became)]
