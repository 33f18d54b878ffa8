"""A norm in front of a branch of a residual stream: its shift goes into what writes the stream, its scale ahead."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)
SIDE = 4
SUMS = ["f + x", "x + f", "f - x", "x - f", "Sum"]


def takers(result):
    return {name for row in result.ledger for name in row.into.split(", ")}


def norm(g, x, rng, channels, *, last, name="norm"):
    """A map of the channels whose shift is no larger than its scale: a BatchNormalization, or arithmetic on tokens."""
    scale = rng.uniform(0.5, 2, channels) * rng.choice([-1, 1], channels)
    shift = rng.uniform(-0.5, 0.5, channels)
    if last:
        return g.op("Add", g.op("Mul", x, scale, name=name), shift)
    mean, deviation = rng.normal(size=channels), rng.uniform(0.5, 2, channels)
    operands = scale * deviation, shift + scale * mean, mean, deviation**2
    return g.op("BatchNormalization", x, *operands, epsilon=0.0, name=name)


def linear(g, x, rng, ins, outs, *, last, bias=True, name=None, kernel=1, stride=1):
    """A linear operator: a convolution of images, or a product of tokens."""
    if not last:
        operands = [rng.normal(size=(outs, ins, kernel, kernel)), *([rng.normal(size=outs)] if bias else [])]
        return g.op("Conv", x, *operands, pads=[kernel // 2] * 4, strides=[stride] * 2, name=name)
    product = g.op("MatMul", x, rng.normal(size=(ins, outs)), name=name)
    return g.op("Add", product, rng.normal(size=outs), name=f"{name}.bias" if name else None) if bias else product


def attention(g, x, rng, channels, heads, *, last, joint, mask, name="qkv"):
    """Attention without biases on queries, keys and values, up to the values that the projection reads."""
    size = channels // heads
    if not last:
        x = g.op("Transpose", g.op("Reshape", x, np.array([0, channels, SIDE * SIDE])), perm=[0, 2, 1])
    if joint:
        product = linear(g, x, rng, channels, 3 * channels, last=True, bias=False, name=name)
        parts = g.op("Split", product, outputs=3, axis=2, num_outputs=3)
    else:
        parts = [linear(g, x, rng, channels, channels, last=True, bias=False, name=f"{name}{at}") for at in range(3)]
    shape, turns = np.array([0, -1, heads, size]), ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    heads_first = [
        g.op("Transpose", g.op("Reshape", part, shape), perm=turn) for part, turn in zip(parts, turns, strict=True)
    ]
    scores = g.op("MatMul", heads_first[0], heads_first[1])
    if mask:
        scores = g.op("Add", scores, g.input("mask", [SIDE * SIDE, SIDE * SIDE]))
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), heads_first[2])
    tokens = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), np.array([0, -1, channels]))
    if last:
        return linear(g, tokens, rng, channels, channels, last=True, name="proj")
    projected = g.op("Transpose", linear(g, tokens, rng, channels, channels, last=True, name="proj"), perm=[0, 2, 1])
    return g.op("Reshape", projected, np.array([0, channels, SIDE, SIDE]))


def total(g, how, f, x):
    if how == "Sum":
        return g.op("Sum", f, x, f)
    first, sign, second = how.split()
    named = {"f": f, "x": x}
    return g.op("Add" if sign == "+" else "Sub", named[first], named[second])


def source(g, last, channels):
    return g.input("x", ["N", SIDE * SIDE, channels] if last else ["N", channels, SIDE, SIDE])


@given(SEED, st.booleans(), st.booleans(), st.booleans(), st.sampled_from([1, 2, 3]), st.sampled_from(SUMS[:4]),
       st.sampled_from([np.float64, np.float32, np.float16]))  # fmt: skip
def test_a_norm_in_front_of_attention_without_biases(graph, fold, seed, last, joint, mask, heads, how, dtype):
    rng = np.random.default_rng(seed)
    g = graph(dtype=dtype)
    x = linear(g, source(g, last, 6), rng, 6, 6, last=last, name="first")
    f = attention(g, norm(g, x, rng, 6, last=last), rng, 6, heads, last=last, joint=joint, mask=mask)
    g.output(total(g, how, f, x))
    result = fold(g).folded().agree_exactly(g.feeds(rng, N=2))
    assert result.ops["BatchNormalization"] == result.ops["Mul"] == 0
    assert result.ops["Add"] + result.ops["Sub"] == 2 + last + mask  # the sum, the projection's bias, the stream's
    assert {name.partition(".")[0].rstrip("012") for name in takers(result)} == {"first", "proj", "qkv"}


@given(SEED, st.booleans(), st.sampled_from(SUMS), st.booleans())
def test_a_norm_in_front_of_a_padded_convolution(graph, fold, seed, bias, how, inner):
    """Zero padding stops the shift, and nothing stops the scale; the border stays right."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = linear(g, source(g, False, 3), rng, 3, 3, last=False, bias=bias, name="first")
    f = linear(g, norm(g, x, rng, 3, last=False), rng, 3, 5, last=False, bias=bias, kernel=3, name="mixer")
    f = g.op("Tanh", f) if inner else f
    g.output(total(g, how, linear(g, f, rng, 5, 3, last=False, bias=False, name="last"), x))
    if how == "Sum":  # it reads the branch twice
        fold(g).agree(g.feeds(rng, N=2))
        return
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops["BatchNormalization"] == 0


