"""Sensitivity: could the checks have failed? Every mutant of every normalization site must move the outputs.

A mutant counts as killed where its outputs differ from the right ones by at least twice the rounding bound in some
input family. One that survives every family gets a search for an input that kills it; one that provably stays below a
rounding of the site's own operator is harmless and says so. Anything else leaves the site not exercised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import Evaluator, constant_tensor
from normdeploy.verify.cases import Case
from normdeploy.verify.context import Context
from normdeploy.verify.criteria import Bounds, judge_error
from normdeploy.verify.derivative import MARGIN, Sensitivities
from normdeploy.verify.harmless import harmless
from normdeploy.verify.links import chain_bounds
from normdeploy.verify.logic import logic_problems
from normdeploy.verify.mutants import Mutant, Site, sites_of
from normdeploy.verify.mutate_affine import affine_sites, epsilon_sites
from normdeploy.verify.rounding import judge_outputs
from normdeploy.verify.search import search
from normdeploy.verify.structure import is_float
from normdeploy.verify.values import Array, to_numpy
from normdeploy.verify.verdict import MutantReport, SiteReport


def epsilons(model: ir.Model | None) -> list[float]:
    """Return the epsilons of a graph's normalization operators, for the small-variance families."""
    if model is None:
        return [1e-5]
    found = {
        node.attributes.get_float("epsilon", 1e-5) for node in model.graph if node.op_type.endswith("Normalization")
    }
    return sorted(found) or [1e-5]


class Tape:
    """One clean float64 run of a graph, kept at the sites, so that a mutant re-runs only what lies behind its site.

    Args:
        evaluator: of the graph. case: the inputs. sites: whose inputs and outputs are kept.
    """

    def __init__(self, evaluator: Evaluator, case: Case, sites: Sequence[Site]) -> None:
        self.evaluator, self.case = evaluator, case
        self._graph = evaluator.graph
        constants = {n for site in sites for n in site.inputs if n and _is_constant(self._graph, n)}
        names = dict.fromkeys(n for s in sites for n in (*s.inputs, s.output) if n and n not in constants)
        outputs = evaluator.output_names
        with torch.no_grad():
            found = evaluator.run(dict(case.family.feeds), fetch=[*names, *constants, *outputs])
        self.kept: dict[str, Tensor] = {name: found[name] for name in names}
        self.constants = {name: found[name] for name in constants}
        self.outputs: list[Array] = [to_numpy(found[name]) for name in outputs]

    def inputs(self, site: Site) -> list[Tensor | None]:
        """Return the values that a site reads."""
        return [None if not n else self.kept[n] if n in self.kept else self.constants[n] for n in site.inputs]

    def behind(self, site: Site, wrong: Tensor) -> list[Array]:
        """Return the graph's outputs with the site's output replaced."""
        downstream = _downstream(self._graph, site.output)
        replace = {name: tensor for name, tensor in self.kept.items() if name not in downstream}
        replace[site.output] = wrong
        with torch.no_grad():
            found = self.evaluator.run(dict(self.case.family.feeds), replace=replace)
        return [to_numpy(found[name]) for name in self.evaluator.output_names]


def _is_constant(graph: ir.Graph, name: str) -> bool:
    if name in graph.initializers:
        return True
    return any(constant_tensor(o) is not None for node in graph for o in node.outputs if o.name == name)


def _downstream(graph: ir.Graph, name: str) -> set[str]:
    """Return the names of every value that depends on ``name``, itself included."""
    reached = {name}
    for node in graph:
        if any(value is not None and value.name in reached for value in node.inputs):
            reached.update(str(output.name) for output in node.outputs)
        elif any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            reached.update(str(output.name) for output in node.outputs)  # a subgraph may read anything
    return reached


