"""The gauges of a graph: every operator states its ties once, in topological order.

Pinned to the identity: graph inputs and outputs, what an operator without a rule reads or writes, and what the bodies
of control flow capture. Shape and Size look at no value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from types import MappingProxyType

import onnx_ir as ir

from normdeploy.graph import FLOATS, constant_tensor
from normdeploy.graph.traits import TRAITS, Trait, has, kind_of
from normdeploy.graph.walk import bodies_of
from normdeploy.rewrite.affine.operator_names import describe_end
from normdeploy.rewrite.affine.replacement import reads_shape_only
from normdeploy.rewrite.gauge.gauge import fixed
from normdeploy.rewrite.gauge.reached import Reached
from normdeploy.rewrite.gauge.rules import Rule, rule_of
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed


def build(
    graph: ir.Graph,
    opaque: Collection[ir.Node] = (),
    unchanged: Collection[ir.Node] = (),
    pads: Mapping[ir.Node, str] = MappingProxyType({}),
    among: Reached | None = None,
) -> Ties:
    """Return the ties of a graph.

    Args:
        graph: its nodes in topological order.
        opaque: operators to treat as if they had no rule, since they cannot be checked.
        unchanged: maps that stay as they are.
        pads: see :class:`.ties.Ties`.
        among: the operators that are asked, and the values that they may change. None for all.
    """
    ties = Ties(graph, pads=pads, nodes=[node for node in graph if among is None or node in among.nodes])
    for value in graph.inputs:
        if value.dtype in FLOATS and value.shape is not None:
            ties.of[value] = fixed(value.shape.rank())
    for node in ties.nodes:
        if node in ties.parts:
            continue
        for read in node.inputs:
            if read is not None and read not in ties.of and _is_given(read):
                ties.of[read] = fixed(len(read.shape or ()))
        if node in opaque:
            ties.refuse(node, "could not be checked on random inputs")
        if node in unchanged:
            ties.refuse(node, "removes a large offset in a step of its own, and stays as it was written")
        rule = (
            None
            if node in opaque or node in unchanged or constant_tensor(node.outputs[0] if node.outputs else None)
            else rule_of(node)
        )
        if rule is None and node not in ties.stiff:
            if bodies_of(node):
                ties.refuse(node, "computes in bodies of its own, whose inputs and outputs stay what they are")
            elif _might_pass(node):
                ties.refuse(node, "has no rule by which a scale or a shift passes it")
        before = len(ties.of)
        if rule is None or not _followed(node, rule, ties):
            _pin(node, ties)
        else:
            _pin_options(node, ties)
        for value in list(islice(reversed(ties.of), len(ties.of) - before)):
            if among is not None and value not in among.values:  # not all who read it are asked
                ties.of[value] = fixed(ties.of[value].rank)
        for value in node.outputs:
            if value in ties.of or value.dtype not in FLOATS or value.shape is None:
                continue
            if not any(usage.node in ties.parts for usage in value.uses()):
                ties.of[value] = fixed(value.shape.rank())
    for value in list(ties.of):
        if value.is_graph_output():
            ties.pinned(ties.of[value], Tie(None, "must stay what it is", describe_end(value, graph, "output")))
        for usage in value.uses():
            if usage.node.graph is not graph:
                ties.pinned(ties.of[value], Tie(usage.node, "reads it inside a control-flow body"))
                break
    ties.scales.settle()
    ties.shifts.settle()
    return ties


def _followed(node: ir.Node, rule: Rule, ties: Ties) -> bool:
    """Let a rule state its ties; tell whether it could follow the operator."""
    try:
        result = rule.tie(node, ties)
    except Unfollowed as error:
        if error.clause:
            ties.refuse(node, error.clause)
        return False
    if result is not None:
        ties.of[node.outputs[0]] = result
    return True


def _might_pass(node: ir.Node) -> bool:
    """Tell whether nothing is known of an operator, or what it does may be done to scaled or shifted values as well."""
    mixes = has(node, Trait.MONOTONE) and not has(node, Trait.POINTWISE | Trait.DECIDES)
    return kind_of(node) not in TRAITS or mixes or has(node, Trait.MOVES | Trait.JOINS | Trait.HOMOGENEOUS | Trait.SUMS)


def _is_given(value: ir.Value) -> bool:
    """Tell whether a value that no operator asked so far writes is one of floats that is computed elsewhere."""
    return value.dtype in FLOATS and value.shape is not None and constant_tensor(value) is None


def _pin_options(node: ir.Node, ties: Ties) -> None:
    """Pin what a rule did not ask for: a computed value to pad with, computed scales of a Resize."""
    for index, value in enumerate(node.inputs):
        if value is not None and value in ties.of and (node, index) not in ties.asked:
            ties.pinned(ties.of[value], Tie(node, "reads it as an option"))


def _pin(node: ir.Node, ties: Ties) -> None:
    """Pin what an operator without a rule reads."""
    if reads_shape_only(node):
        return
    for index in range(-2, len(node.inputs)):
        ties.ports.pop((node, index), None)
        ties.as_one_cell.pop((node, index), None)
    for value in dict.fromkeys(node.inputs):
        if value is not None and value in ties.of:
            ties.pinned(ties.of[value], Tie(node, ties.stiff.get(node, "sees every scale and every shift")))
