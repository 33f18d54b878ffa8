"""Why nothing in front of a map takes it: what it reads is given, is one for several places, or its scale cancels."""

from __future__ import annotations

from collections import deque
from string import ascii_letters

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.graph.einsum_letters import letters_of
from normdeploy.graph.operator_inputs import required
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.rewrite.affine.affine_node import affine_map, is_affine
from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.affine.operator_names import describe, describe_end
from normdeploy.rewrite.gauge.conflicts.chain import Limit
from normdeploy.rewrite.gauge.equations.expression_rows import Rows
from normdeploy.rewrite.gauge.equations.system import Conflict
from normdeploy.rewrite.gauge.gauge import Gauge, common
from normdeploy.rewrite.gauge.rules import rule_of
from normdeploy.rewrite.gauge.rules.einsum import averages_of
from normdeploy.rewrite.gauge.ties import Tie, Ties


def given_there(node: ir.Node, conflict: Conflict, ties: Ties) -> list[Limit]:
    """Return who makes the part of a map's input that contradicts, where others make the rest (Concat, Pad)."""
    value, result = node.inputs[0], ties.of[node.outputs[0]]
    gauge = None if value is None else ties.of.get(value)
    if gauge is None or value is None or conflict.equation.why(conflict.row) != Tie(node):
        return []
    scale = conflict.system.multiplicative
    unknowns = gauge.scale_of if scale else gauge.shift_of
    cells = np.broadcast_to(unknowns, np.broadcast_shapes(unknowns.shape, result.cells)).reshape(-1)
    if unknowns.all() or not unknowns.any() or conflict.row >= len(cells) or cells[conflict.row]:
        return []
    seen, queue = {value}, deque([value])
    while queue:
        producer = queue.popleft().producer()
        clause = None if producer is None else (ties.unscaled if scale else ties.unshifted).get(producer)
        if producer is not None and clause is not None:
            return [Limit(producer, f"{describe(producer)} {clause}")]
        for inner in () if producer is None else producer.inputs:
            if inner is None or inner in seen or inner not in ties.of:
                continue
            seen.add(inner)
            found = given_by(inner, ties, scale=scale)
            if found:
                return found
            part = ties.of[inner].scale_of if scale else ties.of[inner].shift_of
            if not part.all():
                queue.append(inner)
    return []


def given_by(value: ir.Value | None, ties: Ties, *, scale: bool) -> list[Limit]:
    """Return who makes a value, or the parts of it, that nothing in front of it can change; none where it can be."""
    found, seen = list[Limit](), set[ir.Value]()
    waiting = deque[tuple[ir.Value | None, tuple[ir.Node, ...]]]([(value, ())])
    while waiting:
        value, way = waiting.popleft()
        if value is None or value in seen or not _is_given(value, ties, scale=scale) or len(way) > _FAR:
            continue
        seen.add(value)
        producer = value.producer()
        if producer is None or producer.graph is not ties.graph:
            told = f"the value '{value.name}' comes from outside this control-flow body"
            if value.is_graph_input():
                told = f"{describe_end(value, value.graph or ties.graph, 'input')} is given"
            found.append(Limit(next(iter(ties.graph), None), told, way, given=True))
            continue
        inner = _passed_on(producer, ties) or (_first_added(producer, ties) if scale else _averaged(producer))
        parts = producer.inputs if has(producer, Trait.JOINS) and producer not in ties.stiff else [inner]
        given = [part for part in parts if part is not None and _is_given(part, ties, scale=scale)]
        if given:
            waiting += [(part, (*way, producer)) for part in given]
            continue
        clause = ties.stiff.get(producer, "has no weights that could change what it writes")
        clause = (ties.unscaled if scale else ties.unshifted).get(producer, clause)
        found.append(Limit(producer, f"{describe(producer)} {clause}", way))
    return found


_FAR = 64
"""Operators between a map and who makes what it reads, beyond which nobody is named."""


def _is_given(value: ir.Value, ties: Ties, *, scale: bool) -> bool:
    """Tell whether a computed value has no scale, or no shift, at all."""
    gauge = None if constant_tensor(value) is not None else ties.of.get(value)
    return gauge is not None and not (gauge.scale_of if scale else gauge.shift_of).any()


def narrow(node: ir.Node, ties: Ties, *, scale: bool) -> list[Limit]:
    """Return who in front of a map writes one scale (or shift) for several places where the map varies."""
    value, mapping = node.inputs[0], affine_map(node)
    array = mapping.scale if scale else mapping.shift
    gauge = None if value is None else ties.of.get(value)
    if value is None or gauge is None:
        return []
    told_apart = all(gauge.cells[axis] > 1 or size == 1 for axis, size in enumerate(array.shape, -array.ndim))
    apart = len(np.unique(gauge.scale_of)) if scale else _distinct(gauge)  # a sum has shifts of its own
    if told_apart and apart == gauge.scale_of.size:
        return []
    varying = {axis for axis, size in enumerate(array.shape, gauge.rank - array.ndim) if size > 1}
    return _one_for_several(value, varying, ties, scale=scale)


