"""Sums of linear branches of one input become one convolution; everything else is refused."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.graph import constant64


def close(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1e-12 * np.abs(expected).max()


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
    assert n.merge() == ["Conv"]
    close(n.run(n.feeds(case["seed"])), expected)
    rows = [(row.where, row.action) for row in n.context.ledger]
    assert rows == ([("norm", "merged")] if case["affine"] else [])


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


REFUSALS = {
    "another reader": 3,
    "different inputs": 3,
    "different strides of one size": 3,
    "uncounted padding": 3,
    "ceil mode": 3,
    "weight at run time": 4,
    "hidden bias": 4,
    "graph output": 3,
    "groups": 3,
    "only affine maps": 3,
    "more multiply-adds": 3,
    "float16 overflow": 3,
    "dilations differ": 3,
    "taps between taps": 3,
    "automatic padding of a dynamic size": 3,
    "negative padding": 3,
    "a window wider than its padding": 3,
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
    elif case == "ceil mode":
        b = n.op("AveragePool", n.x, kernel_shape=[1, 1], ceil_mode=1)
    elif case == "weight at run time":
        b = n.op("Conv", n.x, n.op("Relu", n.op("Identity", w(4, 4, 1, 1))))
    elif case == "hidden bias":
        point = n.op("Conv", n.x, w(4, 4, 1, 1), w(4))
        b = n.op("Conv", point, w(4, 4, 3, 3), pads=[1, 1, 1, 1])
    elif case == "graph output":
        b = n.op("Conv", n.x, w(4, 4, 1, 1))
        outputs = [b]
    elif case == "groups":
        b = n.op("Conv", n.x, w(4, 2, 3, 3), pads=[1, 1, 1, 1], group=2)
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
        a = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[2] * 4, dilations=[2, 2])
        b = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[1] * 4)
    elif case == "taps between taps":
        a = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[2] * 4, dilations=[2, 2])
        b = n.op("Conv", n.x, w(4, 4, 3, 3), pads=[1, 1, 3, 3], dilations=[2, 2])
    elif case == "automatic padding of a dynamic size":
        n = net(("n", 4, "h", "w"))
        a = n.op("Conv", n.x, w(4, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2])
        b = n.op("Conv", n.x, w(4, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2])
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
    assert len(n.context.ledger) == 0


def test_a_wrong_merge_would_not_ship(net, monkeypatch):
    from normdeploy.errors import RewriteError
    from normdeploy.rewrite.branches import window

    n = repvgg(net)
    monkeypatch.setattr(window, "offset", lambda _inner, whole: (0,) * len(whole.size))
    with pytest.raises(RewriteError, match="parallel convolutions"):
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
