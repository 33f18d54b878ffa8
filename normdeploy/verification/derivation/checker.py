"""Go through the file operator by operator and confirm of each that it is what the source computes, for all inputs.

Translation validation (Pnueli, Siegel and Singerman 1998): the two graphs are compared, not the way from one to the
other. A claim w = s v + t relates a value of the source with one of the file; graph inputs are claimed to be
themselves, and each operator's claim follows from those of what it reads by an identity of that operator:

=====================  ==========================================================================================
same operator          same attributes, constants and operands
linear                 W' = W s_x / s_y, b' = (b + W t_x - t_y) / s_y                            (:mod:`.linear_laws`)
moved                  run on identifiers, the same elements at the same places                  (:mod:`.element_moves`)
carried                f(s x) = s f(x), sums of one scale, averages, maxima                      (:mod:`.carrying_laws`)
analytic               norms spelled out: equal at random points, by unrounded constants   (:mod:`.analytic`)
over rows              pointwise operators on the same memory in another shape                 (:mod:`.over_rows`)
maps, norms            their constants absorb; a norm removes what scales and shifts its operand (:mod:`.absorbing`)
tables                 the whole constant absorbs, where the same part of it is read (:mod:`.tables`)
quantizers             brought to one form: QONNX's, arithmetic, QuantizeLinear (:mod:`.uniform`)
integers               sums of the same integers; the same level on every sum of the range (:mod:`.on_integers`)
=====================  ==========================================================================================

A derivation (:mod:`normdeploy.graph.derivation`) says what a value may stand for and by which gauge. Nothing in it is
believed: a wrong hint is an identity that does not hold. Without one, operators nearby are tried with s = 1, t = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Shape
from normdeploy.errors import GraphError
from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.graph.operator_evaluation import OPERATOR_ERRORS
from normdeploy.verification.derivation.gauges import Claim
from normdeploy.verification.derivation.integers.on_integers import OnIntegers
from normdeploy.verification.derivation.integers.uniform import confirm_quantizer
from normdeploy.verification.derivation.laws.absorbing import confirm_affine, confirm_norm
from normdeploy.verification.derivation.laws.carrying_laws import confirm_carried
from normdeploy.verification.derivation.laws.control_flow import confirm_bodies, returned
from normdeploy.verification.derivation.laws.element_moves import confirm_moved
from normdeploy.verification.derivation.laws.linear_laws import confirm_linear
from normdeploy.verification.derivation.laws.moved_back import further
from normdeploy.verification.derivation.laws.recurrent_laws import confirm_recurrent
from normdeploy.verification.derivation.laws.same_operator import confirm_cast, confirm_same
from normdeploy.verification.derivation.laws.tables import confirm_table
from normdeploy.verification.derivation.laws.written import confirm_written
from normdeploy.verification.derivation.nearby import nearby, region_nearby
from normdeploy.verification.derivation.regions.analytic import ANALYTIC, confirm_analytic
from normdeploy.verification.derivation.regions.over_rows import laws_over_rows
from normdeploy.verification.derivation.related.hinted_values import Hinted
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation, Target
from normdeploy.verification.derivation.related.report import Report, Row, rows_behind
from normdeploy.verification.derivation.related.stored_rounding import Wrong
from normdeploy.verification.derivation.related.unrounded import Constants
from normdeploy.verification.derivation.related.waiting import leads_to, shifted
from normdeploy.verification.derivation.side.affine_laws import Affine, back, step_of
from normdeploy.verification.derivation.side.beyond import alike_beyond
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import kind
from normdeploy.verification.derivation.side.twins import twins_of
from normdeploy.verification.derivation.side.value_facts import fed_alike
from normdeploy.verification.derivation.to_be_seen import ShownBySamples

_ABSORBING = (confirm_affine, confirm_linear, confirm_quantizer)
"""Laws of operators whose constants take up what their result is scaled and shifted by, whatever the source's are."""

