"""Small graphs whose maps the fold engine leaves in place, one for each reason that a linear operator gives.

A case is named by what a user reads: "Operator | clause", {} standing for what is filled in; "any" where the clause
names the operator itself, "output" where it is said of a graph output; a number where several graphs give one clause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import numpy_helper

HALF, SINGLE, DOUBLE = np.float16, np.float32, np.float64


@dataclass(frozen=True)
class Case:
    """A graph that is refused.

    Args:
        build: makes the graph in a builder and returns its outputs, (name, type) where it is no float; or ONNX text.
        dtype: of the builder.
        opset: likewise.
    """

    build: Callable[[Any], Any] | str
    dtype: Any = DOUBLE
    opset: int = 18


def some(*shape: int) -> np.ndarray:
    """Positive numbers, all different."""
    return np.random.default_rng(0).uniform(0.5, 2.0, shape)


def x(g, *dims, name="x", dtype=None):
    return g.input(name, list(dims), dtype)


def mul(g, value, *shape):
    return g.op("Mul", value, some(*shape))


def minus(g, value, *shape):
    return g.op("Mul", value, -some(*shape))


def add(g, value, *shape):
    return g.op("Add", value, some(*shape))


def both(g, value, *shape):
    return add(g, mul(g, value, *shape), *shape)


def zero_beside(g, other):
    """A map with a scale of 0 in front of an output, beside another reader of what it reads."""
    v = g.op("Conv", images(g), some(3, 3, 1))
    return g.op("Mul", v, np.array([[1.5], [0.0], [2.0]])), g.op("Softsign", other(v))


def grid(g, value, *shape):
    """A map whose scale and shift vary along several axes."""
    return g.op("Div", g.op("Sub", value, some(*shape)), some(*shape) + 1)


def big(g, value):
    return g.op("Mul", value, np.array(300.0))


def conv(g, value, *operands, spatial=1, **attributes):
    """A Conv from 3 to 3 channels, "linear", of one tap unless given weights."""
    return g.op("Conv", value, *(operands or [some(3, 3, *[1] * spatial)]), name="linear", **attributes)


def end(g, value, spatial=1):
    """A Conv that would absorb."""
    return g.op("Conv", value, some(2, 3, *[1] * spatial), name="end")


def images(g, *size, name="x"):
    return x(g, "N", 3, *(size or (4,)), name=name)


def unranked(g, name="u"):
    """A value whose rank is not known before run time."""
    return g.op("Reshape", x(g, "N", 3, 4, name=name), x(g, "R", name=f"{name}.target", dtype=np.int64))


def ranked(g, value):
    return g.op("Reshape", value, np.array([-1, 3]))


def turned(g, value):
    """A movement that keeps a map from being a part of the norm in front of it."""
    return g.op("Transpose", value, perm=[0, 2, 1])


def quantized(g, *shape, axis=None, low=-127, name="w", step=0.05, **attributes):
    integers = np.random.default_rng(0).integers(low, 127, shape).astype(np.int8)
    integers.reshape(-1)[0] = low
    steps = np.full(() if axis is None else shape[axis], step)
    attributes |= {} if axis is None else {"axis": axis}
    return g.op("DequantizeLinear", g.constant(integers, name), steps, name=f"{name}.dequantized", **attributes)


def quantized_bias(g, *shape, step=0.1, **attributes):
    integers = np.arange(np.prod(shape or (3,)), dtype=np.int32).reshape(shape or (3,))
    return g.op("DequantizeLinear", g.constant(integers, "b"), np.array(step), **attributes)


def layer_norm(g, value, gain=None, size=4, **options):
    """A LayerNormalization over the last axis, "norm"."""
    options = {"axis": -1, "name": "norm"} | options
    return g.op("LayerNormalization", value, some(size) if gain is None else gain, **options)


def batch_norm(g, value, *operands, **options):
    given = [some(3) if operand is None else operand for operand in (*operands, *[None] * 4)[:4]]
    return g.op("BatchNormalization", value, *given, name="norm", **options)


def recurrent(g, value, *, weight=None, bias=None, state=None):
    """An RNN of 2 units over [4, 5, 3]."""
    operands = [some(1, 2, 3) if weight is None else weight, some(1, 2, 2), bias, None, state]
    return g.op("RNN", value, *operands, name="net", hidden_size=2)


def chain(g, value, count=130):
    for _ in range(count):
        value = g.op("LeakyRelu", value)
    return value


def halves(g, value):
    return g.op("Split", value, np.array([1, 2]), axis=1, outputs=2)


def window(g, value, start, end, axis=1, name=None):
    return g.op("Slice", value, np.array([start]), np.array([end]), np.array([axis]), name=name)


def constants(g, **values):
    """Register what an operator wants in float32 whatever the graph computes in."""
    for name, array in values.items():
        g.initializers.append(numpy_helper.from_array(np.asarray(array, SINGLE), name))
    return list(values)


BODY = """<ir_version: 8, opset_import: ["" : 18]>
agraph (bool flag, float[N, 2] x) => (float[N, 2] y) <float[2] a = {{2, 3}}>
{{
    v = {outside}
    y = If (flag) <
        then_branch = one () => (float[N, 2] y1) {{ y1 = {inside} }},
        else_branch = two () => (float[N, 2] y2) {{ y2 = Relu(x) }}
    >
}}
"""

TURNS = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N, 3] x, int64 m, bool c) => (float[N, 3] y) <float[3] a = {2, 3, 4}> {
    v = Mul(x, a)
    y = Loop(m, c, x) <body = turn (int64 i, bool going, float[N, 3] s) => (bool go, float[N, 3] z) {
        go = Identity(going)
        [inner] r = Relu(v)
        z = Add(r, s)
    }>
}"""

