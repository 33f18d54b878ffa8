"""Compare a file's graph, number by number, with the graph recomputed from the reference.

The comparison follows the dataflow from the outputs back: each value of the file against the one that it should be. So
the order of nodes, their names, nodes that copy (Identity), constants as nodes or as initializers, attributes left at
their defaults and nodes that no output depends on make no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant_tensor, module_path, tensor64
from normdeploy.graph.traits import Trait, has, kind_of
from normdeploy.verification.derivation.stored import attribute_difference, tensor_difference

_DEPTH = 4
"""How far back two operands are looked at to tell which is which, where their order is free."""

_SAMPLE = 1 << 12
"""Numbers of a constant that are looked at for that."""


@dataclass(frozen=True)
class Difference:
    """One stored number or attribute that is not the recomputed one.

    Args:
        where: module path of the node that reads it. node: its name. text: a sentence.
        rounding: it lies no further off than another order of rounding explains.
    """

    where: str
    node: str
    text: str
    rounding: bool = False


@dataclass
class Comparison:
    """The result of :func:`compare_graphs`.

    Args:
        same_structure: the same operators, wired alike.
        reason: why not. tensors: how many stored tensors were compared. problems: what differs.
    """

    same_structure: bool
    reason: str = ""
    tensors: int = 0
    problems: list[Difference] = field(default_factory=list)


def compare_graphs(recomputed: ir.Model, file: ir.Model, *, outputs: Sequence[str] | None = None) -> Comparison:
    """Compare two graphs of one origin: operators and wiring, every attribute and every stored number.

    Args:
        recomputed: weights unrounded where the rewrite room left them so.
        file: as read from disk.
        outputs: names of the file's outputs, in the order of the recomputed graph's; its own order by default.

    Returns:
        A Comparison; its problems are meaningful only with ``same_structure``.
    """
    named = {str(value.name): value for value in file.graph.outputs}
    theirs = [named[name] for name in outputs] if outputs is not None else list(file.graph.outputs)
    walk = _Walk()
    reason = walk.bind(_fed(recomputed.graph), _fed(file.graph)) or walk.compare(list(recomputed.graph.outputs), theirs)
    return Comparison(False, reason) if reason else walk.comparison


def _fed(graph: ir.Graph) -> list[ir.Value]:
    return sorted((v for v in graph.inputs if v.name not in graph.initializers), key=lambda v: str(v.name))


class _Walk:
    """Two graphs, or two bodies of an operator, gone through side by side from their outputs back."""

    def __init__(self) -> None:
        self.comparison = Comparison(True)
        self._bound: dict[ir.Value, ir.Value] = {}
        self._seen: set[tuple[ir.Value, ir.Value]] = set()
        self._nodes: set[tuple[ir.Node, ir.Node]] = set()

    def bind(self, ours: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> str:
        """Take values that are given from outside for the same; return how their number differs."""
        if len(ours) != len(theirs):
            return f"{len(theirs)} values are given from outside; recomputed, {len(ours)}"
        self._bound |= dict(zip(ours, theirs, strict=True))
        return ""

    def compare(self, ours: Sequence[ir.Value | None], theirs: Sequence[ir.Value | None]) -> str:
        """Compare values with all they are computed from; return how their structure differs."""
        queue = list(zip(ours, theirs, strict=True))[::-1]
        while queue:
            x, y = (None if value is None else _origin(value) for value in queue.pop())
            if x is None or y is None:
                if x is y:
                    continue
                return f"{_named(x or y)} is read where recomputed nothing is, or the reverse"
            if (x, y) in self._seen:
                continue
            self._seen.add((x, y))
            if x in self._bound or y in self._bound.values():
                if self._bound.get(x) is not y:
                    return f"{_named(y)} is read in place of {_named(x)}"
                continue
            a, b = x.producer(), y.producer()
            if constant_tensor(x) is not None or constant_tensor(y) is not None:
                if constant_tensor(x) is None or constant_tensor(y) is None:
                    return f"{_named(y)} is {'' if constant_tensor(y) is not None else 'not '}a constant"
                continue  # compared where it is read
            if a is None or b is None:
                return f"{_named(y)} comes from elsewhere than {_named(x)}"
            if x.index() != y.index():
                return f"{_named(y)} is another result of {b.op_type} than recomputed"
            if (a, b) in self._nodes:
                continue
            self._nodes.add((a, b))
            reason = self._node(a, b, queue)
            if reason:
                return reason
        return ""

    def _node(self, a: ir.Node, b: ir.Node, queue: list[tuple[ir.Value | None, ir.Value | None]]) -> str:
        """Compare two nodes and queue what they read; return how their structure differs."""
        ours, theirs = _read(a), _read(b)
        if kind_of(a) != kind_of(b) or len(ours) != len(theirs):
            return f"node {b.name!r} is {b.op_type}; recomputed, {a.name!r} is {a.op_type}"
        if has(a, Trait.SHAPED) and _shape_differs(a, b, ours, theirs):
            return f"node {b.name!r} ({b.op_type}) writes its result's shape in another way than recomputed"
        if has(a, Trait.COMMUTES) and len(ours) == 2 and _exchanged(ours, theirs):
            theirs = theirs[::-1]
        for x, y in zip(ours, theirs, strict=True):
            self._constant(a, x, y)
        queue += list(zip(ours, theirs, strict=True))[::-1]
        for name in sorted(set(a.attributes) | set(b.attributes)):
            reason = self._attribute(name, a, b)
            if reason:
                return reason
        return ""

    def _constant(self, node: ir.Node, x: ir.Value | None, y: ir.Value | None) -> None:
        """Hold a stored constant against the recomputed one, where both are stored."""
        want, have = (None if value is None else constant_tensor(_origin(value)) for value in (x, y))
        if want is None or have is None:
            return
        self.comparison.tensors += 1
        found = tensor_difference(want, have)
        if found is not None:
            where = module_path(node)
            text = f"{y.name if y else ''!r} of {node.op_type} at {where!r} {found.text}"
            self.comparison.problems.append(Difference(where, str(node.name), text, found.rounding))

    def _attribute(self, name: str, a: ir.Node, b: ir.Node) -> str:
        """Compare an attribute, which may be a body; return how the structure of a body differs."""
        x, y = a.attributes.get(name), b.attributes.get(name)
        bodies = [attr.type == ir.AttributeType.GRAPH for attr in (x, y) if attr is not None]
        if any(bodies):
            if x is None or y is None or not all(bodies):
                return f"node {b.name!r} ({b.op_type}) has other bodies than recomputed"
            ours, theirs = x.as_graph(), y.as_graph()
            reason = self.bind(list(ours.inputs), list(theirs.inputs))
            if not reason and len(ours.outputs) != len(theirs.outputs):
                reason = "the outputs are other values than recomputed"
            reason = reason or self.compare(list(ours.outputs), list(theirs.outputs))
            return f"in {name} of {b.name!r} ({b.op_type}): {reason}" if reason else ""
        text = attribute_difference(name, a, b)
        if text:
            where = module_path(a)
            text = f"attribute {name!r} of {b.op_type} at {where!r} {text}"
            self.comparison.problems.append(Difference(where, str(b.name), text))
        return ""


def _origin(value: ir.Value) -> ir.Value:
    """Return what a value is a copy of."""
    node = value.producer()
    while node is not None and kind_of(node) == ("", "Identity") and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _read(node: ir.Node) -> list[ir.Value | None]:
    """Return a node's inputs without those absent at the end."""
    inputs = [None if value is None or not value.name else value for value in node.inputs]
    while inputs and inputs[-1] is None:
        inputs.pop()
    return inputs