@given(SEED, st.integers(2, 4), st.booleans())
def test_blocks_in_a_row(graph, fold, seed, count, last):
    """Each block's sum is the stream of the next: its branch takes one shift off and adds the next one."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = linear(g, source(g, last, 4), rng, 4, 4, last=last)
    for at in range(count):
        y = norm(g, x, rng, 4, last=last, name=f"norm{at}")
        f = linear(g, y, rng, 4, 4, last=last, bias=False, kernel=3, name=f"in{at}")
        x = g.op("Add", x, linear(g, g.op("Tanh", f), rng, 4, 4, last=last, name=f"out{at}"))
    g.output(x)
    result = fold(g).folded(count).agree(g.feeds(rng, N=2))
    assert result.ops["Mul"] == result.ops["BatchNormalization"] == 0
    assert result.ops["Add"] == count * (2 if last else 1) + last


@given(SEED)
def test_the_shift_is_taken_off_behind_the_sum(graph, fold, seed):
    """The branch ends in an activation; what reads the sum has a bias."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = linear(g, source(g, False, 3), rng, 3, 3, last=False)
    f = g.op("Tanh", linear(g, norm(g, x, rng, 3, last=False), rng, 3, 3, last=False, kernel=3))
    g.output(linear(g, g.op("Add", x, f), rng, 3, 2, last=False, name="head"))
    assert "head" in takers(fold(g).folded().agree(g.feeds(rng, N=2)))


@given(SEED)
def test_the_branch_ends_in_a_product_without_bias(graph, fold, seed):
    """It gets one: half a pass in place of the norm's."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = linear(g, source(g, True, 6), rng, 6, 6, last=True, name="first")
    f = attention(g, norm(g, x, rng, 6, last=True), rng, 6, 2, last=True, joint=True, mask=False)
    g.output(g.op("Add", x, linear(g, f, rng, 6, 6, last=True, bias=False, name="last")))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert takers(result) == {"first", "proj", "qkv"}  # the last product is merged into the projection
    assert result.ops["Mul"] == 0


@given(SEED)
def test_a_shared_stream_behind_a_transpose(graph, fold, seed):
    """What is shared lies further in front: tokens, normalized as images of one row."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = linear(g, source(g, True, 6), rng, 6, 6, last=True, name="first")
    turned = norm(g, g.op("Transpose", x, perm=[0, 2, 1]), rng, 6, last=False)
    turned = g.op("Transpose", turned, perm=[0, 2, 1])
    f = attention(g, turned, rng, 6, 2, last=True, joint=True, mask=False)
    g.output(g.op("Add", x, f))
    assert fold(g).folded().agree(g.feeds(rng, N=2)).ops["BatchNormalization"] == 0