_OF_ONE_KIND: dict[str, Callable[[Relation, ir.Node, ir.Node, Affine, Target], Finding]] = {
    **dict.fromkeys(("Gather", "Slice"), confirm_table),
    **dict.fromkeys(("ScatterElements", "ScatterND"), confirm_written),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "InstanceNormalization"), confirm_norm),
}
"""The same of operators in the place of one of their kind."""


def check_derivation(
    source: ir.Model | Side,
    file: ir.Model | Side,
    derivation: Derivation,
    assignments: Sequence[Mapping[str, Shape]],
    *,
    outputs: Sequence[str] | None = None,
) -> Report:
    """Return what is confirmed of a file against its source, operator by operator; nothing in either makes it raise.

    Args:
        source: the graph as traced, or as another tool wrote it. file: the graph to be judged. Or their sides.
        derivation: hints, by names of values; may be empty, or wrong.
        assignments: shapes of the inputs, by name, at a few assignments of sizes (one where nothing is dynamic).
        outputs: names of the file's outputs, in the order of the source's; its own order by default.
    """
    ours = source if isinstance(source, Side) else Side(source, assignments)
    theirs = file if isinstance(file, Side) else Side(file, ours.followed, beside=ours)
    with np.errstate(over="ignore", invalid="ignore"):  # gauges that leave float64's range are no identity
        report = _Checker(Relation(ours, theirs, further=further), derivation).run(outputs)
        if report.open and (twins := twins_of(ours)):
            report = _Checker(Relation(ours, theirs, further=further, twins=twins), derivation).run(outputs)
    report.sizes = theirs.shapes_by_name()
    return report


