"""Which operators samples have to show at work: that nothing explains, and that may leave what they read as it is.

A bound that no sample reaches, a choice that always falls on one side and a comparison with one answer show nothing of
what they do otherwise. So it is with operators of the source that the file may have lost: a guard against NaN shows
nothing where there was none, nor a small number that keeps from 0 what a logarithm reads (:mod:`.zero_guards`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import Returned, nodes_in, returned, values_read
from normdeploy.verification.derivation.related.relation import Relation
from normdeploy.verification.derivation.related.report import Report, Row
from normdeploy.verification.derivation.side.beyond import NO_END, cuts, decides, is_one_sided
from normdeploy.verification.derivation.side.body_graphs import bodies_of
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.competing_constants import cuts_nothing, fills
from normdeploy.verification.derivation.side.kept_operands import kept_operand
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.zero_guards import meets_a_pole


class ShownBySamples:
    """What samples have to show at work of two graphs, and of bodies in them that are not confirmed.

    Args:
        relation: what is known of the graphs.
    """

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        self._inside: dict[Returned, tuple[int, tuple[list[str], list[str]]]] = {}
        self.bodies: set[Returned] = set()
        self.bodies_of_source: set[Returned] = set()

    def take(self, inner: Relation, left: int, shown: tuple[list[str], list[str]], within: ShownBySamples) -> None:
        """Take in what a body of the file was found to be beside one of the source, of which the most alike counts.

        Args:
            inner: what is known of them. left: how many of its operators and results nothing is known of.
            shown: of the bodies. within: of the bodies in them.
        """
        ours, name = (returned(side.graph) for side in (inner.source, inner.file))
        if name not in self._inside or left < self._inside[name][0]:
            self._inside[name] = left, shown
        self.bodies |= within.bodies | (set() if left else {name})
        self.bodies_of_source |= within.bodies_of_source | (set() if left else {ours})

    def of(self, left: Iterable[Row], rows: Iterable[Row]) -> tuple[list[str], list[str]]:
        """Return the names of the first results of such operators of the file, and of the source.

        Args:
            left: of the file's operators that nothing is known of. rows: of all.
        """
        nodes = [row.node for row in left]
        theirs = to_be_seen(self._relation.file, nodes)
        ours = lost(self._relation, {row.node for row in rows if row.identity})
        for body in (body for node in nodes for body in bodies_of(node).values()):
            _, (inner, gone) = self._inside.get(returned(body), (0, ([], [])))
            theirs, ours = [*theirs, *inner], [*ours, *gone]
        return theirs, ours


def nothing_known(source: ir.Model, file: ir.Model, why: str) -> Report:
    """Return that nothing is known of a file, all of whose operators samples have to show at work, and the source's.

    Args:
        source: the graph that it follows from. file: the graph to be judged. why: a clause.
    """
    outputs = [str(value.name) for value in file.graph.outputs]
    report = Report([Row(node, reason=why) for node in file.graph if node.op_type != "Constant"], outputs=outputs)
    report.to_be_seen, report.lost = (
        [str(node.outputs[0].name) for node in nodes_in(model.graph) if _acts_at_times(node)]
        for model in (file, source)
    )
    return report


def to_be_seen(side: Side, open_nodes: Iterable[ir.Node]) -> list[str]:
    """Return the names of the first results of such operators.

    Args:
        side: the file. open_nodes: its operators that nothing is known of.
    """
    found: dict[str, None] = {}
    for node in open_nodes:
        if _may_do_nothing(side, node) and not _keeps_all(side, node):
            found[str(node.outputs[0].name)] = None
        for one in _deciding(side, node):
            found[str(one.outputs[0].name)] = None
    return list(found)


def lost(relation: Relation, explained: Collection[ir.Node]) -> list[str]:
    """Return the names of the first results of such operators of the source that the file is not known to have.

    What stands in front of a value that the file is proven to hold is in that proof.

    Args:
        relation: what is known. explained: the file's operators of which something is known.
    """
    source, found = relation.source, dict[str, None]()
    queue = list(source.graph.outputs)
    seen = set(queue)
    for value in queue:
        node, claims = value.producer(), [*relation.express(value), *relation.express(value, rows=True)]
        lacks = [claim for claim in claims if not claim.assumed and (claim.guard or claim.shift.any())]
        guards = bool(lacks) and node is not None and _guards(source, node)
        held = [claim for claim in claims if not claim.guard and not (guards and claim.shift.any())]
        if node is None or source.is_sized(value) or not all(claim.assumed for claim in held):
            continue
        makers = [claim.value.producer() for claim in held]
        if not any(maker in explained for maker in makers) and (guards or _may_do_nothing(source, node)):
            found.update({} if _keeps_all(source, node) else {str(node.outputs[0].name): None})
        found.update({str(one.outputs[0].name): None for one in _deciding(source, node)})
        read = [v for v in values_read(node) if v not in seen]
        queue += read
        seen.update(read)
    return list(found)


def _guards(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator adds one number to what may have to be kept from 0 (:mod:`.zero_guards`)."""
    added = [side.constant(value) for value in inputs_of(node)] if kind(node) in ("Add", "Sub") else []
    one = any(array is not None and array.size == 1 and array.any() for array in added)
    return one and meets_a_pole(side, node.outputs[0])


