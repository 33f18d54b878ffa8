"""Small graphs to start from, and changes that keep a graph's form: most bytes of a random file would never be read."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper, parser

from benchmarks.fuzzing.documents import changed_bytes

_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_NORM = "float[3] g = {1, 2, 0.5}, float[3] b = {0, 1, -1}, float[3] m = {0.1, 0, 2}, float[3] v = {1, 0.5, 2}"
_KERNEL = "float[3,3,1,1] w = {1, 2, 3, -1, 0.5, 0, 2, 1, 1}"
_TEXTS = (
    f"f (float[n,3,4,4] x) => (float[n,3,4,4] y) <{_KERNEL}, {_NORM}>"
    "{ c = Conv (x, w) r = BatchNormalization (c, g, b, m, v) y = Relu (r) }",
    f"f (float[n,3,4,4] x) => (float[n,3,4,4] y) <{_KERNEL}, {_NORM}>"
    "{ r = BatchNormalization (x, g, b, m, v) p = Relu (r) c = Conv (p, w) y = Add (c, x) }",
    f"f (float[n,3] x) => (float[n,3] y) <float[3,3] w = {{1, 2, 3, -1, 0.5, 0, 2, 1, 1}}, {_NORM}>"
    "{ c = Gemm <transB = 1, alpha = 0.5> (x, w, b) r = BatchNormalization (c, g, b, m, v) y = Sigmoid (r) }",
    f"f (float[n,3,4,4] x) => (float[n,48] y) <{_KERNEL}, {_NORM}, int64[2] s = {{0, -1}}>"
    "{ c = ConvTranspose (x, w) r = BatchNormalization (c, g, b, m, v) a = AveragePool <kernel_shape = [3, 3], "
    "pads = [1, 1, 1, 1]> (r) y = Reshape (a, s) }",
    "f (float[n,4,3] x) => (float[n,4,3] y) <float[3] g = {1, 2, 0.5}, float[3] b = {0, 1, -1}, float e = {0.00001}, "
    "float two = {2}, float[3,3] w = {1, 2, 3, -1, 0.5, 0, 2, 1, 1}>"
    "{ m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) q = Pow (d, two) v = ReduceMean <axes = [-1]> (q) "
    "s = Add (v, e) r = Sqrt (s) n1 = Div (d, r) k = Mul (n1, g) z = Add (k, b) y = MatMul (z, w) }",
    "f (float[n,6] x) => (float[n,3] y, float[n,3] z) <float[6] s = {1, 2, 3, 4, 5, 6}, int64[2] p = {3, 3}>"
    "{ t = Mul (x, s) u, y = Split <axis = 1> (t, p) a = Transpose <perm = [1, 0]> (u) c = Softmax <axis = 0> (a) "
    "z = Transpose <perm = [1, 0]> (c) }",
    f"f (float[n,3,4,4] x) => (float[n,3,4,4] y) <{_KERNEL}, {_NORM}, float q = {{0.1}}, uint8 o = {{128}}>"
    "{ i = QuantizeLinear (x, q, o) h = DequantizeLinear (i, q, o) c = Conv (h, w) "
    "r = BatchNormalization (c, g, b, m, v) j = QuantizeLinear (r, q, o) y = DequantizeLinear (j, q, o) }",
    f"f (float[n,3,4,4] x, bool k) => (float[n,3,4,4] y) <{_KERNEL}, {_NORM}>"
    "{ c = If (k) <then_branch = a () => (float[n,3,4,4] t) { t = Conv (x, w) }, "
    "else_branch = e () => (float[n,3,4,4] u) { u = Identity (x) }> y = BatchNormalization (c, g, b, m, v) }",
)
_OPERATORS = """
    Add Sub Mul Div Relu Sigmoid Identity Conv ConvTranspose MatMul Gemm BatchNormalization InstanceNormalization
    LayerNormalization Softmax Reshape Transpose Concat Split Pad MaxPool AveragePool GlobalAveragePool Resize Clip
    ReduceMean Expand Range Tile Slice Gather Where Cast Loop If Scan Dropout QuantizeLinear DequantizeLinear
""".split()  # noqa: SIM905 - a table to read
_ATTRIBUTES = """
    group axis axes pads strides dilations epsilon alpha beta keepdims perm to mode training_mode