class _Checker:
    def __init__(self, relation: Relation, derivation: Derivation) -> None:
        self.relation, self.derivation = relation, derivation
        self.hints = Hinted(relation, derivation)
        self.constants = Constants(relation.file, derivation)
        relation.unrounded = self.constants.expression
        self.rows, self.waiting, self.used = dict[ir.Node, Row](), dict[ir.Value, ir.Node](), set[Hint]()
        self.shown = ShownBySamples(relation)
        self.integers = OnIntegers(relation)

    def run(self, outputs: Sequence[str] | None) -> Report:
        """Go through the file in order."""
        relation = self.relation
        ours = {value.name: value for value in relation.source.graph.inputs}
        for value in relation.file.graph.inputs:
            if value.name in ours and fed_alike(ours[value.name], value):
                relation.add(ours[value.name], Claim(value, np.ones(()), np.zeros(())))
        self.walk()
        theirs = {str(value.name): value for value in relation.file.graph.outputs}
        names = list(outputs) if outputs is not None else list(theirs)
        live = rows_behind(self.rows, (theirs[name] for name in names))
        report = Report(live, used={**dict.fromkeys(self.used), **self.constants.used})
        report.to_be_seen, report.lost = self.shown.of(report.open, self.rows.values())
        report.bodies, report.bodies_of_source = self.shown.bodies, self.shown.bodies_of_source
        if len(names) != len(relation.source.graph.outputs):
            report.outputs = names
            return report
        pairs = list(zip(relation.source.graph.outputs, names, strict=True))
        report.outputs = [name for w, name in pairs if not self._is_output(w, theirs[name], assumed=False)]
        report.follows = all(self._is_output(w, theirs[name], assumed=True) for w, name in pairs)
        return report

    def walk(self) -> None:
        """Find what each operator's results are, in order."""
        relation = self.relation
        for node in relation.file.nodes:
            if all(relation.file.is_sized(value) for value in node.outputs):
                continue
            self.rows[node] = Row(node)
            for value in node.outputs:
                if value.name and (value.uses() or value.is_graph_output()):
                    self._value(node, value)
            self._on_integers(node)
        for value, node in list(self.waiting.items()):
            if not self.rows[node].identity:
                self._value(node, value, asked=True)

    def _on_integers(self, node: ir.Node) -> None:
        """Find what an operator computes with integers, where nothing else shows it."""
        row = self.rows[node]
        try:
            finding = self.integers.visit(node)
        except (GraphError, *OPERATOR_ERRORS) as error:
            finding = f"{kind(node)} cannot be looked at: {error}"
        if isinstance(finding, Proof):
            self._prove(node, finding)
        elif isinstance(finding, Wrong):
            for part in (node, *self.integers.together.get(node, ())):
                self.rows[part].wrong, self.rows[part].reason = finding, finding.text
        elif finding and not row.identity:
            row.reason = finding

    def _prove(self, node: ir.Node, proof: Proof) -> None:
        """Take what a proof shows, and note it of the operators in it."""
        for w, claim in proof.claims:
            self.relation.add(w, claim)
        for part in (node, *proof.nodes):
            found = self.rows.get(part)
            if found is not None:
                found.identity, found.reason, found.wrong = proof.kind, "", None

    def _inside(self, inner: Relation) -> Wrong | str:
        """Go through two bodies; return what is open there."""
        checker = _Checker(inner, self.derivation)
        checker.walk()
        self.used |= checker.used
        self.constants.used |= checker.constants.used
        rows = [row for row in rows_behind(checker.rows, inner.file.graph.outputs) if not row.identity]
        results = zip(inner.source.graph.outputs, inner.file.graph.outputs, strict=False)
        left = len(rows) + sum(returned(inner, w, v) is None for w, v in results)
        self.shown.take(inner, left, checker.shown.of(rows, checker.rows.values()), checker.shown)
        first = next((row for row in rows if not row.wrong), None)
        if first is not None:
            return f"{kind(first.node)} {first.name!r}: {first.reason or 'no operator of the source fits'}"
        found = [replace(row.wrong, node=row.wrong.node or row.node) for row in rows if row.wrong]
        return min(found, key=lambda wrong: wrong.rounding, default="")

    def _is_output(self, w: ir.Value, v: ir.Value, *, assumed: bool) -> bool:
        claim = self.relation.by(w, v)
        if claim is not None:
            return claim.is_identity and (assumed or not claim.assumed)
        want, have = self.relation.source.numbers(w), self.relation.file.numbers(v)
        same = want is not None and have is not None and len(want) == len(have) and all(map(np.array_equal, want, have))
        return same and alike_beyond(self.relation.source, w, self.relation.file, v)

    def _value(self, node: ir.Node, value: ir.Value, *, asked: bool = False) -> None:
        """Find what a value is, unless it may wait; where nothing shows it, go on as if the derivation were right."""
        relation, row = self.relation, self.rows[node]
        step = step_of(relation.file, value)
        if step is not None and step.is_identity and not step.off_scale.any():
            known = relation.by_file.get(step.value, ())
            for w, claim in list(known):
                relation.add(w, Claim(value, claim.scale, claim.shift, claim.assumed))
            if known:
                row.identity = "passes on what it reads"
                return
        hinted = list(self.hints.of(value))
        behind = None if hinted or asked else shifted(relation.file, value)
        if behind is not None and any(self.hints.of(behind)):
            self.waiting[value] = node
            return
        inside = not (hinted or asked) and leads_to(relation.file, value, ANALYTIC, lambda v: any(self.hints.of(v)))
        proven = self._as_hinted(row, value, hinted)
        for read in [] if proven or inside else [v for v in node.inputs if v is not None and v in self.waiting]:
            if (maker := self.waiting.pop(read, None)) is not None:  # read twice, or by what another one reads
                self._value(maker, read, asked=True)
                proven = self._as_hinted(row, value, hinted)
        if not proven:
            targets = list(nearby(relation, node, value))
            proven = any(self._try(row, value, target) for target in targets)
            if inside and not proven:  # of a region whose result has a hint
                self.waiting[value] = node
                return
            if not proven and (found := region_nearby(relation, value, targets, self.constants)) is not None:
                self._prove(node, found)
                proven = True
        if not proven:
            self.used |= {hint for hint, _ in hinted}
            against = row.held_against(value)  # all fits but numbers, which within rounding say more than names
            named = [] if against and row.is_close else [t for h, t in hinted if self.hints.meant.only(h, value)]
            for target in (*named, *against):  # as if it were what it may stand for
                relation.add(target.value, Claim(value, target.scale, target.shift, True, target.rows))

    def _as_hinted(self, row: Row, value: ir.Value, hinted: Sequence[tuple[Hint, Target]]) -> bool:
        """Try what the derivation says of a value; tell whether it is known what the value is."""
        relation, proven = self.relation, False
        for hint, target in hinted:
            if proven and self.hints.meant.another(hint, value):  # computed alike, as queries and keys of one norm
                continue
            known = relation.known(target.value, value, rows=target.rows)
            if known is not None and known.scale.all():
                relation.add(target.value, known)  # where regions of the source begin
            elif self._try(row, value, target, sure=self.hints.meant.only(hint, value)):
                self.used.add(hint)
                proven = True
        return proven or bool(relation.by_file.get(value) or relation.in_rows.get(value))

    def _try(self, row: Row, value: ir.Value, target: Target, *, sure: bool = False) -> bool:
        told = False  # a number that was held against its own is wrong, however little of a result it moves
        for finding in self._findings(row.node, value, target):
            if isinstance(finding, Proof) and not self._hides(row, finding):
                self._prove(row.node, finding)
                return True
            if isinstance(finding, Wrong) and not (finding.rounding and told):
                told |= row.take(finding, (value, target), sure=sure)
            elif isinstance(finding, str) and finding and row.wrong is None and (target.hinted or not row.reason):
                row.reason = finding
        return False

    def _hides(self, row: Row, proof: Proof) -> bool:
        """Tell whether the rounding of later constants would make up for a number that is wrong by itself."""
        return any(node is not row.node and self.rows[node].is_wrong for node in proof.nodes if node in self.rows)

    def _findings(self, node: ir.Node, value: ir.Value, target: Target) -> Iterator[Finding]:
        """Try one law after the other; operands that contradict each other prove nothing."""
        try:
            yield from self._laws(node, value, target)
        except (GraphError, *OPERATOR_ERRORS) as error:
            yield f"{kind(node)} cannot be looked at: {error}"

    def _laws(self, node: ir.Node, value: ir.Value, target: Target) -> Iterator[Finding]:
        relation, direct, known = self.relation, target.value.producer(), dict[ir.Node, Finding]()
        if target.rows:
            yield from laws_over_rows(relation, value, target, self.constants)
            return
        plain = target.is_identity and target.value.index() == value.index()
        if plain and direct is not None and kind(direct) == kind(node):
            known[direct] = confirm_same(relation, node, direct)
            yield known[direct] if isinstance(known[direct], Proof) else ""  # what is the most frequent is cheap to see
        yield from (law(relation, value, target) for law in _ABSORBING)
        absorbs = _OF_ONE_KIND.get(kind(node)) if value.index() == 0 and target.scale.all() else None
        for step in back(relation.source, target.value):
            origin = step.value.producer()
            if origin is None:
                continue
            if absorbs is not None and kind(origin) == kind(node):
                yield absorbs(relation, node, origin, step, target)
            yield confirm_moved(relation, value, step.value, step.asked(target.scale, target.shift))
            yield confirm_cast(relation, node, origin)
            if kind(origin) == kind(node) and step.value.index() == value.index():
                same = known[origin] if origin in known else confirm_same(relation, node, origin)
                if not isinstance(same, Wrong) or step.gauges_as(target.scale, target.shift):
                    yield same  # other numbers are no fault in what is meant to be scaled
                yield confirm_carried(relation, node, origin, target.scale if step.value is target.value else None)
                yield confirm_recurrent(relation, node, origin)
                yield confirm_bodies(relation, node, origin, self._inside)
        if target.hinted:
            yield confirm_analytic(relation, value, target, self.constants)