def _keeps_all(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator does the same at any size: a choice by a constant, a Slice of the whole.

    A choice by a size that nothing varies is one, and so is a Max by -10000 behind a Relu. A Slice is where it left
    nothing out at any assignment, and no bound was always within a size or always beyond it.
    """
    if kind(node) == "Where":
        return kept_operand(side, node) is not None
    if cuts_nothing(node):
        return True
    if kind(node) == "If":
        return side.fixed(node.inputs[0]) is not None
    if kind(node) != "Slice":
        return False
    read, starts, ends, _, steps = (inputs_of(node) + [None] * 5)[:5]
    step = None if steps is None else side.constant(steps)
    if steps is not None and (step is None or bool((step != 1).any())):
        return False
    first, last = side.constant(starts), side.constant(ends)
    if first is not None and last is not None and not first.any() and bool((last >= NO_END).all()):
        return True
    shapes = () if read is None else side.shapes(read)
    return bool(shapes) and shapes == side.shapes(node.outputs[0]) and not cuts(side, node)


def _may_do_nothing(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator may be there for what it does with other numbers than those that were seen."""
    if has(node, Trait.CONVERTS):
        types = [side.type_of(value) for value in (node.inputs[0], node.outputs[0]) if value is not None]
        known = [kept for kept in types if kept is not None and kept.is_integer()]
        return len(known) == 2 and known[1].bitwidth < known[0].bitwidth
    return _acts_at_times(node)


def _acts_at_times(node: ir.Node) -> bool:
    return _is_parted(node) or has_parts(node) or bool(fills(node))


def has_parts(node: ir.Node) -> bool:
    """Tell whether an operator holds what runs on some inputs alone."""
    return kind(node) in ("If", "Loop")


def _is_parted(node: ir.Node) -> bool:
    """Tell whether an operator is one formula on some numbers and another, or nothing, on others."""
    cuts = kind(node) in _PARTED and not _is_alone(node)
    return cuts or has(node, Trait.COMPARES) or has(node, Trait.DECIDES) or kind(node) in SATURATING


def _is_alone(node: ir.Node) -> bool:
    """Tell whether an operator returns the one operand it has, whatever that is: torch's exporter writes Max(x)."""
    return kind(node) in ("Max", "Min") and len(node.inputs) == 1


def _deciding(side: Side, node: ir.Node) -> Iterator[ir.Node]:
    """Return the operators that decide what an operator reads, from sizes alone and alike at all that were tried."""
    queue = [value for value in inputs_of(node) if value is not None and side.follows(value)]
    seen = set(queue)
    for value in queue:
        made = value.producer()
        if made is None or not decides(side, value):
            continue
        read = [v for v in inputs_of(made) if v is not None]
        bounds = kind(made) in _BOUNDS and not _is_alone(made)
        if has(made, Trait.COMPARES) or bounds or (side.follows(value) and is_one_sided(side, made)):
            yield made
        queue += [v for v in read if v not in seen]
        seen.update(read)


SATURATING = frozenset({
    "Sigmoid", "HardSigmoid", "Tanh", "Erf", "Softsign", "Exp", "Softplus", "Elu", "Celu", "Selu", "Gelu", "Swish",
    "HardSwish", "Mish",
})  # fmt: skip
"""Operators that return one number, or what they read, far from 0: a Sigmoid of x - 100 adds nothing to a sum."""

_BOUNDS = frozenset({"Min", "Max", "Clip"})
_PARTED = _BOUNDS | frozenset({
    "Where", "Relu", "LeakyRelu", "PRelu", "ThresholdedRelu", "Shrink", "Abs", "Mod", "Trilu", "IsNaN", "IsInf",
    "Slice",
})  # fmt: skip
"""Operators that are one formula on some numbers and another, or nothing, on others."""