@given(SEED)
def test_two_branches_of_one_stream(graph, fold, seed):
    """The second norm takes the first one's shift off; its own has nowhere to go then."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = linear(g, source(g, False, 3), rng, 3, 3, last=False)
    total = x
    for at in range(2):
        y = norm(g, x, rng, 3, last=False, name=f"norm{at}")
        f = g.op("Tanh", linear(g, y, rng, 3, 3, last=False, bias=False, kernel=3))
        total = g.op("Add", total, linear(g, f, rng, 3, 3, last=False))
    g.output(total)
    result = fold(g).agree(g.feeds(rng, N=2))
    assert sorted(result.actions) == ["folded", "kept"]
    assert result.ops["BatchNormalization"] == 1


@given(SEED, st.sampled_from(["Add", "Sub"]), st.integers(0, 1), st.sampled_from(["bias", "table", "layer scale"]))
def test_a_shift_goes_aside_in_a_sum(graph, fold, seed, kind, position, other):
    """(x + t) + b = x + (b + t) where b ends in a bias, a table or a map; nothing behind the sum has to take it."""
    rng = np.random.default_rng(seed)
    g = graph()
    x = g.op("Add", g.input("x", ["N", 3, 4]), rng.normal(size=4), name="shift")
    if other == "table":
        b = rng.normal(size=(3, 4))
    else:
        b = linear(g, g.input("z", ["N", 3, 5]), rng, 5, 4, last=True, name="aside")
        b = g.op("Mul", b, rng.uniform(0.5, 2, 4)) if other == "layer scale" else b
    g.output(g.op("Sigmoid", g.op(kind, *((x, b) if position == 0 else (b, x)))))
    result = fold(g).folded(2 if other == "layer scale" else 1).agree(g.feeds(rng, N=2))
    assert result.ops["Mul"] == 0
    assert result.ops["Add"] + result.ops["Sub"] == (1 if other == "table" else 2)


def residual(graph, rng, *, ends=True, scale=None, shift=None, inner="Tanh", readers=(), output=False, joint="Add",
             stride=1):  # fmt: skip
    """x -> norm -> [inner ->] padded conv -> Tanh -> conv -> + x; ``scale`` and ``shift`` are the norm's."""
    g = graph()
    x = linear(g, source(g, False, 3), rng, 3, 3, last=False, name="first", stride=stride)
    scale = np.array([1.0, -2.0, 0.5]) if scale is None else np.array(scale)
    shift = np.array([1.0, 2.0, 0.5]) if shift is None else np.array(shift)
    y = g.op("BatchNormalization", x, scale, shift, np.zeros(3), np.ones(3), name="norm", epsilon=0.0)
    y = g.op(inner, y) if inner == "Relu" else y
    f = g.op("Tanh", linear(g, y, rng, 3, 3, last=False, kernel=3, name="mixer"))
    f = linear(g, f, rng, 3, 3, last=False, name="last") if ends else f
    z = g.op(joint, f, x, name="joint")
    g.output(z)
    for reader in readers:
        g.output(g.op(reader, x, name="also"))
    if output:
        g.output(x)
    return g


@pytest.mark.parametrize(
    "options",
    [
        {"inner": "Relu"},  # a negative scale in front of an activation
        {"scale": [1.0, 0.0, 2.0]},  # nothing to divide by
        {"scale": [1.0, 1e-6, 2.0]},  # the stream would carry 2e6
        {"shift": [1.0, 2.0, 3.0]},  # 6 beside a stream of about 1
        {"ends": False},  # nobody takes the shift off again
        {"readers": ["Sigmoid"]},
        {"output": True},
        {"joint": "Mul"},
    ],
    ids=lambda options: ", ".join(options),
)
def test_what_stays(graph, fold, options):
    rng = np.random.default_rng(0)
    g = residual(graph, rng, **options)
    # a border map is the other way out of the padding: the size is not known here
    g.inputs.clear()
    g.input("x", ["N", 3, "H", "W"])
    result = fold(g).agree(g.feeds(rng, N=2, H=4, W=5))
    assert result.actions == ["kept"]
    assert result.ops["BatchNormalization"] == 1


def test_a_norm_in_front_of_an_activation(graph, fold):
    """relu(s x + t) = s relu(x + t / s) for s > 0: the stream carries t / s, the scale goes into what reads it."""
    rng = np.random.default_rng(0)
    g = residual(graph, rng, inner="Relu", scale=[1.0, 2.0, 0.5])
    g.inputs.clear()
    g.input("x", ["N", 3, "H", "W"])
    result = fold(g).folded().agree(g.feeds(rng, N=2, H=4, W=5))
    assert result.ops == {"Conv": 3, "Relu": 1, "Tanh": 1, "Add": 1}


@pytest.mark.parametrize("stride", [1, 2])
def test_what_goes(graph, fold, stride):
    """The graph of the refusals above, without any of their reasons; nothing names the size of what is added."""
    rng = np.random.default_rng(0)
    g = residual(graph, rng, stride=stride)
    g.inputs.clear()
    g.input("x", ["N", 3, "H", "W"])
    result = fold(g).folded().agree(g.feeds(rng, N=2, H=4, W=5))
    assert result.ops == {"Conv": 3, "Tanh": 1, "Add": 1}
    assert takers(result) == {"first", "last", "mixer"}


def test_a_branch_that_is_nothing_but_the_map(graph, fold):
    """x + A(x): the sum's other operand is the map itself."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Relu", source(g, False, 3))
    g.output(g.op("Sigmoid", g.op("Add", g.batch_norm(x, 3, rng), x)))
    fold(g).agree(g.feeds(rng, N=2))
