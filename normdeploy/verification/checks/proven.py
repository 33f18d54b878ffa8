"""The file against the reference's graph by algebra, operator by operator: what holds for every input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from normdeploy.errors import GraphError
from normdeploy.graph.evaluate import OPERATOR_ERRORS
from normdeploy.verification.context import Context
from normdeploy.verification.derivation.checker import Report, Row, check_derivation
from normdeploy.verification.derivation.side import Shape, kind
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.samples.specs import InputSpec
from normdeploy.verification.sides.structure import plural

_NAMED = 6
"""Operators named in the answer."""


def check_proven(context: Context) -> list[Check]:
    """Confirm the file's operators; say which ones only samples cover."""
    if context.reference.graph is None or context.reduced:
        return []
    try:
        report = check_derivation(
            context.reference.graph,
            context.subject.model,
            context.hints.derivation,
            assignments(context.specs),
            outputs=context.subject.output_names,
        )
    except (GraphError, ArithmeticError, RecursionError, *OPERATOR_ERRORS) as error:
        # a graph whose operators contradict themselves proves nothing; the other checks judge it
        text = f"nothing is confirmed for every input: the graphs contradict ({error})"
        return [Check(Question.DERIVATION, Status.NOTE, text)]
    context.proven = report
    context.kept = context.hints.derivation.pruned(report.used).to_json()
    found = Counter(row.identity for row in report.rows if row.identity)
    rows = [{"node": row.name, "operator": kind(row.node), "reason": row.reason} for row in report.open]
    measured = {"operators": len(report.rows), "confirmed": dict(found), "by_samples_only": rows}
    measured["hints"] = context.hints.origin
    if report.confirmed:
        text = f"for every input: each of {plural(len(report.rows), 'operator')} is what the traced graph computes"
        return [Check(Question.DERIVATION, Status.PASS, f"{text}, its numbers rounded once", measured)]
    return [Check(Question.DERIVATION, Status.NOTE, _what_is_open(report), measured)]


def _what_is_open(report: Report) -> str:
    if not report.open:
        return "all operators are the source's, and not in its order: outputs are covered by samples only"
    named = ", ".join(_named(row) for row in report.open[:_NAMED])
    more = f" and {len(report.open) - _NAMED} more" if len(report.open) > _NAMED else ""
    confirmed = len(report.rows) - len(report.open)
    return (
        f"{confirmed} of {plural(len(report.rows), 'operator')} hold for every input; covered by samples only: "
        f"{named}{more} (first: {report.open[0].reason or 'no operator of the source fits'})"
    )


def _named(row: Row) -> str:
    return f"{kind(row.node)} {row.name!r}"


def assignments(specs: Sequence[InputSpec]) -> list[dict[str, Shape]]:
    """Return the inputs' shapes at the example's sizes and at others; dimensions of one name keep one size."""
    names = list(dict.fromkeys(name for spec in specs for name in spec.dynamic.values()))
    first = {spec.name: tuple(spec.shape) for spec in specs}
    found = [first]
    for number in (1, 2) if names else ():
        grown = {name: number * (2 + index) for index, name in enumerate(names)}
        found.append({spec.name: _resized(spec, grown, 1) for spec in specs})
    if names:
        found += [{spec.name: _resized(spec, {}, factor) for spec in specs} for factor in (2, 4)]
    return found


def _resized(spec: InputSpec, grown: Mapping[str, int], factor: int) -> Shape:
    sizes = enumerate(spec.shape)
    return tuple(n * factor + grown.get(spec.dynamic[axis], 0) if axis in spec.dynamic else n for axis, n in sizes)
