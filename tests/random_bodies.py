"""Graphs drawn at random with If, Loop and Scan: maps inside, in front of and behind bodies, constants of both scopes.

A body reads what stands around it, its own states and items, and constants of its own, of the graph's or of another
operator's. Conditions are computed, given or constant; states are scaled in each turn; scans run over the batch or
another axis, either way. Bodies nest.
"""

from __future__ import annotations

import numpy as np
import onnx
import random_graph_steps as step
from graph_drawing import Drawing, Shape, Value
from onnx import TensorProto, helper, numpy_helper

TURNS = 3
IN_BODIES = (
    *(step.affine,) * 3, *(step.linear,) * 2, *(step.two,) * 3, step.alone, step.norm, step.product, step.convolution,
    step.transpose, step.concat, step.split, step.gather,
)  # fmt: skip


class Scope(Drawing):
    """A graph that has bodies, or a body.

    Args:
        rng: draws.
        around: the graph or body around it. None for the graph itself.
        prefix: of its names.
        seen: values around it that it may read.
        named: the batch is each value's first axis, as in the graph.
    """

    def __init__(self, rng: np.random.Generator, around: Scope | None = None, prefix: str = "",
                 seen: list[Value] | None = None, *, named: bool = True) -> None:  # fmt: skip
        super().__init__(rng)
        self.around, self.prefix, self.named = around, prefix, named
        self.values += seen or []
        self.depth: int = 0 if around is None else around.depth + 1
        self.stored: dict[str, np.ndarray] = {}
        self.count = 0
        self.given: set[str] = set()
        self.made: set[str] = set()

    def constant(self, array: np.ndarray) -> str:
        """Store a number here, around here, or as an operator; or take one of its shape that is there."""
        scopes = [self]
        while scopes[-1].around is not None:
            scopes.append(scopes[-1].around)
        array = np.asarray(array)
        if array.dtype == np.float32 and self.rng.random() < 0.25:
            stored = [item for one in scopes for item in one.stored.items()]
            alike = [name for name, one in stored if one.shape == array.shape and one.dtype == array.dtype]
            if alike:
                return str(self.rng.choice(alike))
        scope = scopes[int(self.rng.integers(len(scopes)))]
        scopes[-1].count += 1
        name = f"c{scopes[-1].count}"
        if scope is self and self.around is not None and self.rng.random() < 0.5:
            self.nodes.append(
                helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array), name=f"{name}_made")
            )
            self.stored.setdefault(name, array)
        else:
            self.stored.setdefault(name, array)
            scope.constants.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, inputs: list[str], *shapes: tuple[int, ...], **attributes: object) -> Value:
        at = len(self.nodes)
        names = [f"{self.prefix}v{at}" + (f"_{i}" if i else "") for i in range(len(shapes))]
        self.nodes.append(helper.make_node(kind, inputs, names, name=f"{self.prefix}n{at}", **attributes))
        self.values += [(name, tuple(shape)) for name, shape in zip(names, shapes, strict=True)]
        self.made.update(names)
        return names[0], tuple(shapes[0])

    def declared(self, value: Value, *, sizes: bool = True) -> onnx.ValueInfoProto:
        name, shape = value
        first = ["N"] if self.named else [shape[0]]
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [*first, *shape[1:]] if sizes else None)

    def draw(self, length: int) -> None:
        """Add operators, and now and then one with bodies."""
        stop = len(self.nodes) + length
        while len(self.nodes) < stop:
            if self.depth < 2 and self.rng.random() < (0.25 if self.depth == 0 else 0.1):
                (choose, loop, scan)[int(self.rng.integers(3))](self)
            else:
                IN_BODIES[int(self.rng.integers(len(IN_BODIES)))](self)

    def ends_in(self, shape: Shape, scale: bool) -> str:
        """Return a value of a shape that is written here, and that no other result is."""
        found = [value for value in self.values if value[1] == shape]
        name = found[int(self.rng.integers(len(found)))][0]
        if name not in self.made or name in self.given or self.rng.random() < 0.3:
            if scale:
                name = self.op("Mul", [name, self.constant(self.factor(shape[-1]))], shape)[0]
            else:
                name = self.op("Identity", [name], shape)[0]
        self.given.add(name)
        return name

    def body(self, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, name, inputs, outputs, initializer=self.constants)


def _condition(g: Scope) -> str:
    if g.around is None and g.rng.random() < 0.5:
        return "flag"
    found = g.pick()
    assert found is not None
    at = len(g.nodes)
    top, much = f"{g.prefix}top{at}", f"{g.prefix}much{at}"
    limit = g.constant(np.float32(g.rng.normal()))
    g.nodes.append(helper.make_node("ReduceMax", [found[0]], [top], keepdims=0, name=f"{top}_n"))
    g.nodes.append(helper.make_node("Greater", [top, limit], [much], name=f"{much}_n"))
    return much


def choose(g: Scope) -> None:
    """Add an If of one or two results."""
    condition, alike = _condition(g), g.rng.random() < 0.3
    shapes = [found[1] for _ in range(int(g.rng.integers(1, 3))) if (found := g.pick()) is not None]
    at = len(g.nodes)
    bodies = {}
    for name in ("then_branch", "else_branch"):
        prefix = f"{g.prefix}i{at}_" if alike else f"{g.prefix}{name[0]}{at}_"
        inner = Scope(g.rng, g, prefix, list(g.values), named=g.named)
        inner.draw(int(g.rng.integers(1, 6)))
        outs = [(inner.ends_in(shape, scale=g.rng.random() < 0.5), shape) for shape in shapes]
        bodies[name] = inner.body(prefix, [], [inner.declared(out) for out in outs])
    g.op("If", [condition], *shapes, **bodies)


