"""The file against the reference's graph by algebra, operator by operator: what holds for every input."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice, zip_longest

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Shape
from normdeploy.errors import GraphError
from normdeploy.graph.exact import FLOATS, constant_tensor
from normdeploy.graph.operator_evaluation import OPERATOR_ERRORS
from normdeploy.graph.walk import values_read
from normdeploy.verification.bounds.criteria import rms
from normdeploy.verification.check_context import Context
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.related.report import Report, Row
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import kind
from normdeploy.verification.derivation.side.plainly import written_plainly
from normdeploy.verification.derivation.side.value_facts import copied
from normdeploy.verification.derivation.to_be_seen import nothing_known
from normdeploy.verification.hints import PLAIN, Hints, unchanged
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.record.measured import Confirmed, OpenOperator
from normdeploy.verification.samples.families import make_families
from normdeploy.verification.samples.ranges import InputRange
from normdeploy.verification.sides.exact_agreement import plural, shortened
from normdeploy.verification.sides.flat_values import run_evaluator

_NAMED = 6
"""Operators named in the answer."""


def check_proven(context: Context) -> list[Check]:
    """Confirm the file's operators; say which ones hold wrong numbers, and which ones only samples cover."""
    graph = context.reference.graph
    if graph is None or context.reduced:
        return []
    try:
        report, hints = _checked(context, graph, context.subject.model)
        operators = len(report.rows)
        plainly = None if report.confirmed else written_plainly(graph, context.subject.model)
        if plainly is not None:
            again, its = _checked(context, plainly.source, plainly.file)
            again.sizes = report.sizes  # of the file's own values
            explains_more = not plainly.between and len(again.open) < len(report.open)  # of the file's own operators
            if again.confirmed or again.nearly or explains_more or _wrong_rows(context, again, its):
                inside = sum(row.result in plainly.between for row in again.rows)
                report, hints, operators = again, its, len(again.rows) - inside + plainly.gone
    except (GraphError, RecursionError, *OPERATOR_ERRORS) as error:
        # a graph whose operators contradict themselves, or that is too deep, proves nothing; the other checks judge it
        told = f"the graphs cannot be followed to their end ({type(error).__name__}: {error})"
        context.proven = nothing_known(graph, context.subject.model, told)
        return [Check(Question.DERIVATION, Status.NOTE, f"nothing is confirmed for every input: {told}")]
    context.proven = report
    context.kept = hints.derivation.pruned(report.used).to_json()
    counts = Counter(row.identity for row in report.rows if row.identity)
    rows = [OpenOperator(row.name, kind(row.node), row.reason) for row in report.open]
    measured = Confirmed(operators, dict(counts), rows, hints.origin)
    if report.confirmed:
        text = f"for every input: each of {plural(operators, 'operator')} is what the traced graph computes"
        return [Check(Question.DERIVATION, Status.PASS, f"{text}, its numbers rounded once", measured)]
    wrong = _wrong_rows(context, report, hints)
    if wrong:
        return [Check(Question.DERIVATION, Status.FAIL, shortened([_wrong(row) for row in wrong]), measured)]
    return [Check(Question.DERIVATION, Status.NOTE, _what_is_open(report), measured)]


def _checked(context: Context, source: ir.Model, file: ir.Model) -> tuple[Report, Hints]:
    """Return what is known of a file by the hints that say most of it, and these."""
    sizes, outputs = assignments(context.specs), context.subject.output_names
    found: list[tuple[Report, Hints]] = []
    ours = Side(source, sizes)
    theirs = Side(file, ours.followed, beside=ours)  # what is known of a graph by itself hangs on no hints
    for hints in _tried(context.hints, source):
        report = check_derivation(ours, theirs, hints.derivation, sizes, outputs=outputs)
        if hints.anew is not None:  # what was read may be wrong itself: it confirms, and contradicts nothing
            report.follows = False
        elif found:
            sure = [other for other, its in found if its.anew is None]
            report.confirmed_by_others = {row.result for other in sure for row in other.rows if row.identity}
        found.append((report, hints))
        if report.confirmed or (context.own and _is_one_wrong(report)):
            break
    return min(found, key=lambda pair: _nearness(pair[0]))


def _is_one_wrong(report: Report) -> bool:
    """Tell whether all of a file is confirmed but for one operator, which surely holds a number that is wrong.

    By hints of the rewriting that wrote the file nothing else can be meant then. Of two wrong numbers one might undo
    the other.
    """
    held = [row for row in report.open if row.wrong is not None]
    return len(report.contradicted) == 1 and all(row.is_wrong and not row.is_close for row in held)


def _tried(hints: Hints, source: ir.Model) -> Iterator[Hints]:
    """Return the hints; what a rewriting made anew says; and that nothing was rewritten, as in another tool's file."""
    yield hints
    if hints.anew is not None:
        yield Hints(hints.anew)
    yield Hints(unchanged(source), PLAIN)


def _nearness(report: Report) -> tuple[bool, bool, int]:
    return not report.confirmed, not report.contradicted, len(report.open)


