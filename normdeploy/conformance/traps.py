"""Graphs on which rewriters have been seen to go wrong without a word (docs/conformance.md names who).

BN stands for a BatchNormalization with statistics of its own. What is expected is computed by the formulas, from the
weights as they are stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper, parser

from normdeploy.array_types import Array, Arrays
from normdeploy.conformance.case import Case, Problem
from normdeploy.conformance.formulas import (
    batch_norm,
    convolution,
    layer_norm,
    padded,
    sigmoid,
    transposed_convolution,
    windows,
)

Formula = Callable[[Array, Mapping[str, Array]], Array]

_CHANNELS = 6
"""Of BN."""
"""(x, the stored weights in float64) -> y."""


def graph(text: str, arrays: Mapping[str, Array], *, opset: int = 17) -> onnx.ModelProto:
    """Return a graph written as ONNX text, with the arrays that it names."""
    text = re.sub(r"BN(\d?) \((\w+)\)", r"BatchNormalization (\2, g\1, b\1, m\1, v\1)", text)
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in arrays.items() if name in used)
    return proto


def statistics(rng: np.random.Generator) -> Arrays:
    """Return scale, shift, mean and variance for BN and BN2, none of them trivial, some scales negative."""
    found: Arrays = {}
    for mark in ("", "2"):
        sign = np.where(np.arange(_CHANNELS) % 3 == 1, -1, 1)
        found |= {f"g{mark}": rng.uniform(0.5, 1.5, _CHANNELS) * sign, f"v{mark}": rng.uniform(0.5, 2, _CHANNELS)}
        found |= {f"b{mark}": rng.standard_normal(_CHANNELS), f"m{mark}": rng.standard_normal(_CHANNELS)}
    return {name: value.astype(np.float32) for name, value in found.items()}


def norm(x: Array, w: Mapping[str, Array], mark: str = "", *, epsilon: float = 1e-5) -> Array:
    """Apply BN by its formula."""
    epsilon = float(np.float32(epsilon))
    return batch_norm(x, *(w[f"{name}{mark}"] for name in "gbmv"), epsilon=epsilon)


def trap(
    name: str,
    about: str,
    text: str,
    shape: tuple[int, ...],
    formula: Formula,
    *,
    kernel: tuple[int, ...] | None = None,
    arrays: Mapping[str, Array] | None = None,
    opset: int = 17,
    gone: tuple[str, ...] = (),
    negative: bool = False,
    half: bool = False,
    tolerance: float = 1e-4,
) -> Case:
    """Return a case of one graph: input x, output y.

    Args:
        text: the graph's body. shape: of x. formula: what y is. kernel: shape of the weight w.
        arrays: further constants. gone: see `Problem`. negative: x is below zero.
        half: everything is float16.
    """

    def build() -> Problem:
        rng = np.random.default_rng(0)
        kind = np.float16 if half else np.float32
        stored: Arrays = statistics(rng) | dict(arrays or {})
        if kernel is not None:
            stored["w"] = rng.standard_normal(kernel).astype(np.float32)
        stored = {k: v.astype(kind) if v.dtype == np.float32 else v for k, v in stored.items()}
        x = rng.standard_normal(shape).astype(kind)
        x = -np.abs(x) - kind(0.1) if negative else x
        wide = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in stored.items()}
        y = formula(x.astype(np.float64), wide)
        type_of = "float16" if half else "float"
        sizes = ",".join(["n", *map(str, shape[1:])])
        result = ",".join(f"y{axis}" for axis in range(y.ndim))
        header = f"g ({type_of}[{sizes}] x) => ({type_of}[{result}] y)"
        proto = graph(f"{header} {{ {text} }}", stored, opset=opset)
        return Problem({"x": x}, (y,), graph=proto, gone=frozenset(gone), tolerance=tolerance)

    return Case(f"traps/{name}", about, build)


_BN = ("BatchNormalization",)

TRAPS = [
    trap("transposed channel", "a BatchNorm over an axis that a Transpose brought to place 1, of the same size",
         "p = MatMul (x, w) q = Transpose <perm = [0, 2, 1]> (p) y = BN (q)", (2, 6, 6),
         lambda x, w: norm((x @ w["w"]).swapaxes(1, 2), w), kernel=(6, 6)),
    trap("reshaped channel", "the same behind a Reshape",
         "p = MatMul (x, w) q = Transpose <perm = [0, 2, 1]> (p) r = Reshape (q, rows) y = BN (r)", (2, 6, 6),
         lambda x, w: norm((x @ w["w"]).swapaxes(1, 2).reshape(-1, 6), w), kernel=(6, 6),
         arrays={"rows": np.array([-1, 6])}),
    trap("transposed convolution", "ConvTranspose has its output channels in place 1 of the weight",
         "p = ConvTranspose (x, w) y = BN (p)", (2, 6, 5, 5),
         lambda x, w: norm(transposed_convolution(x, w["w"]), w), kernel=(6, 6, 3, 3), gone=_BN),
    trap("grouped transposed convolution", "and with groups in both",
         "p = ConvTranspose <group = 2> (x, w) y = BN (p)", (2, 6, 5, 5),
         lambda x, w: norm(transposed_convolution(x, w["w"], groups=2), w), kernel=(6, 3, 3, 3), gone=_BN),
    trap("shared convolution", "one weight in front of two BatchNorms",
         "p = Conv (x, w) h = Sigmoid (x) q = Conv (h, w) r = BN (p) s = BN2 (q) y = Add (r, s)", (2, 6, 5, 5),
         lambda x, w: norm(convolution(x, w["w"]), w) + norm(convolution(sigmoid(x), w["w"]), w, "2"),
         kernel=(6, 6, 3, 3), gone=_BN),
    trap("convolution read twice", "its result goes into the BatchNorm and elsewhere",
         "p = Conv (x, w) h = Sigmoid (p) r = BN (p) y = Add (r, h)", (2, 6, 5, 5),
         lambda x, w: norm(convolution(x, w["w"]), w) + sigmoid(convolution(x, w["w"])), kernel=(6, 6, 3, 3)),
    trap("counted zeros", "an average that counts its border of zeros does not commute with a shift",
         "p = Conv (x, w) q = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (p)"
         " y = BN (q)", (2, 6, 5, 5),
         lambda x, w: norm(windows(padded(convolution(x, w["w"]), 1), (3, 3)).mean((-1, -2)), w), kernel=(6, 6, 1, 1)),
    trap("zero padding", "a BatchNorm in front of a convolution with a border of zeros",
         "p = BN (x) y = Conv <pads = [1, 1, 1, 1]> (p, w)", (2, 6, 5, 5),
         lambda x, w: convolution(norm(x, w), w["w"], border=1), kernel=(6, 6, 3, 3)),
    trap("alpha and beta", "a Gemm that weighs its product and its bias",
         "p = Gemm <alpha = 0.5, beta = 3.0> (x, w, c) y = BN (p)", (2, 6),
         lambda x, w: norm(0.5 * x @ w["w"] + 3 * w["c"], w), kernel=(6, 6),
         arrays={"c": np.linspace(-1, 1, 6, dtype=np.float32)}, gone=_BN),
    trap("zeros in front of a maximum", "padding with zeros is not the padding of a maximum",
         "h = Pad (x, pads) y = MaxPool <kernel_shape = [2, 2]> (h)", (2, 3, 6, 6),
         lambda x, _: windows(padded(x, 1)[:, :, :-1, :-1], (2, 2)).max((-1, -2)), negative=True,
         arrays={"pads": np.array([0, 0, 1, 1, 0, 0, 0, 0])}),
    trap("maximum of a falling map", "a negative scale does not pass a maximum",
         "p = Conv (x, w) q = MaxPool <kernel_shape = [2, 2]> (p) y = BN (q)", (2, 6, 6, 6),
         lambda x, w: norm(windows(convolution(x, w["w"]), (2, 2)).max((-1, -2)), w), kernel=(6, 6, 1, 1)),
    trap("falling map behind a Relu", "a negative scale does not pass a Relu",
         "p = Conv (x, w) q = Relu (p) y = BN (q)", (2, 6, 5, 5),
         lambda x, w: norm(np.maximum(convolution(x, w["w"]), 0), w), kernel=(6, 6, 1, 1)),
    trap("statistics of the batch", "a BatchNorm in training mode inside a graph normalizes by the batch",
         "p = Conv (x, w) y, mean, variance = BatchNormalization <training_mode = 1> (p, g, b, m, v)", (4, 6, 5, 5),
         lambda x, w: _by_batch(convolution(x, w["w"]), w), kernel=(6, 6, 1, 1)),
    trap("layer norm over channels", "written by hand over axis 1 of (N, C, H, W), with H and W of the channels' size",
         "m1 = ReduceMean <axes = [1]> (x) d = Sub (x, m1) s = Mul (d, d) u = ReduceMean <axes = [1]> (s)"
         " e = Add (u, eps) r = Sqrt (e) n = Div (d, r) k = Mul (n, scale) y = Add (k, shift)", (2, 6, 6, 6),
         lambda x, w: layer_norm(x, axes=1, epsilon=w["eps"].item()) * w["scale"] + w["shift"],
         arrays={"eps": np.array(2.0**-10, np.float32),
                 "scale": np.linspace(0.5, 1.5, 6, dtype=np.float32).reshape(6, 1, 1),
                 "shift": np.linspace(-1, 1, 6, dtype=np.float32).reshape(6, 1, 1)}, gone=("Sqrt", "Div")),
    trap("unbiased layer norm", "with the factor n / (n - 1) in the graph",
         "m1 = ReduceMean <axes = [-1]> (x) d = Sub (x, m1) s = Mul (d, d) u = ReduceMean <axes = [-1]> (s)"
         " c = Mul (u, bessel) e = Add (c, eps) r = Sqrt (e) y = Div (d, r)", (2, 5, 4),
         lambda x, w: layer_norm(x, epsilon=w["eps"].item() / w["bessel"].item()) / np.sqrt(w["bessel"]),
         arrays={"eps": np.array(2.0**-7, np.float32), "bessel": np.array(4 / 3, np.float32)}, gone=("Sqrt", "Div")),
    trap("variance of zero in float16", "epsilon 1e-8 vanishes in float16: what folds there divides by zero",
         "c = Conv (x, w) y = BatchNormalization <epsilon = 1e-8> (c, g, b, m, zero)", (2, 3, 6, 6),
         lambda x, w: norm(convolution(x, w["w"]), {**w, "v": w["zero"]}, epsilon=1e-8), kernel=(6, 3, 3, 3), half=True,
         arrays={"zero": np.array([0, 1, 1, 2, 1, 1], np.float32), "g": np.array([1e-4, 1, 1, 1, 1, 1], np.float32)},
         tolerance=3e-3),
    trap("old Hardmax", "before operator set 13 it takes all axes from its own on together",
         "p = BN (x) y = Hardmax <axis = 1> (p)", (2, 6, 5), lambda x, w: _flat_hardmax(norm(x, w)), opset=12),
    trap("old Softmax", "and so does Softmax",
         "p = BN (x) y = Softmax <axis = 1> (p)", (2, 6, 5), lambda x, w: _flat_softmax(norm(x, w)), opset=12),
    trap("repeated channels", "a Gather that takes some channels twice in front of a BatchNorm",
         "p = Conv (x, w) q = Gather <axis = 1> (p, places) y = BN (q)", (2, 6, 5, 5),
         lambda x, w: norm(convolution(x, w["w"])[:, [0, 2, 2, 5, 1, 2]], w), kernel=(6, 6, 1, 1),
         arrays={"places": np.array([0, 2, 2, 5, 1, 2])}),
    trap("channels of a concatenation", "a BatchNorm over two branches, one of them the input itself",
         "p = Conv (x, w) q = Concat <axis = 1> (p, x) y = BN (q)", (2, 3, 5, 5),
         lambda x, w: norm(np.concatenate([convolution(x, w["w"]), x], axis=1), w), kernel=(3, 3, 1, 1)),
    trap("instance norm", "a bias in front of it is dead, a scale is not: epsilon",
         "p = Conv (x, w, c) y = InstanceNormalization <epsilon = 0.1> (p, g, b)", (2, 6, 5, 5),
         lambda x, w: _by_instance(convolution(x, w["w"]) + w["c"].reshape(-1, 1, 1), w), kernel=(6, 6, 1, 1),
         arrays={"c": np.linspace(-1, 1, 6, dtype=np.float32)}),
    trap("depthwise multiplier", "a grouped convolution with two outputs per group",
         "p = Conv <group = 3> (x, w) y = BN (p)", (2, 3, 5, 5),
         lambda x, w: norm(convolution(x, w["w"], groups=3), w), kernel=(6, 1, 3, 3), gone=_BN),
]  # fmt: skip


def _by_batch(x: Array, w: Mapping[str, Array]) -> Array:
    return norm(x, {**w, "m": x.mean((0, 2, 3)), "v": x.var((0, 2, 3))})


def _by_instance(x: Array, w: Mapping[str, Array]) -> Array:
    y = layer_norm(x, axes=(2, 3), epsilon=float(np.float32(0.1)))
    return np.asarray(y * w["g"].reshape(-1, 1, 1) + w["b"].reshape(-1, 1, 1))


def _flat_hardmax(x: Array) -> Array:
    flat = x.reshape(len(x), -1)
    return np.asarray(np.eye(flat.shape[1])[flat.argmax(1)].reshape(x.shape))


def _flat_softmax(x: Array) -> Array:
    flat = np.exp(x.reshape(len(x), -1))
    return np.asarray((flat / flat.sum(1, keepdims=True)).reshape(x.shape))
