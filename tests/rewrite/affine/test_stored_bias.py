"""A Gemm's addend stored in int32 (step: the input's times the weight's) takes scales, and shifts of whole steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)
FLOATS = 2e-5
"""Steps are float32 by the operator's definition; the check of each rewrite is the one in float64."""
INS, OUTS, STEP_IN = 4, 6, np.float32(2.0**-5)
SHAPES = {"vector": (OUTS,), "row": (1, OUTS), "column": (OUTS, 1)}


class Layer:
    """A Gemm on a quantized input with int8 weights and an int32 addend of step STEP_IN * step of the weight.

    Args:
        g: the graph. rng: of its numbers.
        x: what it reads.
        one_step: a step for all channels, or one for each.
        shape: of the addend. bias: its integers; random ones by default.
        attributes: of the Gemm.
    """

    def __init__(self, g, rng, x, *, one_step=False, shape=(OUTS,), bias=None, steps=None, turned=False, **attributes):
        powers = 2.0 ** rng.integers(-7, -2, () if one_step else OUTS)
        self.step = np.float32(powers) if steps is None else steps
        self.weight = rng.integers(-99, 100, (OUTS, INS)).astype(np.int8)
        self.bias = rng.integers(-999, 1000, OUTS) if bias is None else bias
        self.bias_step = np.float32(STEP_IN * self.step)
        self.alpha, self.beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
        stored = self.weight if attributes.get("transB") or turned else self.weight.T
        along = {} if one_step else {"axis": 0 if stored is self.weight else 1}
        w = g.op(
            "DequantizeLinear", g.constant(np.ascontiguousarray(stored), "w"), self.step, name="restore_w", **along
        )
        integers = self.bias.astype(np.int32).reshape(shape)
        axis = {} if one_step else {"axis": shape.index(OUTS)}
        b = g.op("DequantizeLinear", g.constant(integers, "b"), self.bias_step, name="restore_b", **axis)
        self.restored = b
        self.result = g.op("Gemm", *((w, x) if turned else (x, w)), b, name="linear", **attributes)

    def through(self, shift):
        """What a shift of the input adds to each channel, in float64."""
        return self.alpha * np.float64(self.step) * (self.weight.astype(np.float64) @ shift)


def addend(result):
    """Return (integers, step) of the Gemm's addend, or (floats, None)."""
    gemm = next(node for node in result.after.graph.node if node.op_type == "Gemm")
    made = {node.output[0]: node for node in result.after.graph.node}
    node = made.get(gemm.input[2])
    return (result.weight(gemm.input[2]), None) if node is None else tuple(map(result.weight, node.input[:2]))


def integers_of_the_weight(result):
    made = {node.output[0]: node for node in result.after.graph.node}
    gemm = next(node for node in result.after.graph.node if node.op_type == "Gemm")
    return result.weight(next(made[name].input[0] for name in gemm.input[:2] if name in made))


@given(
    SEED,
    st.sampled_from(["behind", "in front", "both"]),
    st.booleans(),
    st.sampled_from(["vector", "row"]),
    st.sampled_from([{}, {"transB": 1}, {"alpha": 0.5}, {"beta": 2.0}, {"alpha": -2.0, "beta": -0.5, "transB": 1}]),
)
def test_whole_steps_go_into_the_integers(graph, fold, seed, where, one_step, shape, attributes):
    """q' = sign(s) (q + a / d_b), d_b' = d_b / |s|, the weights' integers with the sign alone."""
    rng = np.random.default_rng(seed)
    g = graph(dtype=np.float32, opset=19)
    x, front, behind = g.input("x", ["N", INS]), np.zeros(INS), np.zeros(OUTS)
    if where != "behind":
        front = np.float64(STEP_IN) * 4 * rng.integers(1, 9, INS)  # whole, whatever alpha and beta are
        x = g.op("Add", x, front)
    layer = Layer(g, rng, x, one_step=one_step, shape=SHAPES[shape], **attributes)
    y = layer.result
    if where != "in front":
        behind = 2 * rng.integers(1, 50, OUTS) * np.float64(layer.bias_step)
        y = g.op("Add", y, behind)
    scale = rng.choice([-1, 1], OUTS) * rng.uniform(0.5, 2, OUTS).astype(np.float32)
    g.output(g.op("Mul", y, scale))
    result = fold(g).agree(g.feeds(rng, N=2), FLOATS)
    assert set(result.actions) == {"folded"}, list(result.ledger)
    assert result.ops == {"DequantizeLinear": 2, "Gemm": 1}
    added = (layer.through(front) + behind) / layer.beta / np.float64(layer.bias_step)
    np.testing.assert_array_equal(added, np.rint(added))  # so the construction says
    integers, step = addend(result)
    assert integers.dtype == np.int32
    assert integers.shape == SHAPES[shape]
    np.testing.assert_array_equal(integers.reshape(-1), np.sign(scale) * (layer.bias + added))
    np.testing.assert_array_equal(step, (np.float64(layer.bias_step) * np.abs(scale.astype(np.float64))).astype("f4"))
    expected = layer.weight * np.sign(scale).astype(int)[:, None]
    np.testing.assert_array_equal(integers_of_the_weight(result), expected if "transB" in attributes else expected.T)