def _wrong_rows(context: Context, report: Report, hints: Hints) -> list[Row]:
    """Return the operators of the file that hold numbers which rounding does not explain, and that nothing undoes."""
    rows = report.contradicted
    beyond = [row for row in rows if not row.is_close]
    certain = [row for row in beyond if row.wrong is not None and row.wrong.certain]
    if certain:
        return certain
    if context.own:
        return rows if beyond or hints.origin != PLAIN else _not_as_written(context, rows)
    # a scale that one operator takes up and another gives back leaves two numbers that are not as expected; one that
    # holds no number (a Concat in another order, of all of which the largest is taken) may be undone by what reads it
    sure = _read_alike(beyond) and all(map(_holds_numbers, beyond))
    return beyond if sure or (beyond and not _undone(context)) else []


def _holds_numbers(row: Row) -> bool:
    """Tell whether an operator, or one of those that are one with it, stores floats: in operands or attributes."""
    nodes = (row.node, *(row.wrong.parts if row.wrong else ()))
    stored = [constant_tensor(copied(value)) for node in nodes for value in values_read(node)]
    held = any(tensor is not None and tensor.dtype in FLOATS for tensor in stored)
    return held or any(
        attribute.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS, ir.AttributeType.TENSOR)
        for node in nodes
        for attribute in node.attributes.values()
    )


def _read_alike(rows: list[Row]) -> bool:
    """Tell whether operators read one stored constant, as layers that share weights do, so that one number is wrong."""
    read = []
    for row in rows:
        nodes = (row.node, *(row.wrong.parts if row.wrong else ()))
        values = {copied(value) for node in nodes for value in node.inputs if value is not None}
        read.append({value for value in values if constant_tensor(value) is not None})
    return len(rows) == 1 or bool(rows and set.intersection(*read))


def _not_as_written(context: Context, rows: list[Row]) -> list[Row]:
    """Leave out last digits that the rewriting wrote: these hints know not what they were rounded of."""
    written = {} if context.derived is None else {n.outputs[0].name: n for n in context.derived.graph if n.outputs}

    def is_written(node: ir.Node) -> bool:
        other = written.get(node.outputs[0].name)
        return other is not None and _stores_as(node, other)

    return [row for row in rows if not all(map(is_written, {row.node, *(row.wrong.parts if row.wrong else ())}))]


def _stores_as(one: ir.Node, other: ir.Node) -> bool:
    """Tell whether two operators hold the same numbers, bit by bit."""
    pairs = zip_longest(*([constant_tensor(value) for value in node.inputs] for node in (one, other)))
    return one.op_identifier() == other.op_identifier() and all(
        a is b is None or (a is not None and b is not None and a.dtype == b.dtype and a.tobytes() == b.tobytes())
        for a, b in pairs
    )


def _undone(context: Context) -> bool:
    """Tell whether the file computes all the same, on two families in float64."""
    for family in islice(make_families(context.specs, seed=context.seed), 2):
        try:
            want = list(run_evaluator(context.noisy.evaluator, family.feeds).values()) if context.noisy else []
            have = context.subject.logic(family.feeds)
        except GraphError:
            return False
        alike = [
            a.shape == b.shape and np.allclose(a, b, 1e-5, 1e-5 * rms(a)) for a, b in zip(want, have, strict=False)
        ]
        if not alike or not all(alike):
            return False
    return True


def _wrong(row: Row) -> str:
    return f"{_named(row)} at {row.where!r}: {row.reason}" if row.where else f"{_named(row)}: {row.reason}"


def _what_is_open(report: Report) -> str:
    if not report.open:
        return "all operators are the source's, and not in its order: outputs are covered by samples only"
    named = ", ".join(_named(row) for row in report.open[:_NAMED])
    more = f" and {len(report.open) - _NAMED} more" if len(report.open) > _NAMED else ""
    confirmed = len(report.rows) - len(report.open)
    close = bool(report.contradicted) and all(row.is_close for row in report.contradicted)
    reason = report.open[0].reason or "no operator of the source fits"
    return (
        f"{confirmed} of {plural(len(report.rows), 'operator')} hold for every input; covered by samples only: "
        f"{named}{more} (first: {reason}{', right within another rounding' if close else ''})"
    )


def _named(row: Row) -> str:
    return f"{kind(row.node)} {row.name!r}"


def assignments(specs: Sequence[InputRange]) -> list[dict[str, Shape]]:
    """Return the inputs' shapes at the example's sizes and at others; dimensions of one name keep one size.

    All dimensions grow by different amounts, once, and all by one factor, for networks that take no other sizes. What
    they grow by has no divisor in common with the example's size: n and 3 (n / 3), in integers, are told apart.
    """
    names = list(dict.fromkeys(name for spec in specs for name in spec.dynamic.values()))
    found = [{spec.name: tuple(spec.shape) for spec in specs}]
    if names:
        grown: dict[str, int] = {}
        for index, name in enumerate(names):
            size = math.prod(
                spec.shape[axis] or 1 for spec in specs for axis, own in spec.dynamic.items() if own == name
            )
            others = count(2 * index + 3)
            grown[name] = next(n for n in others if n not in grown.values() and math.gcd(n, size) == 1)
        found.append({spec.name: _resized(spec, grown, 1) for spec in specs})
        found += [{spec.name: _resized(spec, {}, factor) for spec in specs} for factor in (2, 3)]
    return found


def _resized(spec: InputRange, grown: Mapping[str, int], factor: int) -> Shape:
    sizes = enumerate(spec.shape)
    return tuple(n * factor + grown.get(spec.dynamic[axis], 0) if axis in spec.dynamic else n for axis, n in sizes)