ABSORBING = {
    "any | composed with {} it overflows": Case(lambda g: big(g, big(g, images(g))), HALF),
    "any | composed with {} it overflows | 2": Case(lambda g: big(g, big(g, images(g))), HALF),
    "Conv | has a bias that is computed at run time, which cannot be scaled": Case(
        lambda g: mul(g, conv(g, images(g), some(3, 3, 1), x(g, 3, name="b")), 3, 1)
    ),
    "Conv | pads with zeros, which a shift would change": Case(
        lambda g: conv(g, add(g, images(g, "L"), 3, 1), some(3, 3, 3), pads=[0, 1])
    ),
    "Conv | has a weight that is computed at run time": Case(
        lambda g: conv(g, images(g), mul(g, x(g, 3, 3, 1, name="w"), 3, 1, 1))
    ),
    "Conv | has no weights along an axis where it varies": Case(lambda g: mul(g, conv(g, images(g)), 4)),
    "ConvTranspose | reaches its positions by different taps, which a shift would show": Case(
        lambda g: g.op("ConvTranspose", add(g, images(g, "L"), 3, 1), some(3, 2, 2), strides=[2])
    ),
    "any | {} is given | rows of a Gemm": Case(lambda g: grid(g, g.op("Gemm", x(g, 4, 3), some(3, 5)), 4, 5)),
    "Gemm | has an addend that is computed at run time": Case(
        lambda g: mul(g, g.op("Gemm", x(g, 4, 3), some(3, 5), x(g, 5, name="c")), 5)
    ),
    "Gemm | sums over one axis and passes the others on": Case(
        lambda g: g.op("Gemm", mul(g, x(g, 4, 3), 4, 1), some(3, 5))
    ),
    "Gemm | has an addend that is computed at run time | 2": Case(
        lambda g: g.op("Gemm", x(g, 4, 2), some(2, 3), mul(g, x(g, 4, 3, name="c"), 3))
    ),
    "MatMul | has an operand of unknown rank": Case(
        lambda g: ranked(g, g.op("MatMul", mul(g, x(g, "N", 4, 3), 3), unranked(g)))
    ),
    "any | {} is given | rows of a MatMul": Case(lambda g: grid(g, g.op("MatMul", x(g, "N", 4, 3), some(3, 5)), 4, 5)),
    "output | must stay what it is | behind a vector": Case(
        lambda g: g.op("MatMul", add(g, x(g, "N", 4, 3), 3), some(3))
    ),
    "MatMul | sums over one axis and passes the others on": Case(
        lambda g: g.op("MatMul", grid(g, x(g, "N", 5, 4), 5, 4), some(4, 3))
    ),
    "MatMul | multiplies, which leaves no place for a shift": Case(
        lambda g: g.op("MatMul", add(g, x(g, "N", 4, 3), 4, 1), x(g, "N", 3, 2, name="z"))
    ),
    "MatMul | sums over the axis along which it varies, with a value computed at run time": Case(
        lambda g: g.op("MatMul", mul(g, x(g, "N", 4, 3), 3), x(g, "N", 3, 2, name="z"))
    ),
    "LayerNormalization | has no weights that could change what it writes": Case(
        lambda g: mul(g, layer_norm(g, x(g, "N", 3, 4), outputs=2)[1]), SINGLE
    ),
    "InstanceNormalization | has no weights along an axis where it varies": Case(
        lambda g: mul(g, turned(g, g.op("InstanceNormalization", images(g), some(3), some(3))), 4, 1), SINGLE
    ),
    "LayerNormalization | has a scale or bias that is computed at run time, or does not span what it normalizes": Case(
        lambda g: mul(g, turned(g, layer_norm(g, images(g), axis=-2)), 4, 1), SINGLE
    ),
    "LayerNormalization | has a scale or bias that is computed at run time, or does not span what it "
    "normalizes | 2": Case(lambda g: mul(g, turned(g, layer_norm(g, images(g), size=1)), 4, 1), SINGLE),
    "any | the weights of {} would overflow {}": Case(
        lambda g: big(g, turned(g, layer_norm(g, images(g), np.full(4, 300.0)))), HALF
    ),
    "LayerNormalization | has a scale or bias that is computed at run time, or does not span what it "
    "normalizes | 3": Case(lambda g: mul(g, turned(g, layer_norm(g, images(g), x(g, 4, name="gain"))), 4, 1), SINGLE),
    "RMSNormalization | has no bias that could take a shift": Case(
        lambda g: add(g, turned(g, g.op("RMSNormalization", images(g), some(4), axis=-1)), 4, 1), SINGLE, 23
    ),
    "LayerNormalization | has one epsilon for all, so that one scale can pass": Case(
        lambda g: layer_norm(g, turned(g, mul(g, x(g, "N", 4, 3), 4, 1))), SINGLE
    ),
    "any | a scale of {} takes the epsilon of {} out of the range of float32": Case(
        lambda g: layer_norm(g, turned(g, g.op("Mul", x(g, "N", 4, 3), np.array(1e-30)))), SINGLE
    ),
    "LayerNormalization | gives away its statistics": Case(
        lambda g: tuple(layer_norm(g, turned(g, mul(g, x(g, "N", 4, 3))), outputs=2)), SINGLE
    ),
    "LayerNormalization | divides by a size, and needs a scale above 0": Case(
        lambda g: layer_norm(g, turned(g, minus(g, x(g, "N", 4, 3)))), SINGLE
    ),
    "LayerNormalization | reads it as its scale or bias": Case(
        lambda g: layer_norm(g, images(g), mul(g, x(g, 4, name="gain"), 4)), SINGLE
    ),
    "RMSNormalization | subtracts no mean that could cancel a shift": Case(
        lambda g: g.op("RMSNormalization", turned(g, add(g, x(g, "N", 4, 3))), some(4), axis=-1), SINGLE, 23
    ),
    "RNN | takes nothing that varies along another axis than its channels": Case(
        lambda g: recurrent(g, mul(g, x(g, 4, 5, 3), 5, 1))
    ),
    "RNN | reads it as something else than its input sequence": Case(
        lambda g: recurrent(g, x(g, 4, 5, 3), state=mul(g, x(g, 1, 5, 2, name="h"), 2))
    ),
    "any | the weights of {} hold NaN or infinity: train it again or restore them": Case(
        lambda g: mul(g, conv(g, images(g), np.nan * some(3, 3, 1)), 3, 1), SINGLE
    ),
    "any | the weights of {} would overflow {} | 2": Case(
        lambda g: big(g, g.op("Add", g.op("MatMul", x(g, "N", 5, 3), some(3, 4)), 300 * some(5, 4))), HALF
    ),
    "Conv | has a bias that is computed at run time, which cannot take a shift": Case(
        lambda g: conv(g, add(g, images(g), 3, 1), some(3, 3, 1), x(g, 3, name="b"))
    ),
    "Conv | has a weight that is computed at run time | 2": Case(
        lambda g: mul(g, conv(g, images(g), x(g, 3, 3, 1, name="w")), 3, 1)
    ),
    "any | the weights of {} would overflow {} | 3": Case(
        lambda g: big(g, conv(g, images(g), 300 * some(3, 3, 1))), HALF
    ),
    "MatMul | has integer weights whose steps do not vary along with it": Case(
        lambda g: g.op("MatMul", mul(g, x(g, "N", 4, 3), 3), quantized(g, 3, 5, axis=1)), SINGLE, 19
    ),
}