def difference_ratio(
    case: Case,
    clean: Sequence[Array],
    outputs: Sequence[Array],
    *,
    bounds: Callable[[Case, int], Bounds] = Case.bounds,
) -> float:
    """Return how many times the bound some outputs differ from the clean ones; infinity for a hard difference.

    Integer outputs count where no float output shows the difference, and only outside ties.
    """
    worst = 0.0
    for i, (a, b) in enumerate(zip(clean, outputs, strict=True)):
        if a.shape != b.shape:
            return float("inf")
        if is_float(a):
            finite = np.isfinite(a) & np.isfinite(b)
            if bool((np.isfinite(a) & ~np.isfinite(b)).any()):
                return float("inf")
            error = np.where(finite, np.abs(np.where(finite, b, 0.0) - np.where(finite, a, 0.0)), 0.0)
            if error.any():
                worst = max(worst, judge_error(error, bounds(case, i)).ratio)
    if worst == 0.0:
        for i, (a, b) in enumerate(zip(clean, outputs, strict=True)):
            if not is_float(a):
                different = np.asarray(a != b)
                if different.any() and bool((different & ~case.ties(i)).any()):
                    return float("inf")
    return worst


@dataclass
class _Target:
    """One mutant and the best kill so far."""

    evaluator: Evaluator
    site: Site
    mutant: Mutant
    ratio: float = 0.0
    chain_ratio: float = 0.0
    family: str = ""
    killed: str = ""
    note: str = ""
    report: MutantReport | None = None

    def seen(self, ratio: float, chain_ratio: float, family: str, kill: float) -> None:
        """Take in one family's answer."""
        if ratio > self.ratio or not self.family:
            self.ratio, self.family = ratio, family
        self.chain_ratio = max(self.chain_ratio, chain_ratio)
        if self.ratio >= kill:
            self.killed = "rounding"
        elif self.chain_ratio >= kill:
            self.killed = "float64"


def check_sensitivity(context: Context) -> None:
    """Try every mutant; add one site report each and one check."""
    if context.canonical is None or context.evaluator is None or not context.cases:
        context.answer("sensitivity", "weak", "no graph of the reference to make mutants of")
        return
    groups = site_groups(context)
    targets = [_Target(evaluator, site, m) for evaluator, sites in groups for site in sites for m in site.mutants]
    if not targets:
        context.answer("sensitivity", "note", "the reference has no normalization: there is nothing to mutate")
        return
    if context.heavy:
        _by_derivative(context, groups, targets)
    for number, case in enumerate(list(context.cases)):
        eager = number < _EAGER_FAMILIES and not context.heavy
        alive = [t for t in targets if t.killed != "rounding"] if eager else _alive(targets)
        if not alive:
            break
        if number and not context.in_time(0.8):
            context.not_checked.append(f"{len(_alive(targets))} surviving mutants on further input families (time)")
            break
        _try_family(context, case, groups, alive)
        context.tell("sensitivity", (number + 1) / len(context.cases))
    for target in _alive(targets):
        _second_chance(context, target)
    for evaluator, sites in groups:
        for site in sites:
            mine = [t for t in targets if t.site is site and t.evaluator is evaluator]
            context.sites.append(SiteReport(site.where, site.kind, tuple(_report(t) for t in mine)))
    _conclude(context)


_EAGER_FAMILIES = 3
"""Families on which a mutant that only the float64 chain killed is still tried against the rounding bound."""


def _alive(targets: Sequence[_Target]) -> list[_Target]:
    return [target for target in targets if not target.killed]


def site_groups(context: Context) -> list[tuple[Evaluator, list[Site]]]:
    """Return the sites by the graph that they are evaluated on."""
    assert context.canonical is not None
    assert context.evaluator is not None
    assert context.reference.graph is not None
    operators = sites_of(context.canonical)
    known: dict[str, list[float]] = {}
    for site in operators:
        known.setdefault(site.where, []).append(site.node.attributes.get_float("epsilon", 1e-5))
    spelled = affine_sites(context.canonical)
    epsilon = epsilon_sites(context.reference.graph, known)
    return [(Evaluator(context.canonical), operators + spelled), (context.evaluator, epsilon)]


