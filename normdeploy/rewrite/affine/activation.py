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
    """Return the scalar operators of the formula around a core; none where no x is a gate behind it."""
    found: set[ir.Node] = set()
    value, gated = core.outputs[0], False
    for _ in range(4):  # behind the core: + 1, gates by x (or a scaled x), a closing scalar
        users = [usage.node for usage in value.uses()]
        if len(users) != 1 or users[0].op_type not in _ARITHMETIC:
            break
        user = users[0]
        if _scalar(user) and core.op_type in _CLOSED_BY_SCALARS:
            found.add(user)
        elif user.op_type == "Mul" and not _scalar(user):
            gate = user.inputs[1] if user.inputs[0] is value else user.inputs[0]
            inside = _inside(core, gate)
            if inside is None:
                break
            found |= inside
            gated = True
        else:
            break
        value = user.outputs[0]
    return found if gated else set()


def _inside(core: ir.Node, gate: ir.Value | None) -> set[ir.Node] | None:
    """Return the scalar operators between a gate and the core, and the one that scales the gate; None for any other."""
    between = _between(core.inputs[0], gate, _DEEPEST)
    scaled = None if gate is None else gate.producer()
    if between is not None or scaled is None or core.op_type not in _GATED_BY_SCALED or not _scalar(scaled):
        return between
    between = _between(core.inputs[0], _variable(scaled), _DEEPEST)
    return None if between is None else between | {scaled}


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
