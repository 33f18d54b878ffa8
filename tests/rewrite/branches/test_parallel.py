"""Sums of linear branches of one input become one convolution; everything else is refused."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from close_arrays import close
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.graph import constant64

DTYPES = st.sampled_from([ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE])


@st.composite
def blocks(draw):
    """Branches of one stride, dilation and group whose results have one size: any kernels, padded unevenly."""
    rank = draw(st.integers(1, 3))
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    branches = []
    for _ in range(draw(st.integers(2, 4))):
        size = [draw(st.integers(1, 4)) for _ in range(rank)]
        # begin + end = (size - 1) dilation: results as large as x (by stride 1); taps line up in steps of dilation
        begin = [draw(st.integers(0, n - 1)) * step for n, step in zip(size, dilations, strict=True)]
        end = [(n - 1) * step - first for n, step, first in zip(size, dilations, begin, strict=True)]
        branches.append((size, [*begin, *end], draw(st.sampled_from(["given", "absent", "empty name"]))))
    return {
        "branches": branches,
        "rank": rank,
        "strides": [draw(st.integers(1, 2)) for _ in range(rank)],
        "dilations": dilations,
        "group": draw(st.sampled_from([1, 2, 4])),
        "outs": draw(st.sampled_from([4, 8])),
        "dtype": draw(DTYPES),
        "seed": draw(st.integers(0, 2**31)),
    }


@settings(deadline=None, max_examples=40)
@given(blocks())
def test_a_sum_of_convolutions_is_one(net, convolve, block):
    rng = np.random.default_rng(block["seed"])
    ins, outs, rank = 4, block["outs"], block["rank"]
    n = net(("n", ins, *[f"d{i}" for i in range(rank)]), block["dtype"])
    options = {name: block[name] for name in ("strides", "dilations", "group")}
    total, expected = None, 0.0
    for size, pads, bias in block["branches"]:
        w = rng.standard_normal((outs, ins // block["group"], *size))
        b = rng.standard_normal(outs) if bias == "given" else None
        extra = [n.constant(b)] if bias == "given" else [None] if bias == "empty name" else []
        term = n.op("Conv", n.x, n.constant(w), *extra, pads=pads, **options)
        total = term if total is None else n.op("Add", term, total)
        shift = None if b is None else n.rounded(b)
        expected = expected + convolve(n.feeds()["x"], n.rounded(w), shift, pads=pads, **options)
    n.end(total)
    merged = n.merge()
    close(n.run(), expected)
    if len({(tuple(size), tuple(pads)) for size, pads, _ in block["branches"]}) == 1:
        assert merged == ["Conv"]
    n.check_rounding()


@st.composite
def mixtures(draw):
    """A convolution beside maps, identities and pools of its input."""
    return {
        "rank": draw(st.integers(1, 3)),
        "group": draw(st.sampled_from([1, 2, 3, 6])),
        "affine": draw(st.booleans()),
        "identity": draw(st.booleans()),
        "pool": draw(st.booleans()),
        "dtype": draw(DTYPES),
        "seed": draw(st.integers(0, 2**31)),
    }


@settings(deadline=None, max_examples=40)
@given(mixtures())
def test_identity_affine_and_pool_branches_are_kernels(net, convolve, case):
    rng = np.random.default_rng(case["seed"])
    channels, rank = 6, case["rank"]
    n = net(("n", channels, *[f"d{i}" for i in range(rank)]), case["dtype"])
    # a window that reaches further on one side, which the pool's fits into
    begin, end = rng.integers(1, 3, rank).tolist(), rng.integers(1, 3, rank).tolist()
    size = [1 + first + last for first, last in zip(begin, end, strict=True)]
    w = rng.standard_normal((channels, channels // case["group"], *size))
    b = rng.standard_normal(channels)
    options = {"group": case["group"], "pads": [*begin, *end]}
    total = n.op("Conv", n.x, n.constant(w), n.constant(b), **options)
    x, ones = n.feeds(case["seed"])["x"], [1] * rank
    expected = convolve(x, n.rounded(w), n.rounded(b), strides=ones, dilations=ones, **options)
    spread = (1, -1, *ones)
    if case["affine"]:
        s, t = rng.standard_normal(channels), rng.standard_normal(channels)
        total = n.op("Add", n.affine(n.x, s, t), total)
        expected = expected + s.reshape(spread) * x + t.reshape(spread)
    if case["identity"]:
        total = n.op("Add", total, n.x)
        expected = expected + x
    if case["pool"]:
        pool = n.op("AveragePool", n.x, kernel_shape=[3] * rank, pads=[1] * 2 * rank, count_include_pad=1)
        total = n.op("Add", pool, total)
        average = np.full((channels, 1, *(3,) * rank), 1 / 3**rank)
        window = {"strides": ones, "dilations": ones, "pads": [1] * 2 * rank, "group": channels}
        expected = expected + convolve(x, average, None, **window)
    n.end(total)
    root = total.producer().name
    assert n.merge() == ["Conv"]
    close(n.run(n.feeds(case["seed"])), expected)
    branches = [*(case[kind] for kind in ("affine", "identity", "pool"))].count(True)
    rows = [(row.where, row.kind, row.action, row.reason) for row in n.context.ledger]
    if case["affine"]:
        assert rows == [("norm", "BatchNormalization", "merged", "part of a sum of linear branches")]
    elif branches:
        became = f"{1 + case['pool'] + branches} operators became one"  # a branch is added
        assert rows == [(root, "parallel branches", "merged", became)]
    else:
        assert rows == []


def repvgg(net, dtype=ir.DataType.FLOAT):
    rng = np.random.default_rng(0)
    n = net(("n", 8, 14, 14), dtype)
    wide = n.op("Conv", n.x, n.constant(rng.standard_normal((8, 8, 3, 3)), "wide.weight"), pads=[1, 1, 1, 1])
    point = n.op("Conv", n.x, n.constant(rng.standard_normal((8, 8, 1, 1))), n.constant(rng.standard_normal(8)))
    norm = n.affine(n.x, rng.standard_normal(8), rng.standard_normal(8), "rbr_identity")
    return n.end(n.op("Relu", n.op("Add", n.op("Add", wide, point), norm)))


def test_a_repvgg_block_is_one_convolution_that_keeps_the_main_name(net):
    n = repvgg(net)
    before = n.run()
    assert n.merge() == ["Conv", "Relu"]
    close(n.run(), before)
    conv = n.graph.node(0)
    assert conv.name == "conv2"
    assert conv.inputs[1].name == "wide.weight"
    row = n.context.ledger[0]
    assert (row.where, row.kind, row.action, row.into) == ("rbr_identity", "BatchNormalization", "merged", "conv2")
    weight = conv.inputs[1].const_value
    np.testing.assert_array_equal(weight.numpy(), weight.numpy64().astype(np.float32))


def test_float16_weights_are_rounded_once(net):
    n = repvgg(net, ir.DataType.FLOAT16)
    before = n.run()
    assert n.merge() == ["Conv", "Relu"]
    close(n.run(), before)
    assert n.graph.node(0).inputs[1].const_value.dtype == ir.DataType.FLOAT16


def test_a_diverse_branch_block_with_chains_merges(net):
    rng = np.random.default_rng(1)
    n = net(("n", 6, "h", "w"))
    w1, w2 = rng.standard_normal((6, 6, 1, 1)), rng.standard_normal((6, 6, 3, 3))
    point = n.op("Conv", n.x, n.constant(w1))
    chain = n.op("Conv", point, n.constant(w2), n.constant(rng.standard_normal(6)), pads=[1, 1, 1, 1])
    again = n.op("Conv", n.x, n.constant(rng.standard_normal((6, 6, 1, 1))))
    pool = n.op("AveragePool", again, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    wide = n.op("Conv", n.x, n.constant(rng.standard_normal((6, 6, 3, 3))), pads=[1, 1, 1, 1])
    asym = n.op("Conv", n.x, n.constant(rng.standard_normal((6, 6, 1, 3))), pads=[0, 1, 0, 1])
    n.end(n.op("Sum", chain, pool, wide, asym))
    before = n.run()
    assert n.merge() == ["Conv"]
    close(n.run(), before)


def test_a_subtracted_branch_counts_negative(net):
    rng = np.random.default_rng(2)
    n = net(("n", 4, "h", "w"))
    a = n.op("Conv", n.x, n.constant(rng.standard_normal((4, 4, 3, 3))), pads=[1, 1, 1, 1])
    b = n.op("Conv", n.x, n.constant(rng.standard_normal((4, 4, 1, 1))), n.constant(rng.standard_normal(4)))
    n.end(n.op("Sub", a, b))
    before = n.run()
    assert n.merge() == ["Conv"]
    close(n.run(), before)


def test_strangers_in_the_sum_stay(net):
    rng = np.random.default_rng(3)
    n = net(("n", 4, "h", "w"))
    a = n.op("Conv", n.x, n.constant(rng.standard_normal((4, 4, 3, 3))), pads=[1, 1, 1, 1])
    b = n.op("Conv", n.x, n.constant(rng.standard_normal((4, 4, 1, 1))))
    stranger = n.op("Sigmoid", n.x)
    n.end(n.op("Sub", n.op("Add", a, n.op("Sub", stranger, b)), n.op("Sin", n.x)))
    before = n.run()
    assert sorted(n.merge()) == ["Add", "Conv", "Sigmoid", "Sin", "Sub"]
    close(n.run(), before)


def test_unequal_pads_line_up(net):
    rng = np.random.default_rng(4)
    n = net(("n", 3, "h", "w"))
    a = n.op("Conv", n.x, n.constant(rng.standard_normal((5, 3, 3, 2))), pads=[2, 0, 0, 1])
    b = n.op("Conv", n.x, n.constant(rng.standard_normal((5, 3, 2, 3))), pads=[0, 2, 1, 0])
    n.end(n.op("Add", a, b))
    before = n.run()
    n.merge()
    close(n.run(), before)


def test_same_padding_is_understood(net):
    rng = np.random.default_rng(5)
    n = net(("n", 3, 8, 9))
    a = n.op("Conv", n.x, n.constant(rng.standard_normal((5, 3, 3, 3))), auto_pad="SAME_UPPER", strides=[2, 2])
    b = n.op("Conv", n.x, n.constant(rng.standard_normal((5, 3, 3, 3))), pads=[0, 1, 1, 1], strides=[2, 2])
    n.end(n.op("Add", a, b))
    before = n.run()
    assert n.merge() == ["Conv"]
    close(n.run(), before)


@st.composite
def spread(draw):
    """Transposed convolutions of one stride whose results have one size."""
    rank = draw(st.integers(1, 2))
    strides, dilations = ([draw(st.integers(1, 2)) for _ in range(rank)] for _ in range(2))
    most = [draw(st.integers(2, 4)) for _ in range(rank)]
    branches = []
    for _ in range(draw(st.integers(2, 3))):
        size = [draw(st.integers(1, n)) for n in most]
        span = [(n - 1) * step for n, step in zip(size, dilations, strict=True)]
        begin = [draw(st.integers(0, reach)) for reach in span]
        branches.append((size, begin, [reach - first for reach, first in zip(span, begin, strict=True)]))
    more = {"group": draw(st.sampled_from([1, 2])), "norm": draw(st.booleans()), "seed": draw(st.integers(0, 2**31))}
    return {"branches": branches, "strides": strides, "dilations": dilations} | more


@settings(deadline=None, max_examples=30)
@given(spread())
def test_a_sum_of_transposed_convolutions_is_one(net, case):
    """Of any kernels, with a norm behind each or without, behind a point or not; torch computes what is wanted."""
    rng = np.random.default_rng(case["seed"])
    n = net(("n", 4, *["h", "w"][: len(case["strides"])]), ir.DataType.DOUBLE)
    total, expected, x = None, 0.0, torch.from_numpy(n.feeds()["x"])
    transposed = torch.nn.functional.conv_transpose1d if x.dim() == 3 else torch.nn.functional.conv_transpose2d
    options = {name: case[name] for name in ("strides", "dilations", "group")}
    for size, begin, end in case["branches"]:
        point, w, b = (rng.standard_normal(shape) for shape in ((4, 4), (4, 6 // case["group"], *size), (6,)))
        behind = bool(rng.integers(2))
        flat = point.reshape(4, 4, *(1,) * len(size))
        read = n.op("Conv", n.x, n.constant(flat)) if behind else n.x
        term = n.op(
            "ConvTranspose",
            read,
            n.constant(w),
            n.constant(b),
            pads=[*begin, *end],
            shape=["n", 6, *"hw"[: len(size)]],
            **options,
        )
        source = torch.einsum("oi,ni...->no...", torch.from_numpy(point), x) if behind else x
        want = transposed(
            source, torch.from_numpy(w), None, case["strides"], 0, 0, case["group"], case["dilations"]
        ).numpy()
        for axis, (first, last) in enumerate(zip(begin, end, strict=True), 2):
            want = want.take(range(first, want.shape[axis] - last), axis)
        want = want + b.reshape(1, -1, *(1,) * len(size))
        if case["norm"]:
            s, t = rng.standard_normal((2, 6))
            term = n.affine(term, s, t)
            want = want * s.reshape(1, -1, *(1,) * len(size)) + t.reshape(1, -1, *(1,) * len(size))
        total = term if total is None else n.op("Add", term, total)
        expected = expected + want
    n.end(total)
    merged = n.merge()
    close(n.run(), expected)
    assert "ConvTranspose" in merged
    if case["group"] == 1 and len({tuple(map(tuple, branch)) for branch in case["branches"]}) == 1:
        assert merged == ["ConvTranspose"]


REFUSALS = {
    # what stays, and what its row says; "" where nobody would expect one operator
    "another reader": "",
    "different inputs": "",
    "weight at run time": "",
    "graph output": "",
    "only affine maps": "",
    "different strides of one size": "Conv 'conv6': their strides differ (1x1 and 6x6)",
    "different sizes for some inputs": "export it with a fixed size",
    "uncounted padding": "divides by fewer numbers at the border, which one kernel cannot; count the padding",
    "transposed": "one spreads each place over several, the other reads several for one",
    "transposed, of two sizes": "their results differ in size",
    "transposed, with places that no tap reaches": "follows from sizes, or adds places",
    "transposed, behind a bias": "one spreads each place over several, and the other is no map of single places",
    "ceil mode": "may reach over the end (ceil_mode)",
    "hidden bias": "pads with zeros, where the first would give its bias; pad in front of the first",
    "other channels": "one makes 4 channels of 4, the other 1 of 4",
    "more multiply-adds": "as one operator it would cost 2.38 times as much, with 1600 multiply-adds",
    "depthwise beside dense": "as one operator it would cost 3.90 times as much, with 288 multiply-adds",
    "float16 overflow": "as one operator its weights would overflow float16",
    "dilations differ": "as one operator it would cost 1.18 times as much, with 200 multiply-adds",
    "taps between taps": "as one operator it would cost 1.67 times as much, with 288 multiply-adds",
    "automatic padding of a dynamic size": "the padding of Conv 'conv2' depends on a dynamic size",
    "negative padding": "has negative padding; cut its input in front of it",
    "far from zero": "values 50 times as far from zero as what BatchNormalization 'norm' makes of them",
    "a window wider than its padding": "has negative padding; cut its input in front of it",
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_exact_or_does_not_pay_stays(net, case):
    rng = np.random.default_rng(6)

    def w(*shape):
        return n.constant(rng.standard_normal(shape))

    outputs = []
    n = net(("n", 4, 6, 6), ir.DataType.FLOAT16 if case == "float16 overflow" else ir.DataType.FLOAT)
    a = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[1, 1, 1, 1])
    if case == "another reader":
        b = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[1, 1, 1, 1])
        outputs = [n.op("Relu", b)]
    elif case == "different inputs":
        b = n.op("Conv", n.op("Relu", n.x), w(4, 4, 1, 1))
    elif case == "different strides of one size":
        a = n.op("Conv", n.x, w(4, 4, 6, 6))
        b = n.op("Conv", n.x, w(4, 4, 1, 1), strides=[6, 6])
    elif case == "uncounted padding":
        b = n.op("AveragePool", n.x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    elif case == "transposed":
        b = n.op("ConvTranspose", n.x, w(4, 4, 3, 3), pads=[1, 1, 1, 1])
    elif case == "transposed, of two sizes":
        a = n.op("ConvTranspose", n.x, w(4, 4, 2, 2))
        b = n.op("ConvTranspose", n.x, w(4, 4, 1, 1), pads=[3, 3, 2, 2])  # of one place, which is repeated
    elif case == "transposed, with places that no tap reaches":
        a, b = (n.op("ConvTranspose", n.x, w(4, 4, 1, 1), strides=[2, 2], output_padding=[1, 1]) for _ in range(2))
    elif case == "transposed, behind a bias":
        a = n.op("ConvTranspose", n.x, w(4, 4, 2, 2), strides=[2, 2])
        b = n.op("ConvTranspose", n.op("Conv", n.x, w(4, 4, 1, 1), w(4)), w(4, 4, 2, 2), strides=[2, 2])
    elif case == "different sizes for some inputs":
        n = net(("n", 4, "h", 6))
        a = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[1, 1, 1, 1], strides=[3, 3])
        b = n.op("AveragePool", n.x, kernel_shape=[2, 2], strides=[3, 3])
    elif case == "ceil mode":
        n = net(("n", 4, 5, 6))
        a = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
        b = n.op("AveragePool", n.x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    elif case == "weight at run time":
        b = n.op("Conv", n.x, n.op("Relu", n.op("Identity", w(4, 4, 1, 1))))
    elif case == "hidden bias":
        point = n.op("Conv", n.x, w(4, 4, 1, 1), w(4))
        b = n.op("Conv", point, w(4, 4, 3, 3), pads=[1, 1, 1, 1])
    elif case == "graph output":
        b = n.op("Conv", n.x, w(4, 4, 1, 1))
        outputs = [b]
    elif case == "other channels":
        b = n.op("Conv", n.x, w(1, 4, 1, 1))
    elif case == "depthwise beside dense":
        n = net(("n", 32, 6, 6))
        a = n.op("Conv", n.x, w(32, 1, 3, 3), pads=[1, 1, 1, 1], group=32)
        b = n.op("Conv", n.x, w(32, 32, 1, 1))
    elif case == "only affine maps":
        a = n.affine(n.x, rng.standard_normal(4), rng.standard_normal(4))
        b = n.affine(n.x, rng.standard_normal(4), rng.standard_normal(4))
    elif case == "more multiply-adds":
        n = net(("n", 64, 6, 6))
        a = n.op("Conv", n.x, w(64, 64, 1, 5), pads=[0, 2, 0, 2])
        b = n.op("Conv", n.x, w(64, 64, 5, 1), pads=[2, 0, 2, 0])
    elif case == "float16 overflow":
        a = n.op("Conv", n.x, n.constant(np.full((4, 4, 1, 1), 6e4)))
        b = n.op("Conv", n.x, n.constant(np.full((4, 4, 1, 1), 6e4)))
    elif case == "dilations differ":
        n = net(("n", 8, 6, 6))
        a = n.op("Conv", n.x, w(8, 8, 3, 3), pads=[2] * 4, dilations=[2, 2])
        b = n.op("Conv", n.x, w(8, 8, 3, 3), pads=[1] * 4)
    elif case == "taps between taps":
        n = net(("n", 8, 6, 6))
        a = n.op("Conv", n.x, w(8, 8, 3, 3), pads=[2] * 4, dilations=[2, 2])
        b = n.op("Conv", n.x, w(8, 8, 3, 3), pads=[1, 1, 3, 3], dilations=[2, 2])
    elif case == "automatic padding of a dynamic size":
        n = net(("n", 4, "h", "w"))
        a = n.op("Conv", n.x, w(4, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2])
        b = n.op("Conv", n.x, w(4, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2])
    elif case == "far from zero":  # 50 standard deviations
        a, b = (n.op("Conv", n.affine(n.x, w4, -50 * np.ones(4)), w(4, 4, 1, 1)) for w4 in rng.uniform(0.5, 1, (2, 4)))
    elif case == "negative padding":
        a = n.op("Conv", n.x, w(4, 4, 1, 1), pads=[-1, 0, 0, 0])
        b = n.op("Conv", n.x, w(4, 4, 1, 1), pads=[-1, 0, 0, 0])
    elif case == "a window wider than its padding":
        # both shrink the size by 1, but one reads a row that the other's window would have to begin before
        a = n.op("Conv", n.x, w(4, 4, 1, 1), pads=[0, 0, -1, 0])
        b = n.op("Conv", n.x, w(4, 4, 2, 1))
    n.end(n.op("Add", a, b), *outputs)
    before, text = n.run(), n.operators()
    assert n.merge() == text, case
    close(n.run(), before)
    rows = [(row.kind, row.action) for row in n.context.ledger]
    assert rows == ([("parallel branches", "kept")] if REFUSALS[case] else [])
    assert all(REFUSALS[case] in row.reason and row.site == (n.graph.outputs[0].name,) for row in n.context.ledger)


def one_window_in_another(case, n, w):
    """Return two branches whose taps, groups or padding differ, and that are one operator all the same."""
    if case == "dilated inside a larger kernel":
        a = n.op("Conv", n.x, w(4, 4, 7, 7), pads=[3] * 4)
        return a, n.op("Conv", n.x, w(4, 4, 3, 3), pads=[3] * 4, dilations=[3, 3])
    if case == "dilated depthwise":
        a = n.op("Conv", n.x, w(4, 1, 3, 3), pads=[2] * 4, dilations=[2, 2], group=4)
        return a, n.op("Conv", n.x, w(4, 1, 3, 3), pads=[1] * 4, group=4)
    if case == "grouped inside dense":
        a = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[1] * 4)
        return a, n.op("Conv", n.x, w(4, 2, 3, 3), pads=[1] * 4, group=2)
    if case == "a pad apart":
        a = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[1, 2, 1, 2])
        padded = n.op("Pad", n.x, n.constant(np.array([1, 2, 1, 2])), None, n.constant(np.array([-2, 3])))
        return a, n.op("Conv", padded, w(4, 4, 3, 3))
    if case == "strided beside a pool of even sizes":
        a = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[1] * 4, strides=[2, 2])
        pool = n.op("AveragePool", n.x, kernel_shape=[2, 2], strides=[2, 2])
        return a, n.op("Conv", pool, w(4, 4, 1, 1), n.constant(np.arange(4.0)))
    if case == "a pool whose ceil_mode changes nothing":
        a = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[1] * 4, strides=[2, 2])
        return a, n.op("AveragePool", n.x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    assert case == "a pool that slides to even sizes"
    a = n.op("Conv", n.x, w(4, 4, 5, 5), pads=[1] * 4, strides=[3, 3])
    return a, n.op("AveragePool", n.x, kernel_shape=[3, 3], strides=[3, 3], auto_pad="SAME_UPPER", count_include_pad=1)


@pytest.mark.parametrize(
    "case",
    ["dilated inside a larger kernel", "dilated depthwise", "grouped inside dense", "a pad apart",
     "strided beside a pool of even sizes", "a pool whose ceil_mode changes nothing",
     "a pool that slides to even sizes"],
)  # fmt: skip
def test_windows_that_lie_in_one_another_are_one(net, case):
    rng = np.random.default_rng(8)
    n = net(("n", 4, 30, 36))
    n.end(n.op("Add", *one_window_in_another(case, n, lambda *shape: n.constant(rng.standard_normal(shape)))))
    before = n.run()
    root, operators = n.graph.outputs[0].producer().name, len(n.operators())
    assert n.merge() == ["Conv"]
    close(n.run(), before)
    rows = [(row.where, row.kind, row.action, row.into, row.reason) for row in n.context.ledger]
    became = f"{operators} operators became one"
    assert rows == [(root, "parallel branches", "merged", n.graph.node(0).name, became)]
    n.check_rounding()


def test_a_branch_that_does_not_pay_is_left_out(net):
    """A dense kernel takes up its 1x1 and the input, and not the depthwise one that is wider; that has a row."""
    rng = np.random.default_rng(10)
    n = net(("n", 16, 12, 12))
    wide = n.op("Conv", n.x, n.constant(rng.standard_normal((16, 1, 7, 7))), pads=[3] * 4, group=16)
    dense = n.op("Conv", n.x, n.constant(rng.standard_normal((16, 16, 3, 3))), pads=[1] * 4)
    point = n.op("Conv", n.x, n.constant(rng.standard_normal((16, 16, 1, 1))))
    n.end(n.op("Sum", wide, dense, point, n.x))
    before = n.run()
    assert sorted(n.merge()) == ["Add", "Conv", "Conv"]
    close(n.run(), before)
    merged, (kind, action, reason) = [(row.kind, row.action, row.reason) for row in n.context.ledger]
    assert merged == ("parallel branches", "merged", "2 operators became one")  # what adds them still adds the wide one
    assert (kind, action) == ("parallel branches", "kept")
    assert "times as much, with 784 multiply-adds per element" in reason


def test_branches_behind_branches_are_one(net):
    """A sum in front of a convolution is part of its chain; the row of what merged last takes the first one's place."""
    rng = np.random.default_rng(9)
    n = net(("n", 4, "h", "w"))
    point = [n.op("Conv", n.x, n.constant(rng.standard_normal((4, 4, 1, 1)))) for _ in range(2)]
    n.end(n.op("Conv", n.op("Sub", *point), n.constant(rng.standard_normal((4, 4, 3, 3))), pads=[1] * 4))
    before = n.run()
    assert n.merge() == ["Conv"]
    close(n.run(), before)
    rows = [(row.kind, row.action, row.reason) for row in n.context.ledger]
    assert rows == [("operators in a row", "merged", "4 operators became one")]


def test_a_wrong_merge_would_not_ship(net, monkeypatch):
    from normdeploy.errors import RewriteError
    from normdeploy.rewrite.branches.window import Window

    n = repvgg(net)
    monkeypatch.setattr(Window, "taps_in", lambda self, _whole: tuple(slice(size) for size in self.size))
    with pytest.raises(RewriteError, match="parallel branches"):
        n.merge()


def test_the_merged_weight_is_exact(net):
    n = repvgg(net)
    parts = {name: constant64(value) for name, value in n.graph.initializers.items()}
    n.merge()
    point = next(array for array in parts.values() if array.shape == (8, 8, 1, 1))
    scale = next(constant for name, constant in parts.items() if name.endswith("scale"))
    expected = parts["wide.weight"].copy()
    expected[:, :, 1, 1] += point[:, :, 0, 0] + np.diag(scale.reshape(-1))
    np.testing.assert_allclose(n.graph.node(0).inputs[1].const_value.numpy64(), expected, rtol=1e-15)