@pytest.mark.parametrize("place", ["behind", "in front"])
@pytest.mark.parametrize("beta", [1.0, -0.5])
def test_a_shift_of_broken_steps_makes_it_one_of_floats(graph, fold, place, beta):
    """b' = b + a / beta in float64, rounded once; the row says what rounding it to steps would move."""
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    shift = rng.normal(size=INS if place == "in front" else OUTS).astype(np.float32)
    x = g.input("x", ["N", INS])
    layer = Layer(g, rng, g.op("Add", x, shift) if place == "in front" else x, transB=1, beta=beta)
    g.output(g.op("Add", layer.result, shift) if place == "behind" else layer.result)
    result = fold(g).folded().agree(g.feeds(rng, N=2), FLOATS)
    moved = (layer.through(shift.astype(np.float64)) if place == "in front" else shift.astype(np.float64)) / beta
    found, step = addend(result)
    assert step is None
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, layer.bias * np.float64(layer.bias_step) + moved, rtol=2.0**-24, atol=0)
    broken = moved / np.float64(layer.bias_step)
    lost = np.abs(broken - np.rint(broken)).max()
    [reason] = [row.reason for row in result.ledger]
    assert "the bias of Gemm 'linear' is stored in float now: " in reason
    assert f"a runtime that rounds it to such steps moves it by at most {lost:.2g} of one" in reason