def _one_for_several(value: ir.Value, axes: set[int] | None, ties: Ties, *, scale: bool) -> list[Limit]:
    """Return who lets a value have one scale (or shift) along axes; along any where they are not known."""
    for _ in range(64):
        given, producer = given_by(value, ties, scale=scale), value.producer()
        if given or producer is None or producer.graph is not ties.graph:
            return given
        inner = None if has(producer, Trait.REPEATS) else _passed_on(producer, ties)
        if inner is None and scale:
            inner = producer.inputs[0] if is_affine(producer) else _first_added(producer, ties)
        if inner is None or inner not in ties.of:
            told = _of_factors(ties.parts.get(producer, producer), axes, ties) if scale else []
            return told or [_clause(producer, ties, scale=scale)]
        before, gauge = ties.of[inner], ties.of[value]
        merged = _distinct(before) != _distinct(gauge)
        merged |= before.scale_of.size != gauge.scale_of.size and not has(producer, Trait.KEEPS_ORDER)
        if merged and (ties.repeats(inner) or not has(producer, Trait.BROADCASTS)):
            return [_clause(producer, ties, scale=scale)]
        if is_standard(producer, "Transpose") and axes is not None:
            order = producer.attributes.get_ints("perm", None) or range(gauge.rank)[::-1]
            axes = {order[axis] for axis in axes}
        elif not has(producer, Trait.POINTWISE) or before.rank != gauge.rank:
            axes = None
        value = inner
    return []


def _of_factors(node: ir.Node, axes: set[int] | None, ties: Ties) -> list[Limit]:
    """Return who lets the factors of a product have one scale along axes of the result: its rows are those of one."""
    letters = _letters(node)
    if letters is None:
        return []
    found: list[Limit] = []
    for value, term in zip(node.inputs, letters[0], strict=True):
        shared = {term.index(letter) for at, letter in enumerate(letters[1]) if letter in term and _is_in(at, axes)}
        if value is not None and value in ties.of and shared:
            found += _one_for_several(value, shared, ties, scale=True)
    return list(dict.fromkeys(found))


def _letters(node: ir.Node) -> tuple[tuple[str, ...], str] | None:
    """Return the letters of a product's axes; None for what is no product, or has operands of unknown rank."""
    sizes = [None if value is None else dims_of(value) for value in (*node.inputs, *node.outputs[:1])]
    ranks = [len(dims) for dims in sizes if dims is not None]
    if len(ranks) < len(sizes):
        return None
    if is_standard(node, "Mul", "Div"):
        written = ascii_letters[: ranks[-1]]
        return tuple(written[len(written) - rank :] for rank in ranks[:-1]), written
    if is_standard(node, "Gemm"):
        turned = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
        return (
            "ba" if turned[0] else "ab",
            "cb" if turned[1] else "bc",
            *("ac"[2 - rank :] for rank in ranks[2:-1]),
        ), "ac"
    return letters_of(node, ranks[:-1]) if is_standard(node, "MatMul", "Einsum") else None


def _averaged(node: ir.Node) -> ir.Value | None:
    """Return the operand of which a product passes the shift on, since it averages it."""
    letters = _letters(node) if is_standard(node, "MatMul", "Einsum") else None
    averages = None if letters is None else averages_of(node, *letters)
    return None if averages is None else node.inputs[averages.data]


def _is_in(axis: int, axes: set[int] | None) -> bool:
    return axes is None or axis in axes


def _clause(node: ir.Node, ties: Ties, *, scale: bool) -> Limit:
    """Say what an operator asks of what it writes; where it asks nothing, that it is one for several places."""
    system = ties.scales if scale else ties.shifts
    whys = [held.stated.whys[at] for held in system.held for at in sorted(held.stated.places(held.origin))]
    clauses = [why.clause for why in whys if isinstance(why, Tie) and why.node is node and why.clause]
    what = f"has one {'scale' if scale else 'shift'} for several places where it varies"
    if (rule := rule_of(node)) is not None and rule.absorbs:
        what = "has no weights along an axis where it varies"
    whole = ties.parts.get(node, node)
    return Limit(whole, f"{describe(whole)} {clauses[-1] if clauses else what}")


def cancelled(node: ir.Node, ties: Ties) -> list[Limit]:
    """Return that a quotient has no scale because both its operands have the same, as x / |x| has none."""
    if node.op_type != "Div":
        return []
    left, right = (ties.of.get(required(node, index)) for index in (0, 1))
    if left is None or right is None or not left.scale_of.any() or not right.scale_of.any():
        return []
    cells = common(left, right)
    quotient = Rows.of((left.spread(cells).scale_of, 1.0), (right.spread(cells).scale_of, -1.0), constant=1.0)
    if ties.scales.reduce(quotient).coefficients.any():
        return []
    return [Limit(node, f"{describe(node)} divides by what has the same scale, and every scale cancels")]


def _distinct(gauge: Gauge) -> int:
    return len(set(zip(gauge.scale_of.reshape(-1).tolist(), gauge.shift_of.reshape(-1).tolist(), strict=True)))


def _passed_on(node: ir.Node, ties: Ties) -> ir.Value | None:
    """Return the operand of which an operator passes the gauge on; None for one that makes a gauge of its own."""
    rule = rule_of(node)
    operands = [value for value in dict.fromkeys(node.inputs) if value is not None and value in ties.of]
    passes = Trait.MOVES | Trait.HOMOGENEOUS | Trait.CONVERTS | Trait.EXACT
    if rule is None or rule.absorbs or len(operands) != 1 or not has(node, passes):
        return None
    return operands[0]


def _first_added(node: ir.Node, ties: Ties) -> ir.Value | None:
    """Return the operand that a sum, or a choice, has its scale of: the first of those that are computed."""
    if node in ties.stiff or rule_of(node) is None or not has(node, Trait.BROADCASTS) or has(node, Trait.WEIGHS):
        return None
    computed = (value for value in node.inputs if value is not None and constant_tensor(value) is None)
    return next((value for value in computed if value in ties.of), None)