def _named(value: ir.Value | None) -> str:
    return "nothing" if value is None else f"value {value.name!r}"


def _shape_differs(a: ir.Node, b: ir.Node, ours: Sequence[ir.Value | None], theirs: Sequence[ir.Value | None]) -> bool:
    """True where two constant shapes, or what zero means in them, are written differently."""
    if attribute_difference("allowzero", a, b):
        return True
    if len(ours) < 2 or ours[1] is None or theirs[1] is None:
        return False
    want, have = constant_tensor(_origin(ours[1])), constant_tensor(_origin(theirs[1]))
    return want is not None and have is not None and tensor_difference(want, have) is not None


def _exchanged(ours: Sequence[ir.Value | None], theirs: Sequence[ir.Value | None]) -> bool:
    """True where two operands stand in the other order in the file, as far as a look at where they come from tells."""
    straight = all(_alike(x, y, _DEPTH) for x, y in zip(ours, theirs, strict=True))
    return not straight and all(_alike(x, y, _DEPTH) for x, y in zip(ours, theirs[::-1], strict=True))


def _alike(x: ir.Value | None, y: ir.Value | None, depth: int) -> bool:
    if x is None or y is None:
        return x is y
    x, y = _origin(x), _origin(y)
    want, have = constant_tensor(x), constant_tensor(y)
    if want is not None and have is not None:
        a, b = tensor64(want), tensor64(have)
        return a.shape == b.shape and bool(
            np.allclose(a.reshape(-1)[:_SAMPLE], b.reshape(-1)[:_SAMPLE], rtol=1e-3, atol=1e-12, equal_nan=True)
        )
    a_node, b_node = x.producer(), y.producer()
    if a_node is None or b_node is None:
        return a_node is b_node and want is have and x.name == y.name
    if kind_of(a_node) != kind_of(b_node) or x.index() != y.index():
        return False
    ours, theirs = _read(a_node), _read(b_node)
    if depth == 0 or len(ours) != len(theirs):
        return len(ours) == len(theirs)
    return all(_alike(p, q, depth - 1) for p, q in zip(ours, theirs, strict=True))
