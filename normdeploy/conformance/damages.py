"""Files for verifiers: right ones that look different, and damaged ones that common checks let pass.

The network is a convolution, a BatchNorm, a Relu, a mean over the image, a LayerNorm over channels and a head; and a
table of words where the damage is in one. A verifier is right where it accepts the first kind and refuses the second.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from normdeploy.array_types import Array, Arrays
from normdeploy.conformance.case import Case, Damage
from normdeploy.conformance.traps import graph

_BODY = """c = Conv <pads = [1, 1, 1, 1]> (x, w, k) n = BatchNormalization (c, g, b, m, v) r = Relu (n)
    p = GlobalAveragePool (r) f = Flatten (p) l = LayerNormalization <axis = -1, epsilon = 1e-5> (f, lg, lb)
    y = Gemm (l, h, hb) z = Sigmoid (y)"""


def _arrays() -> Arrays:
    rng = np.random.default_rng(0)
    found = {
        "w": rng.standard_normal((8, 3, 3, 3)) * 0.3,
        "h": rng.standard_normal((8, 5)),
        "hb": rng.standard_normal(5),
    }
    found |= {name: rng.standard_normal(8) * 0.3 for name in ("k", "b", "m", "lb")}
    found |= {name: rng.uniform(0.5, 1.5, 8) for name in ("g", "v", "lg")}
    return {name: value.astype(np.float32) for name, value in found.items()}


def reference() -> ModelProto:
    """Return the network."""
    return graph(f"net (float[n,3,8,8] x) => (float[n,5] y, float[n,5] z) {{ {_BODY} }}", _arrays())


def words() -> ModelProto:
    """Return a table of 400 words, a LayerNorm and a head."""
    rng = np.random.default_rng(1)
    arrays = {"t": rng.standard_normal((400, 6)), "g": rng.uniform(0.5, 1.5, 6), "h": rng.standard_normal((6, 4))}
    body = "e = Gather (t, x) l = LayerNormalization <axis = -1> (e, g) y = MatMul (l, h)"
    stored = {name: value.astype(np.float32) for name, value in arrays.items()}
    return graph(f"net (int64[n,l] x) => (float[n,l,4] y) {{ {body} }}", stored)


def _value(proto: ModelProto, name: str) -> Array:
    return np.array(next(numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == name))


def _store(proto: ModelProto, name: str, value: Array) -> None:
    place = next((t for t in proto.graph.initializer if t.name == name), None) or proto.graph.initializer.add()
    place.CopyFrom(numpy_helper.from_array(np.asarray(value), name))


def _node(proto: ModelProto, kind: str) -> onnx.NodeProto:
    found: list[onnx.NodeProto] = [node for node in proto.graph.node if node.op_type == kind]
    return found[0]


def _set(node: onnx.NodeProto, name: str, value: float | int | list[int]) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def _insert(proto: ModelProto, behind: str, name: str, *nodes: onnx.NodeProto) -> None:
    """Put nodes behind the producer of a value; the last writes the value, the first reads it as ``name``."""
    place = next(at for at, node in enumerate(proto.graph.node) if behind in node.output)
    outputs = proto.graph.node[place].output
    outputs[list(outputs).index(behind)] = name
    for offset, node in enumerate(nodes):
        proto.graph.node.insert(place + 1 + offset, node)


def _untouched(_: ModelProto) -> None:
    """Leave the file as it is."""


def _folded(proto: ModelProto) -> None:
    a = {name: _value(proto, name).astype(np.float64) for name in "wkgbmv"}
    s = a["g"] / np.sqrt(a["v"] + float(np.float32(1e-5)))
    _store(proto, "w", (a["w"] * s[:, None, None, None]).astype(np.float32))
    _store(proto, "k", ((a["k"] - a["m"]) * s + a["b"]).astype(np.float32))
    norm = _node(proto, "BatchNormalization")
    norm.CopyFrom(helper.make_node("Identity", ["c"], ["n"]))


def _times(name: str, factor: float) -> Callable[[ModelProto], None]:
    def change(proto: ModelProto) -> None:
        value = _value(proto, name)
        value.reshape(-1)[np.abs(value).argmax()] *= np.float32(factor)
        _store(proto, name, value)

    return change


def _all(name: str, change: Callable[[Array], Array]) -> Callable[[ModelProto], None]:
    return lambda proto: _store(proto, name, change(_value(proto, name)).astype(np.float32))


def _epsilon(value: float) -> Callable[[ModelProto], None]:
    return lambda proto: _set(_node(proto, "LayerNormalization"), "epsilon", value)


def _in_low_precision(proto: ModelProto) -> None:
    casts = [
        helper.make_node("Cast", ["exact"], ["low"], to=onnx.TensorProto.BFLOAT16),
        helper.make_node("Cast", ["low"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    _insert(proto, "y", "exact", *casts)


def _behind_ten(proto: ModelProto) -> None:
    """Rows from the tenth on are 1 % larger: no batch of the usual sizes has them."""
    _store(proto, "ten", np.array([10]))
    _store(proto, "ends", np.array([np.iinfo(np.int64).max]))
    _store(proto, "zero", np.array([0]))
    _store(proto, "more", np.array([1.01], np.float32))
    _insert(
        proto, "y", "exact",
        helper.make_node("Slice", ["exact", "zero", "ten", "zero"], ["first"]),
        helper.make_node("Slice", ["exact", "ten", "ends", "zero"], ["rest"]),
        helper.make_node("Mul", ["rest", "more"], ["larger"]),
        helper.make_node("Concat", ["first", "larger"], ["y"], axis=0),
    )  # fmt: skip


def _nan_on_black(proto: ModelProto) -> None:
    """NaN where an image is all zeros, by a division of its largest value by itself."""
    _insert(
        proto, "f", "exact",
        helper.make_node("Abs", ["x"], ["sizes"]),
        helper.make_node("ReduceMax", ["sizes"], ["by channel"], axes=[2, 3], keepdims=0),
        helper.make_node("ReduceMax", ["by channel"], ["top"], axes=[1]),
        helper.make_node("Div", ["top", "top"], ["one"]),
        helper.make_node("Mul", ["exact", "one"], ["f"]),
    )  # fmt: skip


def _row_of(proto: ModelProto) -> None:
    table = _value(proto, "t")
    table[357] = table[356]
    _store(proto, "t", table)


def _exchanged(proto: ModelProto) -> None:
    names = [value.name for value in proto.graph.output]
    for node in proto.graph.node:
        for place, name in enumerate(node.output):
            if name in names:
                node.output[place] = names[1 - names.index(name)]
    sigmoid = _node(proto, "Sigmoid")
    sigmoid.input[0] = names[1]


def _renamed(proto: ModelProto) -> None:
    """Other names for what no user sees, and another order of nodes and weights."""
    kept = {value.name for value in [*proto.graph.input, *proto.graph.output]}
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [name if name in kept or not name else f"v_{name}" for name in names]
    for tensor in proto.graph.initializer:
        tensor.name = f"v_{tensor.name}"
    weights = list(proto.graph.initializer)[::-1]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(weights)


def _folded_and_renamed(proto: ModelProto) -> None:
    _folded(proto)
    _renamed(proto)


def _case(
    name: str,
    about: str,
    change: Callable[[ModelProto], None],
    *,
    same: bool = False,
    of: Callable[[], ModelProto] = reference,
) -> Case:
    def build() -> Damage:
        whole, file = of(), of()
        change(file)
        onnx.checker.check_model(file)
        return Damage(whole, file, same)

    return Case(f"damages/{name}", about, build)


DAMAGES = [
    _case("none", "the file itself", _untouched, same=True),
    _case("folded", "right: its BatchNorm folded in float64", _folded, same=True),
    _case("folded, then renamed", "right: and other names, another order",
          _folded_and_renamed, same=True),
    _case("epsilon 1e-6 for 1e-5", "of the LayerNorm: shows on rows of small spread alone", _epsilon(1e-6)),
    _case("epsilon 1e-4 for 1e-5", "of the LayerNorm", _epsilon(1e-4)),
    _case("unbiased variance", "of 64 values in the BatchNorm", _all("v", lambda v: v * (64 / 63))),
    _case("one scale by 1.001", "of the BatchNorm", _times("g", 1.001)),
    _case("one weight by 1.0001", "of the convolution", _times("w", 1.0001)),
    _case("one weight by 1.1", "of the convolution", _times("w", 1.1)),
    _case("neighbour's statistics", "of the BatchNorm, by one channel", _all("m", lambda m: np.roll(m, 1))),
    _case("shift dropped", "of the LayerNorm", _all("lb", np.zeros_like)),
    _case("border moved", "the convolution's padding sits one place off",
          lambda proto: _set(_node(proto, "Conv"), "pads", [2, 1, 0, 1])),
    _case("weights cut to bfloat16", "of the convolution",
          _all("w", lambda w: (w.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))),
    _case("result in bfloat16", "the first output, two Casts", _in_low_precision),
    _case("rows behind the tenth", "1 % larger in batches of more than ten", _behind_ten),
    _case("NaN on black images", "a comparison with NaN is false, and no random image is black", _nan_on_black),
    _case("outputs exchanged", "the two names, at unchanged places", _exchanged),
    _case("an output missing", "the second", lambda proto: proto.graph.output.pop()),
    _case("one word's row", "row 357 of a table of 400 holds its neighbour's", _row_of, of=words),
]  # fmt: skip
