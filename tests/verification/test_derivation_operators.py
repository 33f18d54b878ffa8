"""The checker on operators with weights of other forms, bodies, sequences, tables: right files, and each damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import norms_in_bodies
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

from normdeploy.graph import load_graph, save_graph
from normdeploy.graph.derivation import Derivation
from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.hints import unchanged

Sizes = list[dict[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Graph:
    """A source. Args: text: of the graph. sizes: of its inputs. known: its constants. opset: of its operators."""

    text: str
    sizes: Sizes
    known: dict[str, np.ndarray] = field(default_factory=dict)
    opset: int = 20

    def model(self) -> ModelProto:
        """Return the source."""
        whole = self.text.lstrip().startswith("<")
        head = "" if whole else f'<ir_version: 10, opset_import: ["": {self.opset}]> '
        proto = onnx.parser.parse_model(head + self.text)
        for name, value in self.known.items():
            proto.graph.initializer.append(numpy_helper.from_array(value, name))
        return proto


RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 2, shape).astype(np.float32)


def recurrent(kind: str, gates: int, **attributes: Any) -> Graph:
    said = ", ".join(f"{key} = {value}" for key, value in {"hidden_size": 3, **attributes}.items())
    text = f"""g (float[T,N,4] x) => (float[T,1,N,3] y) {{
        a = Mul(x, s) b = Add(a, t) y = {kind}<{said}>(b, w, r, c) }}"""
    known = {"s": positive(4), "t": drawn(4), "w": drawn(1, 3 * gates, 4), "r": drawn(1, 3 * gates, 3)}
    return Graph(text, [{"x": (n, n + 1, 4)} for n in (2, 3)], {**known, "c": drawn(1, 6 * gates)})


def norm(channels: int) -> dict[str, np.ndarray]:
    return {"g": positive(channels), "h": drawn(channels), "m": drawn(channels), "v": positive(channels)}


PICTURES: Sizes = [{"x": (n, 3, 5, 6)} for n in (1, 2)]
ROWS: Sizes = [{"x": (n, 4)} for n in (2, 3)]
BODIES: Sizes = [{"x": (n, norms_in_bodies.N), "c": ()} for n in (2, 3)]

GRAPHS: dict[str, Graph] = {
    "Gemm with alpha and beta": Graph(
        """g (float[N,4] x) => (float[N,5] y) { a = Mul(x, s)
            b = Gemm<alpha = 0.5, beta = 2.0>(a, w, c) y = BatchNormalization(b, g, h, m, v) }""",
        ROWS,
        {"s": positive(4), "w": drawn(4, 5), "c": drawn(5), **norm(5)},
    ),
    "DeformConv": Graph(
        """g (float[N,4,5,5] x, float[N,8,4,4] o, float[N,4,4,4] k) => (float[N,6,4,4] y) { a = Mul(x, s)
            b = DeformConv<group = 2>(a, w, o, c, k) y = BatchNormalization(b, g, h, m, v) }""",
        [{"x": (n, 4, 5, 5), "o": (n, 8, 4, 4), "k": (n, 4, 4, 4)} for n in (1, 2)],
        {"s": positive(4, 1, 1), "w": drawn(6, 2, 2, 2), "c": drawn(6), **norm(6)},
    ),
    "LSTM": recurrent("LSTM", 4),
    "GRU": recurrent("GRU", 3),
    "GRU, reset after": recurrent("GRU", 3, linear_before_reset=1),
    "RNN": recurrent("RNN", 1),
    "norm behind If": Graph(
        """g (float[N,3,H,W] x, bool c) => (float[N,4,H,W] y) {
            z = If (c) < then_branch = t () => (float[N,4,H,W] a) { a = Conv(x, w1) },
                         else_branch = e () => (float[N,4,H,W] b) { b = Conv(x, w2, d) } >
            y = BatchNormalization(z, g, h, m, v) }""",
        [{**shapes, "c": ()} for shapes in PICTURES],
        {"w1": drawn(4, 3, 1, 1), "w2": drawn(4, 3, 1, 1), "d": drawn(4), **norm(4)},
    ),
    "norm in front of an If": Graph(
        """g (float[N,4,H,W] x, bool c) => (float[N,4,H,W] y) {
            k = Sin (x) z = BatchNormalization(k, g, h, m, v)
            y = If (c) < then_branch = t () => (float[N,4,H,W] a) { a = Conv(z, w1) },
                         else_branch = e () => (float[N,4,H,W] b) { b = Conv(z, w2, d) } > }""",
        [{"x": (n, 4, 5, 6), "c": ()} for n in (1, 2)],
        {"w1": drawn(4, 4, 1, 1), "w2": drawn(4, 4, 1, 1), "d": drawn(4), **norm(4)},
    ),
    "a list": Graph(
        """g (float[N,4] x) => (float[N,5] y) { a = Mul(x, s) e = SequenceEmpty() q = SequenceInsert(e, x)
            r = SequenceInsert(q, a, nought) k = ConcatFromSequence<axis = 1>(r) y = MatMul(k, w) }""",
        ROWS,
        {"nought": np.array(0), "s": positive(4), "w": drawn(8, 5)},
    ),
    "norms in branches": Graph(norms_in_bodies.BRANCHES, BODIES),
    "norms in a Loop": Graph(norms_in_bodies.STEPS, BODIES),
    "means of windows of two sizes": Graph(
        """g (float[N,3,5] x) => (float[N,4,2] y) { a = Sigmoid(x) n = BatchNormalization(a, g, h, m, v)
            w = Gather<axis = 2>(n, at) k = Where(beyond, nought, w) k0 = Gather<axis = 3>(k, i0)
            k1 = Gather<axis = 3>(k, i1) k2 = Gather<axis = 3>(k, i2) s1 = Add(k0, k1) s2 = Add(s1, k2)
            e = Div(s2, count) y = Conv(e, c, b) }""",
        [{"x": (n, 3, 5)} for n in (1, 2)],
        {
            **norm(3),
            "at": np.array([[0, 1, 2], [3, 4, 4]]),
            "beyond": np.array([[False, False, False], [False, False, True]]),
            "nought": np.zeros((), np.float32),
            **{f"i{at}": np.array(at) for at in range(3)},
            "count": np.array([3, 2], np.float32),
            "c": drawn(4, 3, 1),
            "b": drawn(4),
        },
    ),
    "narrow kernels of what is cut": Graph(
        """g (float[N,3,5,6] x) => (float[N,4,3,4] y) { a = Conv(x, w) r = Slice(x, one, end, rows) p = Conv(r, p1)
            c = Slice(x, one, end, columns) q = Conv(c, q1, b) s = Add(a, p) y = Add(s, q) }""",
        PICTURES,
        {
            "w": drawn(4, 3, 3, 3),
            "p1": drawn(4, 3, 1, 3),
            "q1": drawn(4, 3, 3, 1),
            "b": drawn(4),
            "one": np.array([1]),
            "end": np.array([-1]),
            "rows": np.array([2]),
            "columns": np.array([3]),
        },
    ),
    "transposed convolutions in a sum": Graph(
        """g (float[N,3,H,W] x) => (float[N,4,K,L] y) {
            a = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w) p = Conv(x, u)
            q = ConvTranspose<strides = [2, 2]>(p, z, b) r = BatchNormalization(q, g, h, m, v) y = Add(a, r) }""",
        [{"x": (n, 3, n + 3, n + 4)} for n in (1, 2)],
        {"w": drawn(3, 4, 4, 4), "u": drawn(3, 3, 1, 1), "z": drawn(3, 4, 2, 2), "b": drawn(4), **norm(4)},
    ),
    "Einsum": Graph(
        """g (float[N,T,4] x) => (float[N,T,5] y) {
            a = Mul(x, s) b = Einsum<equation = "nti,oi->nto">(a, w) y = Add(b, c) }""",
        [{"x": (n, n + 1, 4)} for n in (2, 3)],
        {"s": positive(4), "w": drawn(5, 4), "c": drawn(5)},
    ),
    "split by a sequence": Graph(
        """g (float[N,6] x) => (float[N,2] y) { q = SplitToSequence<axis = 1>(x, parts)
            a = SequenceAt(q, one) b = SequenceAt(q, nought) d = Mul(a, s) y = MatMul(d, w) }""",
        [{"x": (n, 6)} for n in (2, 3)],
        {
            "parts": np.array([2, 4]),
            "one": np.array(1),
            "nought": np.array(0),
            "s": positive(4),
            "w": drawn(4, 2),
        },
    ),
    "norm of an embedding": Graph(
        """g (int64[N,T] x) => (float[N,T,6] y) {
            e = Gather(table, x) y = LayerNormalization<epsilon = 1e-3>(e, s, t) }""",
        [{"x": (n, n + 1)} for n in (2, 3)],
        {"table": drawn(9, 6), "s": positive(6), "t": drawn(6)},
    ),
    "norm of an embedding, whose epsilon counts in no row": Graph(
        """g (int64[N,T] x) => (float[N,T,6] y) {
            e = Gather(table, x) y = LayerNormalization<epsilon = 1e-5>(e, s, t) }""",
        [{"x": (n, n + 1)} for n in (2, 3)],
        {"table": drawn(9, 6), "s": positive(6), "t": drawn(6)},
    ),
    "positions as many as there are": Graph(
        """g (int64[N,T] x) => (float[N,T,6] y) { n = Shape<start = 1, end = 2>(x)
            e = Gather(table, x) p = Slice(places, nought, n, axis)
            a = Add(e, p) b = Mul(a, s) y = Sin(b) }""",
        [{"x": (n, n + 1)} for n in (2, 3)],
        {
            "table": drawn(9, 6),
            "places": drawn(1, 7, 6),
            "nought": np.array([0]),
            "axis": np.array([1]),
            "s": positive(6),
        },
    ),
    "scores behind a mask of infinities": Graph(
        """g (float[N,4,4] x) => (float[N,4,4] y) { a = MatMul(x, w) b = Mul(a, s) c = Add(b, mask) y = Softmax(c) }""",
        [{"x": (n, 4, 4)} for n in (2, 3)],
        {"w": drawn(4, 4), "s": np.float32(0.5), "mask": np.triu(np.full((4, 4), -np.inf, np.float32), 1)},
    ),
    "numbers made in the graph": Graph(
        """g (float[N,4] x) => (float[N,4] y) { n = Shape<start = 0, end = 1>(x) f = Concat<axis = 0>(n, four)
            p = Mul(a, b) o = Expand(p, f) r = Sin(o) y = Add(x, r) }""",
        ROWS,
        {"a": 9 * drawn(4), "b": drawn(4), "four": np.array([4])},
    ),
    "weights in integers": Graph(
        """g (float[N,3,H,W] x) => (float[N,4,H,W] y) { w = DequantizeLinear<axis = 0>(q, s)
            a = Conv(x, w) y = BatchNormalization(a, g, h, m, v) }""",
        PICTURES,
        {"q": RNG.integers(-99, 99, (4, 3, 1, 1)).astype(np.int8), "s": positive(4), **norm(4)},
    ),
    "activations in integers": Graph(
        """g (float[N,4] x) => (float[N,5] y) { a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
            w = DequantizeLinear<axis = 1>(q, k) y = MatMul(b, w) }""",
        ROWS,
        {
            "s": np.float32(0.1),
            "z": np.int8(3),
            "q": RNG.integers(-99, 99, (4, 5)).astype(np.int8),
            "k": positive(5),
        },
    ),
    "Attention": Graph(
        """g (float[N,2,T,4] x) => (float[N,2,T,4] y) { k = Relu(x) v = Tanh(x)
            a = Attention<scale = 0.3>(x, k, v) y = Mul(a, s) }""",
        [{"x": (n, 2, n + 1, 4)} for n in (2, 3)],
        {"s": positive(4)},
        23,
    ),
}

_NUMBERS = ("alpha", "beta", "epsilon", "scale")
_WHOLE = ("linear_before_reset", "transB", "is_causal")


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from graphs(attribute.g)


def changed(tensor: TensorProto) -> bool:
    """Change the largest finite number by a thousandth, or by 1; False where that changes nothing."""
    value = numpy_helper.to_array(tensor).copy()
    size = np.where(np.isfinite(value), np.abs(value.astype(np.float64)), 0)
    if value.dtype.kind not in "fi" or (value.dtype.kind == "i" and value.dtype != np.int8) or not size.any():
        return False
    at = np.unravel_index(int(np.argmax(size)), value.shape)
    value[at] = value[at] * np.float32(1.001) if value.dtype.kind == "f" else value[at] - np.sign(value[at])
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return True


def damages(proto: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    """Return a copy for each constant and each attribute, of bodies too, that is another one in it."""

    def places(model: ModelProto) -> list[Any]:
        found: list[Any] = []
        for graph in graphs(model.graph):
            found += graph.initializer
            for node in graph.node:
                found += [a.t if a.type == AttributeProto.TENSOR else a for a in node.attribute]
        return found

    for index, place in enumerate(places(proto)):
        copy = ModelProto()
        copy.CopyFrom(proto)
        other = places(copy)[index]
        if isinstance(other, TensorProto):
            if changed(other):
                yield place.name, copy
        elif other.name in _NUMBERS and other.type == AttributeProto.FLOAT:
            other.f *= 1.01
            yield place.name, copy
        elif other.name in _WHOLE:
            other.i = 1 - other.i
            yield place.name, copy
        elif other.name == "equation":
            other.CopyFrom(helper.make_attribute("equation", "nto,oi->nti"))
            yield place.name, copy


def rewritten(graph: Graph, folder: Path) -> tuple[ir.Model, ModelProto, Derivation]:
    source = ir.serde.deserialize_model(graph.model())
    result = rewrite(source)
    path = save_graph(result.model.clone(), folder / "net.onnx")
    return source, onnx.load(str(path)), result.derivation


@pytest.mark.parametrize("name", GRAPHS)
def test_it_is_confirmed_and_nothing_wrong_is(name: str, tmp_path: Path):
    graph = GRAPHS[name]
    source, proto, derivation = rewritten(graph, tmp_path)
    ours = Side(source, graph.sizes)
    report = check_derivation(ours, ir.serde.deserialize_model(proto), derivation, graph.sizes)
    assert report.confirmed, [(row.name, row.reason) for row in report.open]
    assert not report.open
    count = 0
    for what, damaged in damages(proto):
        theirs = Side(ir.serde.deserialize_model(damaged), ours.followed, beside=ours)
        for given in (derivation, unchanged(source)):
            report = check_derivation(ours, theirs, given, graph.sizes)
            assert not report.confirmed, what
        count += 1
    assert count


@pytest.mark.parametrize("name", [n for n in GRAPHS if "integers" not in n])
def test_the_source_as_it_is_is_confirmed_without_a_derivation(name: str, tmp_path: Path):
    graph = GRAPHS[name]
    save = tmp_path / "net.onnx"
    onnx.save(graph.model(), str(save))
    report = check_derivation(load_graph(save), load_graph(save), Derivation(), graph.sizes)
    assert report.confirmed, [(row.name, row.reason) for row in report.open]


def test_a_loop_whose_state_grows_is_not_confirmed():
    """Its body is looked at with one size of the state, which says nothing of the others."""
    text = """<ir_version: 10, opset_import: ["": 20]>
        g (float[N,2] x, bool c) => (float[M,2] y) <int64 count = {3}> {
            y = Loop (count, c, x) < body = step (int64 i, bool going, float[K,2] state) => (bool go, float[L,2] next) {
                go = Identity(going) next = Concat<axis = 0>(state, state) } > }"""
    source = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    sizes = [{"x": (n, 2), "c": ()} for n in (2, 3)]
    report = check_derivation(source, source.clone(), Derivation(), sizes)
    assert not report.confirmed