""".split()  # noqa: SIM905 - likewise
_NUMBERS = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 1e-45, -1.0, 3.4e38)
_SIZES = (0, 1, 2, -1, 3, 7, 2**31, 2**40, -(2**63), 2**63 - 1)


def seeds() -> list[bytes]:
    """Return the graphs to start from, as files."""
    return [parser.parse_model(f"{_HEAD} {text}").SerializeToString() for text in _TEXTS]


def mutate(content: bytes, most: int, seed: int) -> bytes:
    """Return a file changed in one to three places; of what is no model some bytes."""
    rng = random.Random(seed)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        return changed_bytes(content, rng)[:most]
    for _ in range(rng.choice((1, 1, 2, 3))):
        try:
            rng.choice(_CHANGES)(model, rng)
        except (LookupError, ValueError, TypeError, OverflowError):
            continue  # there is nothing of the kind to change
    written = model.SerializeToString()
    return (changed_bytes(written, rng) if rng.random() < 0.05 else written)[:most]


def _names(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    found = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    return [*sorted(found | {name for node in graph.node for name in node.output}), "", "nowhere"]


def _rewire(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    node.input[rng.randrange(len(node.input))] = rng.choice(_names(model))


def _reoutput(model: onnx.ModelProto, rng: random.Random) -> None:
    if rng.random() < 0.5:
        rng.choice(model.graph.output).name = rng.choice(_names(model))
    else:
        node = rng.choice(model.graph.node)
        node.output[rng.randrange(len(node.output))] = rng.choice([*_names(model), "fresh"])


def _operator(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    if rng.random() < 0.1:
        node.domain = rng.choice(("ai.onnx", "com.microsoft", "made.up"))
    else:
        node.op_type = rng.choice(_OPERATORS)


def _insert(model: onnx.ModelProto, rng: random.Random) -> None:
    names = _names(model)
    count = rng.randint(1, 3)
    fresh = f"f{rng.randrange(1000)}"
    node = onnx.helper.make_node(rng.choice(_OPERATORS), [rng.choice(names) for _ in range(count)], [fresh])
    place = rng.randrange(len(model.graph.node) + 1)
    model.graph.node.insert(place, node)
    later = model.graph.node[place + 1] if place + 1 < len(model.graph.node) else None
    if later is not None and later.input:
        later.input[rng.randrange(len(later.input))] = fresh


def _remove(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = model.graph
    rows = rng.choice((graph.node, graph.initializer, graph.input, graph.output, rng.choice(graph.node).attribute))
    del rows[rng.randrange(len(rows))]


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = rng.choice(rng.choice(model.graph.node).attribute)
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_SIZES)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = rng.choice(_NUMBERS)
    else:
        attribute.i = rng.choice(_SIZES)


def _give(model: onnx.ModelProto, rng: random.Random) -> None:
    name = rng.choice(_ATTRIBUTES)
    values: tuple[object, ...] = (rng.choice(_SIZES[:6]), [rng.choice(_SIZES[:6])] * rng.randint(1, 4), 0.5, "reflect")
    rng.choice(model.graph.node).attribute.append(onnx.helper.make_attribute(name, rng.choice(values)))


def _tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(model.graph.initializer)
    array = numpy_helper.to_array(tensor).copy()
    change = rng.random()
    if change < 0.5 and array.size:
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice(_NUMBERS if array.dtype.kind == "f" else _SIZES[:6])
    elif change < 0.7:
        kinds = (np.float16, np.float64, np.int64, np.float32, np.bool_)
        with np.errstate(all="ignore"):
            array = array.astype(rng.choice(kinds))
    elif change < 0.85:
        array = array.reshape(rng.choice(((-1,), (1, -1), (-1, 1), (array.size, 1, 1))))
    elif tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_SIZES)
        return
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _declared(model: onnx.ModelProto, rng: random.Random) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    kind = value.type.tensor_type
    if rng.random() < 0.3:
        kind.elem_type = rng.choice((0, 1, 6, 7, 9, 10, 11, 16, 99))
    elif rng.random() < 0.2:
        kind.ClearField("shape")
    else:
        size = rng.choice(kind.shape.dim)
        size.Clear()
        if rng.random() < 0.7:
            size.dim_value = rng.choice(_SIZES)
        else:
            size.dim_param = rng.choice(("n", "m", "", "\\u00e4 b"))


def _version(model: onnx.ModelProto, rng: random.Random) -> None:
    if rng.random() < 0.7:
        rng.choice(model.opset_import).version = rng.choice((1, 6, 7, 9, 11, 13, 15, 17, 18, 19, 21, 23, 99, 0, -1))
    else:
        model.ir_version = rng.choice((0, 1, 3, 8, 11, 99))


_CHANGES: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    *(
        _rewire,
        _reoutput,
        _operator,
        _insert,
        _insert,
        _remove,
        _attribute,
        _give,
        _tensor,
        _tensor,
        _declared,
        _version,
    ),
)
