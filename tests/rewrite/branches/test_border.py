"""A shift before zero padding becomes a map behind it, exactly, where that pays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from close_arrays import close
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def borders(draw):
    """A convolution of static size, padded unevenly, strided, dilated, grouped, transposed or not."""
    rank = draw(st.integers(1, 3))
    transposed = draw(st.booleans())
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    most = [size - 1 for size in kernel * 2] if transposed else [2] * 2 * rank
    return {
        "rank": rank,
        "transposed": transposed,
        "kernel": kernel,
        "bias": draw(st.sampled_from(["given", "absent", "empty name"])),
        "dtype": draw(st.sampled_from([ir.DataType.FLOAT, ir.DataType.FLOAT16])),
        "seed": draw(st.integers(0, 2**31)),
        "options": {
            "group": draw(st.sampled_from([1, 2])),
            "strides": [draw(st.integers(1, 2)) for _ in range(rank)],
            "dilations": [draw(st.integers(1, 2)) for _ in range(rank)],
            "pads": [draw(st.integers(0, width)) for width in most],
        },
    }


@settings(deadline=None, max_examples=40)
@given(borders())
def test_the_border_map_is_exact(net, convolve, case):
    rng = np.random.default_rng(case["seed"])
    ins, outs, rank, options = 8, 2, case["rank"], case["options"]
    n = net(("n", ins, *(7, 8, 9)[:rank]), case["dtype"])
    first, second = (ins, outs) if case["transposed"] else (outs, ins)
    w = rng.standard_normal((first, second // options["group"], *case["kernel"]))
    b = rng.standard_normal(outs) if case["bias"] == "given" else None
    s, t = rng.standard_normal(ins), rng.standard_normal(ins)
    mapped = n.affine(n.x, s, t, "norm")
    extra = [n.constant(b)] if b is not None else [None] if case["bias"] == "empty name" else []
    op = "ConvTranspose" if case["transposed"] else "Conv"
    n.end(n.op(op, mapped, n.constant(w), *extra, **options))
    merged = n.merge()
    spread = (1, -1, *(1,) * rank)
    x = n.feeds(case["seed"])["x"] * s.reshape(spread) + t.reshape(spread)
    shift = None if b is None else n.rounded(b)
    expected = convolve(x, n.rounded(w), shift, transposed=case["transposed"], **options)
    close(n.run(n.feeds(case["seed"])), expected)
    if merged[0] == op:
        assert merged in ([op, "Add"], [op])
        assert [(row.where, row.action) for row in n.context.ledger] == [("norm", "folded")]
        n.check_rounding()


@pytest.mark.parametrize("bias", [False, True])
def test_where_every_position_is_at_the_same_border_the_shift_is_a_bias(net, convolve, bias):
    """Dilated taps of 5 columns over 4 and one of padding: all results stand in one column."""
    rng = np.random.default_rng(0)
    n = net(("n", 4, 4, 4), ir.DataType.DOUBLE)
    w, b, s, t = (rng.standard_normal(shape) for shape in ((3, 4, 2, 3), 3, 4, 4))
    options = {"dilations": [2, 2], "pads": [0, 1, 0, 0], "strides": [1, 1], "group": 1}
    n.end(n.op("Conv", n.affine(n.x, s, t, "norm"), n.constant(w), *([n.constant(b)] if bias else []), **options))
    assert n.merge() == ["Conv"]
    x = n.feeds(0)["x"] * s.reshape(1, -1, 1, 1) + t.reshape(1, -1, 1, 1)
    close(n.run(n.feeds(0)), convolve(x, w, b if bias else None, **options))


def shifted(net, shape=("n", 8, 9, 9), outs=2, **options):
    rng = np.random.default_rng(0)
    n = net(shape)
    mapped = n.affine(n.x, rng.standard_normal(8), rng.standard_normal(8), "norm")
    conv = n.op("Conv", mapped, n.constant(rng.standard_normal((outs, 8, 3, 3))), pads=[1, 1, 1, 1], **options)
    return n, mapped, conv


def test_a_narrow_convolution_takes_the_shift(net):
    n, _, conv = shifted(net)
    n.end(conv)
    before = n.run()
    assert n.merge() == ["Conv", "Add"]
    close(n.run(), before)
    border = n.graph.node(1).inputs[1].const_value.numpy()
    assert border.shape == (1, 2, 9, 9)
    assert np.ptp(border[0, 0, 1:-1, 1:-1]) < 1e-6 < abs(border[0, 0, 0, 0] - border[0, 0, 4, 4])


def test_several_readers_take_it_together(net):
    n, mapped, conv = shifted(net)
    rng = np.random.default_rng(1)
    other = n.op("Conv", mapped, n.constant(rng.standard_normal((3, 8, 1, 1))), strides=[2, 2])
    pool = n.op("GlobalAveragePool", n.op("Relu", other))
    n.end(n.op("Mul", conv, n.op("ReduceMax", pool, keepdims=1)))
    before = n.run()
    merged = n.merge()
    assert "Affine" not in merged
    close(n.run(), before)


@pytest.mark.parametrize("case", ["wide", "dynamic", "another reader", "graph output", "run-time weight", "overflow"])
def test_what_does_not_pay_or_is_not_exact_stays(net, case):
    extra = []
    if case == "dynamic":
        n, mapped, conv = shifted(net, ("n", 8, "h", 9))
    elif case == "wide":
        n, mapped, conv = shifted(net, outs=16)
    else:
        n, mapped, conv = shifted(net)
    if case == "another reader":
        extra = [n.op("Relu", mapped)]
    elif case == "graph output":
        extra = [mapped]
    elif case == "run-time weight":
        node = n.graph.node(1)
        node.replace_input_with(1, n.op("Relu", node.inputs[1]))
        n.graph.sort()
    elif case == "overflow":
        n = net(("n", 8, 9, 9), ir.DataType.FLOAT16)
        mapped = n.affine(n.x, np.full(8, 3e4), np.ones(8))
        conv = n.op("Conv", mapped, n.constant(np.full((2, 8, 3, 3), 10.0)), pads=[1, 1, 1, 1])
    n.end(conv, *extra)
    assert "Affine" in n.merge()
    assert len(n.context.ledger) == 0


def test_a_scale_alone_needs_no_border_map(net):
    rng = np.random.default_rng(0)
    n = net(("n", 8, 9, 9))
    mapped = n.affine(n.x, rng.standard_normal(8), np.zeros(8), "norm")
    n.end(n.op("Conv", mapped, n.constant(rng.standard_normal((2, 8, 3, 3))), pads=[1] * 4))
    before = n.run()
    assert n.merge() == ["Conv"]
    close(n.run(), before)


@pytest.mark.parametrize("norm", ["InstanceNormalization", "GroupNormalization"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_bias_before_a_norm_of_each_channel_is_dead(net, norm, op):
    rng = np.random.default_rng(2)
    n = net(("n", 4, 6, 6), opset=21)
    value = n.op(op, n.x, n.constant(rng.standard_normal((4, 4, 3, 3))), n.constant(rng.standard_normal(4)))
    options = {"num_groups": 4} if norm == "GroupNormalization" else {}
    value = n.op(norm, value, n.constant(rng.random(4)), n.constant(rng.standard_normal(4)), **options)
    n.end(value)
    before = n.run()
    n.merge()
    close(n.run(), before)
    assert len(n.graph.node(0).inputs) == 2


@pytest.mark.parametrize("case", ["groups", "another reader", "layer norm"])
def test_a_living_bias_stays(net, case):
    rng = np.random.default_rng(3)
    n = net(("n", 4, 6, 6), opset=21)
    conv = n.op("Conv", n.x, n.constant(rng.standard_normal((4, 4, 3, 3))), n.constant(rng.standard_normal(4)))
    scale, shift = n.constant(rng.random(4)), n.constant(rng.standard_normal(4))
    extra = []
    if case == "groups":
        value = n.op("GroupNormalization", conv, scale, shift, num_groups=2)
    elif case == "layer norm":
        value = n.op("LayerNormalization", conv, scale, axis=-1)
    else:
        value = n.op("InstanceNormalization", conv, scale, shift)
        extra = [n.op("Relu", conv)]
    n.end(value, *extra)
    n.merge()
    assert len(n.graph.node(0).inputs) == 3