QUANTIZED = {
    "MatMul | has integer weights whose steps do not vary along with it | 2": Case(
        lambda g: mul(g, g.op("MatMul", x(g, "N", 4, 3), quantized(g, 3, 5, axis=0)), 5), SINGLE, 19
    ),
    "MatMul | has integer weights whose steps do not vary along with it | 3": Case(
        lambda g: grid(g, g.op("MatMul", x(g, 2, 4, 3), quantized(g, 2, 3, 5)), 2, 1, 5), SINGLE, 19
    ),
    "MatMul | has integer weights whose steps do not vary along with it | 4": Case(
        lambda g: mul(
            g,
            g.op(
                "MatMul",
                x(g, "N", 4, 3),
                g.op("DequantizeLinear", g.constant(np.ones((3, 4), np.int8)), some(3, 2), axis=1, block_size=2),
            ),
            4,
        ),
        SINGLE,
        21,
    ),
    "any | the number {} of {} has no opposite in {}, and is scaled by a negative number": Case(
        lambda g: minus(g, conv(g, images(g), quantized(g, 3, 3, 1, low=-128)), 3, 1), SINGLE, 19
    ),
    "any | the steps of {} would overflow {}": Case(
        lambda g: big(g, conv(g, images(g), quantized(g, 3, 3, 1, step=300.0))), HALF, 19
    ),
    "DequantizeLinear | has no weights that could change what it writes": Case(
        lambda g: mul(g, g.op("DequantizeLinear", x(g, "N", 3, dtype=np.int8), np.array(0.1)), 3), SINGLE, 19
    ),
    "DequantizeLinear | has no weights that could change what it writes | 2": Case(
        lambda g: add(g, g.op("Gather", quantized(g, 5, 4), x(g, "N", dtype=np.int64)), 4), SINGLE, 19
    ),
    "any | {} would be left without a step by a scale of 0": Case(
        lambda g: g.op("Mul", conv(g, images(g), quantized(g, 3, 3, 1)), np.arange(3.0).reshape(3, 1)), SINGLE, 19
    ),
    "Conv | has no weights along an axis where it varies | 2": Case(
        lambda g: mul(g, conv(g, images(g), quantized(g, 3, 3, 1)), 4), SINGLE, 19
    ),
    "Gemm | has a bias stored in integers of shape {}, which is not one number per channel": Case(
        lambda g: mul(g, g.op("Gemm", x(g, 4, 2), some(2, 3), quantized_bias(g, 4, 3)), 3), SINGLE, 19
    ),
    "Gemm | multiplies its bias, stored in integers, by beta = 0": Case(
        lambda g: mul(g, g.op("Gemm", x(g, 4, 2), some(2, 3), quantized_bias(g), beta=0.0), 3), SINGLE, 19
    ),
    "Gemm | has a bias stored in integers for all of its rows": Case(
        lambda g: g.op("Gemm", mul(g, x(g, 4, 2), 4, 1), some(2, 3), quantized_bias(g)), SINGLE, 19
    ),
    "Conv | has a bias stored in integers in blocks": Case(
        lambda g: mul(
            g, conv(g, images(g), some(3, 3, 1), quantized_bias(g, step=[0.1, 0.2, 0.3], axis=0, block_size=1)), 3, 1
        ),
        SINGLE,
        21,
    ),
    "any | the bias of {} would overflow int32: that of channel {} would be {} steps of {}; fold before quantizing, or "
    "give that channel's weights a larger step": Case(
        lambda g: add(g, conv(g, images(g), quantized(g, 3, 3, 1), quantized_bias(g, step=1e-12)), 3, 1), SINGLE, 19
    ),
    "any | the weights of {} would overflow {} | 4": Case(
        lambda g: big(g, conv(g, images(g), quantized(g, 3, 3, 1), 300 * some(3))), HALF, 19
    ),
    "ConvTranspose | has integer weights whose steps do not vary along with it": Case(
        lambda g: mul(g, g.op("ConvTranspose", x(g, "N", 4, 5), quantized(g, 4, 3, 3), group=2), 6, 1), SINGLE, 19
    ),
}
