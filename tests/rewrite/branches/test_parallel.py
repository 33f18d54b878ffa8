"""Sums of linear branches of one input become one convolution; everything else is refused."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from normdeploy.graph import constant64

CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def close(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1e-12 * np.abs(expected).max()


@st.composite
def settings_of_a_block(draw):
    rank = draw(st.integers(1, 3))
    stride = draw(st.integers(1, 2))
    dilation = draw(st.integers(1, 2))
    group = draw(st.sampled_from([1, 2, 4]))
    same = draw(st.booleans())
    # kernel half-widths per axis; padding half * dilation keeps the excess at 0
    halves = draw(st.lists(st.lists(st.integers(0, 2), min_size=rank, max_size=rank), min_size=2, max_size=4))
    return rank, stride, dilation, group, same, halves, draw(st.integers(0, 2**31))


@settings(deadline=None, max_examples=30)
@given(settings_of_a_block())
def test_a_sum_of_convolutions_is_one(net, block):
    rank, stride, dilation, group, same, halves, seed = block
    rng = np.random.default_rng(seed)
    ins, outs = 4, 4 if same else 8
    n = net(("n", ins, *[f"d{i}" for i in range(rank)]))
    terms, weights = [], []
    for index, half in enumerate(halves):
        w = rng.standard_normal((outs, ins // group, *[2 * h + 1 for h in half])).astype(np.float32)
        b = rng.standard_normal(outs).astype(np.float32) if index % 2 == 0 else None
        pads = [h * dilation for h in half] * 2
        inputs = [n.x, n.constant(w)] + ([n.constant(b)] if b is not None else [])
        terms.append(
            n.op("Conv", *inputs, group=group, strides=[stride] * rank, dilations=[dilation] * rank, pads=pads)
        )
        weights.append((w, b, [h * dilation for h in half]))
    total = terms[0]
    for term in terms[1:]:
        total = n.op("Add", term, total)
    n.end(total)
    x = torch.from_numpy(n.feeds()["x"])
    expected = sum(
        CONV[rank](
            x,
            torch.from_numpy(w.astype(np.float64)),
            None if b is None else torch.from_numpy(b.astype(np.float64)),
            stride,
            pads,
            dilation,
            group,
        )
        for w, b, pads in weights
    ).numpy()
    merged = n.merge()
    close(n.run(), expected)
    if all(max(h) == max(map(max, halves)) for h in halves) and len({tuple(h) for h in halves}) == 1:
        assert merged == ["Conv"]


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 3), st.sampled_from([1, 2, 6]), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**31)
)
def test_identity_affine_and_pool_branches_are_kernels(net, rank, group, with_affine, with_identity, with_pool, seed):
    rng = np.random.default_rng(seed)
    channels = 6
    n = net(("n", channels, *[f"d{i}" for i in range(rank)]))
    w = rng.standard_normal((channels, channels // group, *(3,) * rank)).astype(np.float32)
    b = rng.standard_normal(channels).astype(np.float32)
    total = n.op("Conv", n.x, n.constant(w), n.constant(b), group=group, pads=[1] * 2 * rank)
    x = torch.from_numpy(n.feeds(seed)["x"])
    expected = CONV[rank](x, torch.from_numpy(w).double(), torch.from_numpy(b).double(), 1, 1, 1, group)
    spread = (1, -1, *(1,) * rank)
    if with_affine:
        s, t = rng.standard_normal(channels), rng.standard_normal(channels)
        total = n.op("Add", n.affine(n.x, s, t), total)
        expected = expected + torch.from_numpy(s).reshape(spread) * x + torch.from_numpy(t).reshape(spread)
    if with_identity:
        total = n.op("Add", total, n.x)
        expected = expected + x
    if with_pool:
        pool = n.op("AveragePool", n.x, kernel_shape=[3] * rank, pads=[1] * 2 * rank, count_include_pad=1)
        total = n.op("Add", pool, total)
        average = torch.full((channels, 1, *(3,) * rank), 1 / 3**rank, dtype=torch.float64)
        expected = expected + CONV[rank](x, average, None, 1, 1, 1, channels)
    n.end(total)
    assert n.merge() == ["Conv"]
    close(n.run(n.feeds(seed)), expected.numpy())
    rows = [(row.where, row.action) for row in n.context.ledger]
    assert rows == ([("norm", "merged")] if with_affine else [])


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
