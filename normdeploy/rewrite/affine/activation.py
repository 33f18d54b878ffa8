"""Scalars that belong to the formula of an activation spelled out in arithmetic.

GELU is x/sqrt(2) -> Erf -> + 1 -> * x -> * 0.5; its tanh form (x + 0.044715 x^3, also with x factored out), hard-swish
(+ 3 -> Clip(0, 6) -> * x -> / 6) and quick GELU (* 1.702 -> Sigmoid -> * x) likewise hold scalar maps. They are no
normalizations, and runtimes fuse the whole pattern into one operator as long as all of it is there: taking the 0.5 out
into the next layer would cost three passes to save one. So they are left alone.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.traits import is_standard

_CORES = frozenset({"Erf", "Tanh", "Sigmoid", "Clip"})
_CLOSED_BY_SCALARS = frozenset({"Erf", "Tanh", "Clip"})
"""Cores behind which scalars belong to the formula: + 1 and * 0.5, or / 6; a Sigmoid's gate is the end of it."""
_GATED_BY_SCALED = frozenset({"Erf", "Tanh"})
"""Cores whose gate may be 0.5 x in place of x."""
_ARITHMETIC = frozenset({"Mul", "Add", "Sub", "Div"})
_DEEPEST = 6
"""Operators between x and the core: a x (1 + b x x) has five, one behind the other."""


def parts(graph: ir.Graph) -> set[ir.Node]:
    """Return the scalar-constant operators of ``graph`` that belong to a spelled-out activation."""
    found: set[ir.Node] = set()
    for node in graph:
        if is_standard(node, *_CORES):
            found |= _around(node)
    return found


def _around(core: ir.Node) -> set[ir.Node]:
    source = core.inputs[0]
    if source is None:
        return set()
    inner: set[ir.Node] = set()
    producer = source.producer()
    if producer is not None and _scalar(producer) and len(source.uses()) == 1:
        inner.add(producer)
        source = _variable(producer)
    roots = {source} if source is not None else set()
    factored: set[ir.Node] = set()
    # behind the core: + 1, gates by x (or a scaled x), a closing scalar
    outer: set[ir.Node] = set()
    value, gated = core.outputs[0], False
    for _ in range(4):
        users = [usage.node for usage in value.uses()]
        if len(users) != 1 or users[0].op_type not in _ARITHMETIC:
            break
        user = users[0]
        if _scalar(user):
            if core.op_type not in _CLOSED_BY_SCALARS:
                break
            outer.add(user)
        elif user.op_type == "Mul":
            gate = user.inputs[1] if user.inputs[0] is value else user.inputs[0]
            scaled = gate.producer() if gate is not None else None
            halved = scaled is not None and core.op_type in _GATED_BY_SCALED and _scalar(scaled)
            if scaled is not None and halved and _reaches(_variable(scaled), roots):
                outer.add(scaled)
            elif not _reaches(gate, roots):
                entry = _variable(scaled) if scaled is not None and halved else gate
                between = _between(source, entry, _DEEPEST) if core.op_type in _GATED_BY_SCALED else None
                if between is None:
                    break
                factored |= between | ({scaled} if scaled is not None and halved else set())
            gated = True
        else:
            break
        value = user.outputs[0]
    return inner | outer | factored | _polynomial(roots) if gated else set()


def _between(value: ir.Value | None, entry: ir.Value | None, depth: int) -> set[ir.Node] | None:
    """Return the scalar operators that compute ``value`` from ``entry`` and numbers alone; None where it is more."""
    if value is None or entry is None:
        return None
    if value is entry:
        return set()
    node = value.producer()
    if node is None or not is_standard(node, *_ARITHMETIC, "Pow") or not depth:
        return None
    found = {node} if _scalar(node) else set()
    for operand in node.inputs:
        if _is_scalar(operand):
            continue
        further = _between(operand, entry, depth - 1)
        if further is None:
            return None
        found |= further
    return found


def _reaches(value: ir.Value | None, roots: set[ir.Value]) -> bool:
    """Tell whether ``value`` is what the core reads: itself, or the x of x + 0.044715 x^3."""
    if value is None:
        return False
    if value in roots:
        return True
    for root in roots:
        producer = root.producer()
        if producer is not None and producer.op_type in ("Add", "Mul") and value in producer.inputs:
            return True
    return False


def _polynomial(roots: set[ir.Value]) -> set[ir.Node]:
    """Return the scalar factors inside x + 0.044715 x^3."""
    found: set[ir.Node] = set()
    for root in roots:
        producer = root.producer()
        if producer is None or producer.op_type != "Add":
            continue
        for operand in producer.inputs:
            inner = operand.producer() if operand is not None else None
            if inner is not None and inner.op_type == "Mul" and _scalar(inner):
                base = _variable(inner)
                maker = base.producer() if base is not None else None
                if maker is not None and maker.op_type in ("Pow", "Mul"):
                    found.add(inner)
    return found


def _scalar(node: ir.Node) -> bool:
    """Tell whether a node is arithmetic with a scalar constant."""
    if not is_standard(node, *_ARITHMETIC):
        return False
    return any(_is_scalar(value) for value in node.inputs)


def _is_scalar(value: ir.Value | None) -> bool:
    if value is None or value.shape is None or not value.shape.is_static():
        return False
    if any(size != 1 for size in value.shape.numpy()):
        return False
    return constant64(value) is not None


def _variable(node: ir.Node) -> ir.Value | None:
    """Return the operand of scalar arithmetic that is no constant."""
    rest = [value for value in node.inputs if not _is_scalar(value)]
    return rest[0] if len(rest) == 1 else None