def _by_derivative(
    context: Context, groups: Sequence[tuple[Evaluator, list[Site]]], targets: Sequence[_Target]
) -> None:
    """Kill by a backward pass what it kills with room to spare (:mod:`normdeploy.verify.derivative`)."""
    case = min(context.cases, key=lambda c: sum(a.size for a in c.family.feeds.values()))
    for evaluator, sites in groups:
        mine = [t for t in targets if t.evaluator is evaluator]
        if not mine:
            continue
        tape = Tape(evaluator, case, sites)
        gradients = Sensitivities(evaluator, case, sites, seed=context.seed)
        for target in mine:
            values = tape.inputs(target.site)
            with torch.no_grad():
                change = target.mutant.apply(values) - tape.kept[target.site.output]
            ratio, chain_ratio = gradients.ratios(target.site, change)
            limit = MARGIN * case.constants.kill
            chain_ratio = chain_ratio if context.facts.get("chain") and chain_ratio >= limit else 0.0
            if ratio >= limit or chain_ratio:
                target.seen(ratio if ratio >= limit else 0.0, chain_ratio, case.family.name, case.constants.kill)
                target.note = "estimated by a directional derivative"


def _try_family(
    context: Context, case: Case, groups: Sequence[tuple[Evaluator, list[Site]]], alive: Sequence[_Target]
) -> None:
    for evaluator, sites in groups:
        mine = [t for t in alive if t.evaluator is evaluator]
        if not mine:
            continue
        tape = Tape(evaluator, case, [s for s in sites if any(t.site is s for t in mine)])
        for target in mine:
            ratio, chain_ratio = _effect(context, tape, target)
            target.seen(ratio, chain_ratio, case.family.name, case.constants.kill)


def _effect(context: Context, tape: Tape, target: _Target) -> tuple[float, float]:
    with torch.no_grad():
        wrong = target.mutant.apply(tape.inputs(target.site))
    outputs = tape.behind(target.site, wrong)
    ratio = difference_ratio(tape.case, tape.outputs, outputs)
    chain = 0.0
    if context.facts.get("chain") and tape.case.chain is not None and ratio < tape.case.constants.kill:
        chain = difference_ratio(tape.case, tape.outputs, outputs, bounds=chain_bounds)
    return ratio, chain


def _report(target: _Target) -> MutantReport:
    if target.report is not None:
        return target.report
    ratio = target.ratio if target.killed == "rounding" else target.chain_ratio
    return MutantReport(target.mutant.name, True, ratio, target.family, target.note, by=target.killed)


def _second_chance(context: Context, target: _Target) -> None:
    """Prove a survivor harmless, or look for an input that kills it; such an input is checked like any family."""
    name, ratio, family = target.mutant.name, target.ratio, target.family
    proof = harmless(target.evaluator, target.site, target.mutant, context.cases)
    if proof:
        target.report = MutantReport(name, False, ratio, family, proof, harmless=True)
        return
    note = "no input family moves the outputs beyond rounding"
    if context.level.search_steps and context.in_time():
        found = search(context, target.evaluator, target.site, target.mutant)
        if found is not None and found[1] >= context.cases[0].constants.kill:
            case = context.case(found[0])
            context.cases.append(case)
            _check_found(context, case)
            target.report = MutantReport(name, True, found[1], found[0].name, "killed by an input searched for")
            return
        if found is not None:
            ratio, family = max((ratio, family), (found[1], found[0].name))
        note += ", nor does any input the search found"
    elif context.level.search_steps:
        note += "; no time was left to search for one"
    target.report = MutantReport(name, False, ratio, family, note)


def _check_found(context: Context, case: Case) -> None:
    """Hold the file against an input found by the search."""
    problems, _ = logic_problems(case, context.subject.logic(case.family.feeds))
    for setting in context.settings:
        outputs = context.subject.run(case.family.feeds, setting)
        problems += judge_outputs(context, case, outputs, str(setting))[0]
    if problems:
        context.answer("rounding", "fail", "; ".join(problems[:4]))


def _conclude(context: Context) -> None:
    killed = sum(m.killed for s in context.sites for m in s.mutants)
    total = sum(len(s.mutants) for s in context.sites)
    spared = sum(m.harmless and not m.killed for s in context.sites for m in s.mutants)
    bad = [site for site in context.sites if not site.exercised]
    if bad:
        for site in bad:
            names = ", ".join(m.name for m in site.survivors)
            context.answer(
                "sensitivity", "not-exercised", f"{site.kind} at {site.where!r}: {site.survivors[0].note} ({names})"
            )
        return
    text = f"{killed} of {total} mutants killed at {len(context.sites)} sites"
    if spared:
        text += f", {spared} proven undetectable and harmless here"
    context.answer("sensitivity", "pass", text, killed=killed, total=total, harmless=spared)
