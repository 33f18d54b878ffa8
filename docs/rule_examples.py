"""A tiny graph per rule: what docs/rule_pictures.py rewrites and draws, before and after, for the catalogue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir


@dataclass(frozen=True)
class Example:
    """A graph in onnx's text form.

    Args:
        net: inputs, outputs and nodes: ``(float[n,3] x) => (float[n,3] y) { y = Relu(x) }``.
        weights: constants by name: a shape to be filled from a seed (positive numbers), or the values.
        opset: of the standard operators.
        options: of `normdeploy.rewrite.rewrite`.
    """

    net: str
    weights: dict[str, Any] = field(default_factory=dict)
    opset: int = 20
    options: dict[str, Any] = field(default_factory=dict)

    def model(self) -> ir.Model:
        """Return the graph."""
        domains = f'"" : {self.opset}' + (', "qonnx.custom_op.general" : 1' if "qonnx" in self.net else "")
        proto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]> net {self.net}")
        generator = np.random.default_rng(0)
        for name, given in self.weights.items():
            drawn = generator.uniform(0.5, 2, given).astype(np.float32) if isinstance(given, tuple) else given
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(drawn), name))
        return ir.from_proto(proto)


_X = "(float[n,2,8,8] x) => (float[n,2,8,8] y)"
_ROWS = "(float[n,4] x) => (float[n,4] y)"
_W, _M = (2, 2, 1, 1), (4, 4)
_BN = dict.fromkeys(("gamma", "beta", "mean", "var"), (2,))
_MAP = {"s": (2, 1, 1), "t": (2, 1, 1)}
_ROW_MAP = {"s": (4,), "t": (4,)}


def _ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


EXAMPLES: dict[str, Example] = {
    # operators that scales and shifts pass
    "gauge.rules.linear": Example(
        f"{_X} {{ a = Conv(x, W, b) y = BatchNormalization(a, gamma, beta, mean, var) }}",
        {"W": _W, "b": (2,), **_BN},
    ),
    "gauge.rules.products": Example(
        f"{_ROWS} {{ a = Mul(x, s) b = Add(a, t) y = MatMul(b, W) }}", {"W": _M, **_ROW_MAP}
    ),
    "gauge.rules.norms": Example(
        f"{_ROWS} {{ a = LayerNormalization(x, g, b) c = Mul(a, s) y = Add(c, t) }}", {"g": (4,), "b": (4,), **_ROW_MAP}
    ),
    "gauge.rules.maps": Example(
        f"{_ROWS} {{ a = Sigmoid(x) b = Mul(a, s) c = Add(b, t) d = Mul(c, r) y = Tanh(d) }}",
        {**_ROW_MAP, "r": (4,)},
    ),
    "gauge.rules.moves": Example(
        "(float[n,2,8,8] x) => (float[n,8,8,2] y)"
        "{ a = Conv(x, W) b = Transpose <perm = [0, 2, 3, 1]> (a) c = Mul(b, s) y = Add(c, t) }",
        {"W": _W, "s": (2,), "t": (2,)},
    ),
    "gauge.rules.reshape": Example(
        "(float[n,2,8,8] x) => (float[n,3] y)"
        "{ a = BatchNormalization(x, gamma, beta, mean, var) b = Flatten(a) y = Gemm(b, W, c) }",
        {**_BN, "W": (128, 3), "c": (3,)},
    ),
    "gauge.rules.merged_axis": Example(
        "(float[n,2,4] x, float[m,4,4] z) => (float[n,2,4] y) { a = Conv(x, W) h = Reshape(a, heads) "
        "b = MatMul(h, z) c = Reshape(b, whole) y = Mul(c, s) }",
        {"W": (2, 2, 1), "s": (2, 1), "heads": _ints(-1, 1, 4), "whole": _ints(-1, 2, 4)},
    ),
    "gauge.rules.pad": Example(
        "(float[n,2,8,8] x) => (float[n,2,8,8] y)"
        "{ a = Mul(x, s) b = Add(a, t) c = Pad(b, p, v) y = Conv(c, W) }",
        {
            "s": np.float32(2), "t": np.float32(1), "p": _ints(0, 0, 1, 1, 0, 0, 1, 1), "v": np.float32(0.5),
            "W": (2, 2, 3, 3),
        },
    ),
    "gauge.rules.scatter": Example(
        "(float[n,3] x, int64[e] start, int64[e,1] end) => (float[n,4] y)"
        "{ h = MatMul(x, W) m = Gather(h, start) k = Shape(h) o = Expand(zero, k)"
        " a = ScatterND <reduction = \"add\">(o, end, m) b = Mul(a, s) c = Add(b, t) y = Relu(c) }",
        {"W": (3, 4), "zero": np.float32(0), **_ROW_MAP},
    ),
    "gauge.rules.averages": Example(
        "(float[n,2,8,8] x) => (float[n,2,1,1] y)"
        "{ a = BatchNormalization(x, gamma, beta, mean, var) b = GlobalAveragePool(a) y = Conv(b, W) }",
        {**_BN, "W": _W},
    ),
    "gauge.rules.elementwise": Example(
        "(float[n,2,8,8] x, float[n,2,8,8] z) => (float[n,2,8,8] y)"
        "{ a = Conv(x, W) b = Conv(z, V) c = Add(a, b) d = Mul(c, s) e = Add(d, t) y = Relu(e) }",
        {"W": _W, "V": _W, **_MAP},
    ),
    "gauge.rules.powers": Example(
        "(float[n,2,8,8] x) => (float[n,2,8,8] y)"
        "{ a = Softmax <axis = 1> (x) b = Mul(a, s) c = Pow(b, two) y = Conv(c, W) }",
        {"s": (2, 1, 1), "two": np.float32(2), "W": _W},
    ),
    "gauge.rules.sides_of_zero": Example(
        "(float[n,2,8,8] x) => (float[n,2,8,8] y)"
        "{ a = Sin(x) b = Mul(a, s) c = Greater(b, zero) d = Cast <to = 1> (c) e = Mul(b, d) y = Conv(e, W) }",
        {"s": (2, 1, 1), "zero": np.float32(0), "W": _W},
    ),
    "gauge.rules.einsum": Example(
        "(float[n,5,4] x, float[n,6,4] z) => (float[n,5,6] y)"
        '{ a = MatMul(x, W) b = Einsum <equation = "bid,bjd->bij"> (a, z) y = Mul(b, s) }',
        {"W": _M, "s": np.float32(0.5)},
    ),
    "gauge.rules.softmax": Example(
        "(float[n,4] x, float[4,n] z) => (float[n,n] y) { a = MatMul(x, z) b = Add(a, t) y = Softmax(b) }",
        {"t": np.float32([3.0])},
    ),
    "gauge.rules.weighed": Example(
        "(float[n,5,4] x, float[n,5,1] z) => (float[n,2] y)"
        "{ a = Relu(x) b = Add(a, t) w = Softmax <axis = 1> (z) c = Mul(w, b) d = ReduceSum <keepdims = 0> (c, k)"
        " y = MatMul(d, V) }",
        {"t": (4,), "k": _ints(1), "V": (4, 2)}, opset=18,
    ),
    # passes, in the order of the pipeline
    "opset.raising": Example(f"{_ROWS} {{ y = Clip <min = 0.0, max = 6.0> (x) }}", opset=10),
    "qonnx_to_standard": Example(
        "(float[n,4] x) => (float[n,4] y) { y = qonnx.custom_op.general.Quant"
        '<signed: int = 1, narrow: int = 0, rounding_mode: string = "ROUND"> (x, scale, zero, bits) }',
        {"scale": np.float32(0.1), "zero": np.float32(0), "bits": np.float32(8)},
    ),
    "weights.evaluate_constants": Example(
        f"{_ROWS} {{ a = ReduceL2 <keepdims = 1> (V, rows) b = Div(V, a) W = Mul(b, g) y = MatMul(x, W) }}",
        {"V": _M, "g": (4,), "rows": _ints(0)},
    ),
    "identities": Example(f"{_ROWS} {{ a = Identity(x) b = Dropout(a) y = Relu(b) }}"),
    "weights.follow_sizes": Example(
        "(float[n,4,8,8] x) => (float[n,2,8,8] y) { c = Conv(x, W) s = Shape <start = 1, end = 2> (c) h = Div(s, two)"
        " p = Slice(c, zero, h, one) y = BatchNormalization(p, gamma, beta, mean, var) }",
        {"W": (4, 4, 1, 1), "zero": _ints(0), "one": _ints(1), "two": _ints(2), **_BN},
    ),
    "sequence_splits": Example(
        "(float[n,4] x) => (float[n,2] y)"
        "{ s = SplitToSequence <axis = 1> (x, sizes) a = SequenceAt(s, zero) b = SequenceAt(s, one) y = Mul(a, b) }",
        {"sizes": _ints(2, 2), "zero": np.int64(0), "one": np.int64(1)},
    ),
    "untile": Example(
        f"{_X} {{ r = Shape <start = 0, end = 1> (x) w = Reshape(x, there) g = Tile(gamma, r) b = Tile(beta, r)"
        "m = Tile(mean, r) v = Tile(var, r) z = BatchNormalization(w, g, b, m, v) y = Reshape(z, back) }",
        {**_BN, "there": _ints(1, -1, 8, 8), "back": _ints(-1, 2, 8, 8)},
    ),
    "unexpand": Example(
        f"{_ROWS} {{ a = Shape(x) b = Expand(t, a) y = Add(x, b) }}", {"t": (4,)}
    ),
    "once_for_all": Example(
        "(float[n,2,4] x) => (float[n,2,4] y) { a = Shape <end = 1> (x) b = Concat <axis = 0> (a, rest)"
        "d = Expand(c, b) e = MatMul(d, W) y = Add(x, e) }",
        {"c": (1, 2, 4), "W": _M, "rest": _ints(2, 4)},
    ),
    "repeated_numbers": Example(
        f"{_ROWS} {{ a = Shape(x) b = Expand(true, a) c = Cast <to = 1> (b) d = Mul(x, c) y = Relu(d) }}",
        {"true": np.bool_([True])},
    ),
    "written_parts": Example(
        "(float[n,4,4] x, float[n,2,4] u) => (float[n,4,4] y) { a = Transpose <perm = [1,0,2]> (x)"
        "b = Transpose <perm = [1,0,2]> (u) s = ScatterND(a, rows, b) y = Transpose <perm = [1,0,2]> (s) }",
        {"rows": np.int64([[0], [1]])},
    ),
    "divide_first": Example(
        "(float[n,4] x, float[n,4] h) => (float[n,4] y) { g = Sigmoid(h) m = ReduceMean(x, last) u = Sub(x, m)"
        "q = Mul(u, u) v = ReduceMean(q, last) a = Add(v, eps) s = Sqrt(a) p = Mul(g, u) y = Div(p, s) }",
        {"last": _ints(-1), "eps": np.float32(1e-5)},
    ),
    "blends": Example(
        "(float[n,4] x, float[n,4] f) => (float[n,4] y) { d = Sub(f, x) m = Mul(d, a) y = Add(x, m) }",
        {"a": np.float32([0.1, 0.3, 0.6, 0.9])},
    ),
    "rules_of_others": Example(
        f"{_ROWS} {{ a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six) }}",
        {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)},
    ),
    "recognise.norms_pass": Example(
        f"{_ROWS} {{ m = ReduceMean(x, last) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, last) e = Add(v, eps)"
        "r = Sqrt(e) z = Div(d, r) p = Mul(z, g) y = Add(p, b) }",
        {"last": _ints(-1), "eps": np.float32(1e-5), "g": (4,), "b": (4,)},
    ),
    "einsum_to_product": Example(
        '(float[n,5,4] x) => (float[n,5,3] y) { y = Einsum <equation = "bij,jk->bik"> (x, W) }', {"W": (4, 3)}
    ),
    "affine.find_affine": Example(
        f"{_X} {{ a = Conv(x, W) b = Sub(a, mean) c = Div(b, deviation) d = Mul(c, gamma) y = Add(d, beta) }}",
        {"W": _W, "mean": (2, 1, 1), "deviation": (2, 1, 1), "gamma": (2, 1, 1), "beta": (2, 1, 1)},
    ),
    "affine.row_norm": Example(
        "(int64[n,3] i) => (float[n,3,4] y) { a = Gather(table, i) y = LayerNormalization(a, g, b) }",
        {"table": np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32), "g": (4,), "b": (4,)},
    ),
    "branches.border_write": Example(
        "(float[n,2,8,8] x) => (float[n,2,8,8] y)"
        "{ a = Conv(x, W, b) c = Concat <axis = 3> (left, a, left) d = Concat <axis = 2> (top, c, top)"
        "y = Conv(d, V) }",
        {
            "W": _W, "b": np.float32([0.5, -2]), "V": (2, 2, 3, 3),
            "left": np.broadcast_to(np.float32([0.5, -2]).reshape(1, 2, 1, 1), (1, 2, 8, 1)),
            "top": np.broadcast_to(np.float32([0.5, -2]).reshape(1, 2, 1, 1), (1, 2, 1, 10)),
        },
    ),
    "branches.merge": Example(
        f"{_X} {{ a = Conv <pads = [1, 1, 1, 1]> (x, W, b) c = Conv(x, V) d = Add(a, c) y = Add(d, x) }}",
        {"W": (2, 2, 3, 3), "b": (2,), "V": _W},
    ),
    "branches.sum_of_maps": Example(
        f"{_X} {{ a = Conv(x, V) b = BatchNormalization(a, gamma, beta, mean, var) c = Add(a, b) y = Relu(c) }}",
        {"V": _W, **_BN},
    ),
    "branches.dead_bias": Example(
        f"{_X} {{ a = Conv <pads = [1, 1, 1, 1]> (x, W, b) y = InstanceNormalization(a, g, c) }}",
        {"W": (2, 2, 3, 3), "b": (2,), "g": (2,), "c": (2,)},
    ),
    "branches.border": Example(
        "(float[n,8,8,8] x) => (float[n,2,4,4] y)"
        "{ a = Add(x, t) y = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (a, W, b) }",
        {"t": (8, 1, 1), "W": (2, 8, 3, 3), "b": (2,)},
    ),
    "gauge.remove_maps": Example(
        f"{_X} {{ a = Conv <pads = [1, 1, 1, 1]> (x, W) b = BatchNormalization(a, gamma, beta, mean, var)"
        "c = Conv(x, V) d = Add(b, c) y = Relu(d) }",
        {"W": (2, 2, 3, 3), "V": _W, **_BN},
    ),
    "gauge.maps_into_bodies": Example(
        "(bool c, float[n,2,8,8] x) => (float[n,2,8,8] y)"
        "{ a = If(c) <then_branch = yes () => (float[n,2,8,8] p) { p = Conv(x, W) },"
        "else_branch = no () => (float[n,2,8,8] q) { q = Conv(x, V) }> y = Mul(a, s) }",
        {"W": _W, "V": _W, "s": (2, 1, 1)},
    ),
    "gauge.captured_maps": Example(
        "(bool c, float[n,2,8,8] x) => (float[n,2,8,8] y)"
        "{ a = Mul(x, s) y = If(c) <then_branch = yes () => (float[n,2,8,8] p) { p = Conv(a, W) },"
        "else_branch = no () => (float[n,2,8,8] q) { q = Conv(a, V) }> }",
        {"W": _W, "V": _W, "s": (2, 1, 1)},
    ),
    "integer.integer_pass": Example(
        "(uint8[n,4] x) => (uint8[n,4] y)"
        "{ a = DequantizeLinear(x, sx, zx) w = DequantizeLinear(W, sw, zw) b = MatMul(a, w) c = Mul(b, s)"
        "y = QuantizeLinear(c, sy, zy) }",
        {
            "W": np.int8([[1, -2, 3, 4], [5, 6, -7, 8], [9, 1, 2, 3], [4, 5, 6, 7]]), "sx": np.float32(0.1),
            "sw": np.float32(0.05), "zx": np.uint8(128), "zw": np.int8(0), "sy": np.float32(0.2), "zy": np.uint8(0),
            "s": np.float32([1.5, 0.5, 2.5, 0.25]),
        },
        options={"integer": True},
    ),
    "folds_of_one": Example(
        "(float[2,3,1,1] x) => (float[2,3] y) { a = Relu(x) b = GlobalAveragePool(a) y = Flatten(b) }"
    ),
    "lower.write_affine": Example(f"{_X} {{ a = Relu(x) b = Mul(a, s) c = Add(b, t) y = Sigmoid(c) }}", _MAP),
    "lower.write_rms_norm": Example(
        "(float[n,4] x) => (float[n,4] y)"
        "{ q = Mul(x, x) v = ReduceMean(q, last) e = Add(v, eps) r = Sqrt(e) z = Div(x, r) y = Mul(z, g) }",
        {"last": _ints(-1), "eps": np.float32(1e-5), "g": (4,)}, opset=18, options={"highest_opset": 20},
    ),
    "lower.round_trips": Example(
        f"{_X} {{ a = Transpose <perm = [0, 2, 3, 1]> (x) b = Transpose <perm = [0, 3, 1, 2]> (a) y = Relu(b) }}"
    ),
    "lower.one_concat": Example(
        "(float[n,2] x, float[n,2] z) => (float[n,6] y)"
        "{ a = Relu(x) b = Concat <axis = 1> (a, z) y = Concat <axis = 1> (x, b) }"
    ),
    "lower.whole_again": Example(
        "(float[n,4] x) => (float[n,4] y)"
        "{ a = Relu(x) b, c = Split <axis = 1, num_outputs = 2> (a) y = Concat <axis = 1> (b, c) }"
    ),
    "lower.one_view": Example(
        "(float[2,1,4] x) => (float[2,4] y) { a = Relu(x) b = Transpose <perm = [1, 0, 2]> (a) y = Reshape(b, rows) }",
        {"rows": _ints(2, 4)},
    ),
    "lower.zero_bias": Example(f"{_X} {{ y = Conv(x, W, b) }}", {"W": _W, "b": np.zeros(2, np.float32)}),
    "lower.gemm_over_rows": Example(
        "(float[2,3,4] x) => (float[6,4] y) { a = MatMul(x, W) b = Add(a, t) y = Reshape(b, rows) }",
        {"W": _M, "t": (4,), "rows": _ints(6, 4)},
    ),
    "lower.guard_pads": Example(
        "(float[n,2,8,8] x) => (float[n,2,5,5] y)"
        "{ a = Relu(x) b = Pad(a, p) y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b) }",
        {"p": _ints(0, 0, 1, 1, 0, 0, 1, 1)},
    ),
    "lower.guard_outputs": Example(
        "(float[n,2,8,8] x) => (float[n,2,8,8] y, float[n,2,8,8] z)"
        "{ y = Conv <group = 2> (x, W, b) z = Add(y, x) }",
        {"W": (2, 1, 1, 1), "b": (2,)},
    ),
    "lower.clean": Example(f"{_ROWS} {{ unread = Sqrt(x) y = Relu(x) }}"),
}  # fmt: skip