def _state(g: Scope, shape: Shape) -> str:
    found = [value for value in g.values if value[1] == shape]
    return found[int(g.rng.integers(len(found)))][0]


def loop(g: Scope) -> None:
    """Add a Loop of a state or two, and of what it scans out."""
    states = [found for _ in range(int(g.rng.integers(1, 3))) if (found := g.pick()) is not None]
    at = len(g.nodes)
    prefix = f"{g.prefix}l{at}_"
    inner = Scope(g.rng, g, prefix, list(g.values), named=g.named)
    inputs = [(f"{prefix}s{i}", shape) for i, (_, shape) in enumerate(states)]
    inner.values += inputs * 2
    inner.draw(int(g.rng.integers(1, 6)))
    outs = [(inner.ends_in(shape, scale=g.rng.random() < 0.5), shape) for _, shape in states]
    seen = [found for _ in range(int(g.rng.integers(0, 2))) if (found := inner.pick()) is not None]
    seen = [(inner.ends_in(shape, scale=False), shape) for _, shape in seen]
    going = f"{prefix}going"
    inner.nodes.append(helper.make_node("Identity", [f"{prefix}go"], [going], name=f"{going}_n"))
    head = [
        helper.make_tensor_value_info(f"{prefix}turn", TensorProto.INT64, []),
        helper.make_tensor_value_info(f"{prefix}go", TensorProto.BOOL, []),
    ]
    tail = [helper.make_tensor_value_info(going, TensorProto.BOOL, [])]
    sizes = g.rng.random() < 0.7
    body = inner.body(
        prefix,
        [*head, *(inner.declared(value, sizes=sizes) for value in inputs)],
        [*tail, *(inner.declared(value, sizes=sizes) for value in (*outs, *seen))],
    )
    count = g.constant(np.array(TURNS, np.int64))
    shapes = [shape for _, shape in outs]
    stacked = [(TURNS, *shape) for _, shape in seen]
    node = len(g.nodes)
    g.op("Loop", [count, "", *(name for name, _ in states)], *shapes, *stacked, body=body)
    _front(g, node, len(shapes), len(stacked))


def _front(g: Scope, node: int, first: int, count: int) -> None:
    """Bring the batch of what was stacked to the front."""
    for index in range(first, first + count):
        name = g.nodes[node].output[index]
        at = next(i for i, value in enumerate(g.values) if value[0] == name)
        _, shape = g.values.pop(at)
        order = [1, 0, *range(2, len(shape))]
        g.op("Transpose", [name], tuple(shape[axis] for axis in order), perm=order)


def scan(g: Scope) -> None:
    """Add a Scan over the batch, where a body sees one sample, or over another axis."""
    source = g.pick(lambda shape: len(shape) > 2)
    if source is None:
        return
    at = len(g.nodes)
    _, shape = source
    axis = int(g.rng.integers(0, len(shape)))
    if axis == 0 and not g.named:
        return
    items = [(n, s) for n, s in g.values if len(s) == len(shape) and s[axis] == shape[axis]]
    chosen = [source, *([items[int(g.rng.integers(len(items)))]] if g.rng.random() < 0.4 else [])]
    prefix = f"{g.prefix}s{at}_"
    inner = Scope(g.rng, g, prefix, list(g.values) if axis else [], named=g.named and axis > 0)
    read = [(f"{prefix}x{i}", (*s[:axis], *s[axis + 1 :])) for i, (_, s) in enumerate(chosen)]
    inner.values += read * 3
    if axis:
        found = g.pick()
        assert found is not None
        states = [found]
    else:
        states = [(g.constant(g.normal(*read[0][1])), read[0][1])]
    carried = [(f"{prefix}s{i}", s) for i, (_, s) in enumerate(states)]
    inner.values += carried
    inner.draw(int(g.rng.integers(1, 6)))
    outs = [(inner.ends_in(s, scale=g.rng.random() < 0.5), s) for _, s in carried]
    seen = [found for _ in range(int(g.rng.integers(1, 3))) if (found := inner.pick()) is not None]
    seen = [(inner.ends_in(s, scale=False), s) for _, s in seen]
    body = inner.body(
        prefix,
        [inner.declared(value) for value in (*carried, *read)],
        [inner.declared(value) for value in (*outs, *seen)],
    )
    out_axes = [int(g.rng.integers(1, len(s) + 1)) if axis else 0 for _, s in seen]
    count = shape[axis]
    stacked = [(*s[:a], count, *s[a:]) for (_, s), a in zip(seen, out_axes, strict=True)]
    kept = [s for _, s in outs] if axis else []
    results = [s for _, s in outs]
    back = g.rng.integers(0, 2, 4).tolist()
    value, _ = g.op(
        "Scan", [*(n for n, _ in states), *(n for n, _ in chosen)], *results, *stacked, body=body,
        num_scan_inputs=len(chosen), scan_input_axes=[axis] * len(chosen), scan_output_axes=out_axes,
        scan_input_directions=back[: len(chosen)], scan_output_directions=back[2 : 2 + len(seen)],
    )  # fmt: skip
    if not kept:  # of no batch
        g.values = [found for found in g.values if found[0] != value]


def random_bodies(seed: int) -> onnx.ModelProto:
    """Return a graph of operators with bodies; inputs x (N, T, C) and a flag."""
    rng = np.random.default_rng(seed)
    g = Scope(rng)
    g.input("x", (2, int(rng.choice([2, 3, 4])), int(rng.choice([2, 4, 6]))))
    step.linear(g)
    (choose, loop, scan)[int(rng.integers(3))](g)
    g.draw(int(rng.integers(2, 14)))
    proto = g.proto()
    proto.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    return proto