def test_a_norm_behind_goes_into_weights_steps_and_bias(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    layer = Layer(g, rng, g.input("x", ["N", INS]), transB=1)
    g.output(g.batch_norm(layer.result, OUTS, rng))
    result = fold(g).folded().agree(g.feeds(rng, N=2), FLOATS)
    assert result.ops == {"DequantizeLinear": 1, "Gemm": 1}
    np.testing.assert_array_equal(np.abs(integers_of_the_weight(result)), np.abs(layer.weight))


def test_a_product_by_a_weight_on_the_left_has_its_channels_along_rows(graph, fold):
    """y = W x + C: C is a column."""
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    layer = Layer(g, rng, g.input("x", [INS, "N"]), shape=SHAPES["column"], turned=True)
    added = rng.integers(1, 50, OUTS)
    y = g.op("Add", layer.result, (added * np.float64(layer.bias_step)).reshape(OUTS, 1))
    g.output(g.op("Mul", y, np.full((OUTS, 1), -1.5)))
    result = fold(g).agree(g.feeds(rng, N=2), FLOATS)
    assert set(result.actions) == {"folded"}, list(result.ledger)
    integers, _ = addend(result)
    np.testing.assert_array_equal(integers, -(layer.bias + added).reshape(OUTS, 1))


def test_one_that_another_layer_reads_is_copied_for_the_one_that_changes(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    x = g.input("x", ["N", INS])
    layer = Layer(g, rng, x)
    added = rng.integers(1, 50, OUTS)
    g.output(g.op("Add", layer.result, added * np.float64(layer.bias_step)))
    g.output(g.op("Gemm", x, rng.normal(size=(INS, OUTS)), layer.restored, name="other"))
    result = fold(g).folded().agree(g.feeds(rng, N=2), FLOATS)
    made = {node.output[0]: node for node in result.after.graph.node}
    gemms = {node.name: node for node in result.after.graph.node if node.op_type == "Gemm"}
    read = {name: result.weight(made[node.input[2]].input[0]) for name, node in gemms.items()}
    np.testing.assert_array_equal(read["linear"], layer.bias + added)
    np.testing.assert_array_equal(read["other"], layer.bias)


@pytest.mark.parametrize("broken", [False, True])
def test_what_int32_does_not_hold_is_refused(graph, fold, broken):
    """In floats, too: a runtime that rounds the bias to its steps would cut it off."""
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    steps = np.full(OUTS, 2.0**-5, np.float32)
    steps[2] = 2.0**-25  # a channel whose weights are as good as zero
    layer = Layer(g, rng, g.input("x", ["N", INS]), steps=steps, bias=np.arange(OUTS))
    shift = np.zeros(OUTS)
    shift[2], shift[3] = 3.0, 0.3 if broken else 0.0
    g.output(g.op("Add", layer.result, shift))
    total = 2 + 3.0 / 2.0**-30
    assert total > 2**31 - 1
    fold(g).kept(
        "the bias of Gemm 'linear' would overflow int32: that of channel 2 would be "
        f"{total:.3g} steps of {2.0**-30:.3g}; fold before quantizing, or give that channel's weights a larger step"
    ).agree(g.feeds(rng, N=2), FLOATS)


def test_the_greatest_integers_are_taken(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    most = np.full(OUTS, 2**31 - 1 - 7)
    layer = Layer(g, rng, g.input("x", ["N", INS]), one_step=True, steps=np.float32(2.0**-5), bias=most)
    g.output(g.op("Add", layer.result, np.full(OUTS, 7 * 2.0**-10)))
    result = fold(g).folded()
    np.testing.assert_array_equal(addend(result)[0], np.full(OUTS, 2**31 - 1))


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((1,), "of shape [1], which is not one number per channel"),
        ((3, OUTS), "of shape [3, 6], which is not one number per channel"),
    ],
)
@pytest.mark.parametrize("scaled", [False, True])
def test_an_addend_that_is_not_one_number_per_channel_is_refused(graph, fold, shape, said, scaled):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    w = g.op("DequantizeLinear", g.constant(rng.integers(-9, 9, (INS, OUTS)).astype(np.int8), "w"), np.array(0.5))
    b = g.op("DequantizeLinear", g.constant(rng.integers(-9, 9, shape).astype(np.int32), "b"), np.array(0.25))
    y = g.op("Gemm", g.input("x", [3, INS]), w, b, name="linear")
    g.output(g.op("Mul", y, rng.uniform(0.5, 2, OUTS)) if scaled else g.op("Add", y, np.full(OUTS, 0.5)))
    fold(g).kept(f"Gemm 'linear' has a bias stored in integers {said}").agree(g.feeds(rng), FLOATS)


def test_an_addend_that_beta_switches_off_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    layer = Layer(g, rng, g.input("x", ["N", INS]), beta=0.0)
    g.output(g.op("Add", layer.result, rng.normal(size=OUTS)))
    fold(g).kept("Gemm 'linear' multiplies its bias, stored in integers, by beta = 0").agree(g.feeds(rng, N=2), FLOATS)


@pytest.mark.parametrize("kind", ["Gemm", "Conv"])
def test_steps_in_blocks_are_refused(graph, fold, kind):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=21)
    b = g.op(
        "DequantizeLinear", g.constant(rng.integers(-9, 9, OUTS).astype(np.int32), "b"), np.array([0.25, 0.5]),
        axis=0, block_size=3,
    )  # fmt: skip
    shape = ["N", INS] if kind == "Gemm" else ["N", INS, 5]
    weight = rng.normal(size=(INS, OUTS) if kind == "Gemm" else (OUTS, INS, 1))
    y = g.op(kind, g.input("x", shape), weight, b, name="linear")
    g.output(g.op("Mul", y, rng.uniform(0.5, 2, OUTS if kind == "Gemm" else (OUTS, 1))))
    fold(g).kept(f"{kind} 'linear' has a bias stored in integers in blocks").agree(g.feeds(rng, N=2), FLOATS)


def test_bytes_that_a_shift_would_leave_become_floats(graph, fold):
    """An addend of int8 is no form of a quantized layer: no runtime rounds floats to it."""
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float32, opset=19)
    whole = np.full(OUTS, 100, np.int8)
    b = g.op("DequantizeLinear", g.constant(whole, "b"), np.array(0.5))
    y = g.op("Gemm", g.input("x", ["N", INS]), rng.normal(size=(INS, OUTS)), b, name="linear")
    g.output(g.op("Add", y, np.full(OUTS, 20.0)))
    result = fold(g).folded().agree(g.feeds(rng, N=2), FLOATS)
    found, step = addend(result)
    assert step is None
    np.testing.assert_array_equal(found, np.full(OUTS, 70, np.float32))
