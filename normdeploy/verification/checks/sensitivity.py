"""Sensitivity: could the checks have failed? Every mutant of every normalization site must move the outputs.

A mutant counts as killed where its outputs differ from the right ones by at least twice the rounding bound in some
input family. One that survives every family gets a search for an input that kills it; one that provably stays below a
rounding of the site's own operator is harmless and says so. Anything else leaves the site not exercised.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import torch

from normdeploy.graph import Evaluator, weight_bytes
from normdeploy.verification.cases import Case
from normdeploy.verification.checks.decisive import probe_decisions
from normdeploy.verification.context import Context
from normdeploy.verification.cost import SINGLE, elements
from normdeploy.verification.judging.logic import logic_problems
from normdeploy.verification.mutation.derivative import PROBES, Sensitivities, needed
from normdeploy.verification.mutation.harmless import harmless
from normdeploy.verification.mutation.invariant import cancels
from normdeploy.verification.mutation.masked_scores import only_masked_scores
from normdeploy.verification.mutation.mutants import Site
from normdeploy.verification.mutation.probes import probe_sites
from normdeploy.verification.mutation.rerun import CleanRun, Target, difference_ratio, site_groups
from normdeploy.verification.mutation.search import SHARE, search
from normdeploy.verification.mutation.zeros import behind_zeros
from normdeploy.verification.record.answers import Check, Killer, MutantReport, Question, SiteReport, Status
from normdeploy.verification.runs import judge_outputs
from normdeploy.verification.sides.grids import unrounded
from normdeploy.verification.sides.structure import plural


def check_sensitivity(context: Context) -> list[Check]:
    """Try every mutant; add one site report each and one check."""
    if context.canonical is None or context.evaluator is None or not context.cases:
        return [Check(Question.SENSITIVITY, Status.WEAK, "no graph of the reference to make mutants of")]
    groups = site_groups(context)
    targets = [Target(evaluator, site, m) for evaluator, sites in groups for site in sites for m in site.mutants]
    if not targets:
        text = "the reference has no normalization: there is nothing to mutate"
        return [Check(Question.SENSITIVITY, Status.NOTE, text)]
    for evaluator, sites in groups:
        unseen = behind_zeros(evaluator.graph, sites)
        for target in targets:
            if target.evaluator is evaluator and id(target.site) in unseen:
                target.note = unseen[id(target.site)]
    everything, targets = targets, [t for t in targets if not t.note]
    estimated = not context.level.exact_mutants
    if estimated and targets:
        context.leave_out("mutants one by one (tried by derivative first)")
        _by_derivatives(context, groups, targets)
        _prove(context, groups, _alive(targets))
    for number, case in enumerate(list(context.cases)):
        eager = number < _EAGER_FAMILIES and not estimated
        alive = [t for t in targets if t.killed is not Killer.ROUNDING] if eager else _unproven(targets)
        if not alive:
            break
        _try_family(context, case, groups, alive)
        context.tell("sensitivity", (number + 1) / len(context.cases))
    _prove(context, groups, _unproven(targets))
    for target in _unproven(targets):
        _prove_cancelling(context, target)
    wrong: list[Check] = []
    for target in _unproven(targets):
        wrong += _second_chance(context, target)
    probe_decisions(context, _alive(targets))
    fed = probe_sites(context, _alive(targets))
    for target in _unproven(targets):
        if target.unsearched:
            wrong += _second_chance(context, target, freely=True)
    for evaluator, sites in groups:
        for site in sites:
            mine = [t for t in everything if t.site is site and t.evaluator is evaluator]
            context.sites.append(SiteReport(site.where, site.kind, tuple(_report(t) for t in mine)))
    if any(check.status is Status.FAIL for check in fed):
        return [*wrong, *fed]
    return [*wrong, *fed, *_concluded(context.sites)]


_RANDOM_BELOW = 5.0
"""An estimate that is further below the bound than this is no reason to run a mutant on that family."""

_LARGEST = 1 << 29
"""Bytes of weights up to which gradients are taken in float64."""

_FEW = 8
"""Survivors so few are run exactly on the next family; more are tried by derivative first."""

_EAGER_FAMILIES = 3
"""Families on which a mutant that only the float64 chain killed is still tried against the rounding bound."""


def _alive(targets: Sequence[Target]) -> list[Target]:
    return [target for target in targets if not target.killed and target.report is None]


def _by_derivatives(
    context: Context, groups: Sequence[tuple[Evaluator, list[Site]]], targets: Sequence[Target]
) -> None:
    """Kill by backward passes, a family each, what they kill with room to spare, until few enough are left."""
    for number, case in enumerate(sorted(context.cases, key=lambda c: elements(c.family.feeds))):
        if number == 1:
            _prove(context, groups, [t for t in _alive(targets) if t.mutant.affine], context.cases[:1])
        alive = [t for t in _alive(targets) if not t.site.inner]
        if number and len(alive) <= _FEW:
            return
        _by_derivative(context, case, groups, alive)


def _by_derivative(
    context: Context, case: Case, groups: Sequence[tuple[Evaluator, list[Site]]], targets: Sequence[Target]
) -> None:
    """Estimate mutants on one family; those near the bound are run exactly."""
    chain = context.links.hold
    for evaluator, sites in groups:
        mine = [t for t in targets if t.evaluator is evaluator]
        if not mine:
            continue
        sites = [site for site in sites if any(t.site is site for t in mine)]
        clean_run = CleanRun(evaluator, case, sites)
        gradients = _Gradients(context, evaluator, case, sites)
        for target in mine:
            values, clean = clean_run.inputs(target.site), clean_run.kept[target.site.output]
            found = gradients.coarse.estimate(target.site, target.mutant, values, clean)
            kill = case.constants.kill
            limit, least = kill * needed(found.relative), kill / _RANDOM_BELOW
            # S, and what else takes runs of its own, only where the bound without it is exceeded
            ratio = found.ratio * gradients.coarse.wider if found.ratio >= least else 0.0
            finer, exact = 0.0, None
            if chain and ratio < limit and found.ratio * gradients.coarse.coarser >= least:
                exact = gradients.fine
            if exact is not None:
                found = exact.estimate(target.site, target.mutant, values, clean)
                finer = found.ratio * exact.finer if found.ratio * exact.coarser >= least else 0.0
            elif chain and ratio < limit:  # no float64 gradients of a network so large: what may be seen is run
                ratio = max(ratio, min(found.ratio * gradients.coarse.coarser, kill))
            if max(ratio, finer) >= limit:
                target.seen(ratio if ratio >= limit else 0.0, finer, case.family.name, kill)
                target.note = "estimated by a directional derivative"
            elif max(ratio, finer) >= least:
                context.budget.spend(1, case.family.feeds)
                target.seen(*_effect(context, clean_run, target), case.family.name, kill)


class _Gradients:
    """The gradients of one family, in the precision that a question needs.

    Args:
        evaluator: of the graph. case: the inputs. sites: where.
    """

    def __init__(self, context: Context, evaluator: Evaluator, case: Case, sites: Sequence[Site]) -> None:
        self._context, self._evaluator, self._case, self._sites = context, evaluator, case, sites
        self.coarse = self._taken(torch.float32 if context.heavy else torch.float64)

    @cached_property
    def fine(self) -> Sensitivities | None:
        """In float64: gradients that cancel are nothing but rounding in float32, which the chain's bound would take
        for an effect. None where autograd's copy of the weights would be too large."""
        if not self._context.heavy:
            return self.coarse
        large = weight_bytes(self._context.subject.model) > _LARGEST
        return None if large else self._taken(torch.float64)

    def _taken(self, dtype: torch.dtype) -> Sensitivities:
        self._context.budget.spend((1 + PROBES) * (1 if dtype == torch.float64 else SINGLE), self._case.family.feeds)
        evaluator = Evaluator(self._evaluator.graph, dtype=dtype)
        return Sensitivities(evaluator, self._case, self._sites, seed=self._context.seed)


def _try_family(
    context: Context, case: Case, groups: Sequence[tuple[Evaluator, list[Site]]], alive: Sequence[Target]
) -> None:
    for evaluator, sites in groups:
        mine = [t for t in alive if t.evaluator is evaluator]
        if not mine:
            continue
        clean_run = CleanRun(evaluator, case, [s for s in sites if any(t.site is s for t in mine)])
        for target in mine:
            ratio, chain_ratio = _effect(context, clean_run, target)
            target.seen(ratio, chain_ratio, case.family.name, case.constants.kill)
        swallowed = [t for t in mine if not t.killed] if context.links.hold and case.chain is not None else []
        rounding = unrounded(evaluator) if swallowed else {}
        if rounding:  # a quantizer hides what is smaller than its step; the chain was checked without its rounding, too
            clean_run = CleanRun(evaluator, case, [s for s in sites if any(t.site is s for t in swallowed)], rounding)
            for target in swallowed:
                moved = clean_run.mutated(target.site, target.mutant)
                ratio = difference_ratio(case, clean_run.outputs, moved, bounds=Case.chain_bounds)
                target.seen(0.0, ratio, case.family.name, case.constants.kill)


def _effect(context: Context, clean_run: CleanRun, target: Target) -> tuple[float, float]:
    """Return how many times a mutant exceeds the rounding bound and, where that does not kill it, the chain's."""
    outputs = clean_run.mutated(target.site, target.mutant)
    ratio, kill = difference_ratio(clean_run.case, clean_run.outputs, outputs), clean_run.case.constants.kill
    if ratio >= kill or not context.links.hold or clean_run.case.chain is None:
        return ratio, 0.0
    # Without the parts that take runs of their own the bound is smaller: what does not exceed it needs no such run
    chain = difference_ratio(
        clean_run.case, clean_run.outputs, outputs, bounds=partial(Case.chain_bounds, spread=False)
    )
    if chain >= kill:
        chain = difference_ratio(clean_run.case, clean_run.outputs, outputs, bounds=Case.chain_bounds)
    return ratio, chain


def _report(target: Target) -> MutantReport:
    if target.report is not None:
        return target.report
    if not target.killed:
        note, spared = target.harmless or target.note, bool(target.harmless)
        return MutantReport(target.mutant.name, False, target.ratio, target.family, note, harmless=spared)
    ratio = target.ratio if target.killed is Killer.ROUNDING else target.chain_ratio
    return MutantReport(target.mutant.name, True, ratio, target.family, target.note, by=target.killed)


def _prove(
    context: Context,
    groups: Sequence[tuple[Evaluator, list[Site]]],
    alive: Sequence[Target],
    cases: Sequence[Case] | None = None,
) -> None:
    """Find the survivors that are harmless, for every input or (to be tried at the site yet) for those seen.

    Args:
        cases: the families seen, all by default; one is enough for a proof that holds for every input.
    """
    for evaluator, sites in groups:
        mine = [t for t in alive if t.evaluator is evaluator]
        wanted = [s for s in sites if any(t.site is s for t in mine)]
        clean_runs = [CleanRun(evaluator, case, wanted) for case in cases or context.cases] if mine else []
        for target in mine:
            proof, always = harmless(clean_runs, target.site, target.mutant)
            if not proof and cases is None:
                proof = only_masked_scores(clean_runs, target.site, target.mutant)
            target.harmless = proof if always or cases is None else ""
            if always:
                known = target.mutant.name, False, target.ratio, target.family
                target.report = MutantReport(*known, proof, harmless=True)


def _prove_cancelling(context: Context, target: Target) -> None:
    """Find out whether what a survivor changes cancels behind its site, whatever the site reads."""
    if target.site.inner:
        return
    proof = cancels(target.evaluator, context.cases[0], target.site, target.mutant, seed=context.seed + 91)
    if proof:
        known = target.mutant.name, False, target.ratio, target.family
        target.report = MutantReport(*known, proof, harmless=True)


def _unproven(targets: Sequence[Target]) -> list[Target]:
    return [target for target in _alive(targets) if not target.harmless]


def _second_chance(context: Context, target: Target, *, freely: bool = False) -> list[Check]:
    """Look for an input that kills a survivor; such an input is checked like any family, and what fails returned.

    Args:
        freely: nothing else can tell, so that the level's work does not limit the search.
    """
    name, ratio, family = target.mutant.name, target.ratio, target.family
    note = target.note if freely else "no input family moves the outputs beyond rounding"
    target.note, target.unsearched = note, False
    if not context.level.search_steps:
        return []
    if not freely and not context.budget.affords(SHARE):
        target.unsearched = True
        return []
    found = search(context, target.evaluator, target.site, target.mutant, freely=freely)
    if found is not None and found[1] >= context.cases[0].constants.kill:
        case = context.case(found[0])
        context.cases.append(case)
        target.report = MutantReport(name, True, found[1], found[0].name, "killed by an input searched for")
        return _check_found(context, case)
    if found is not None:
        target.ratio, target.family = max((ratio, family), (found[1], found[0].name))
    target.note += ", nor does any input the search found"
    return []


def _check_found(context: Context, case: Case) -> list[Check]:
    """Hold the file against an input found by the search."""
    problems, _ = logic_problems(case, context.subject.logic(case.family.feeds))
    for setting in context.settings:
        outputs = context.subject.run(case.family.feeds, setting)
        problems += judge_outputs(context, case, outputs, setting)[0]
    return [Check(Question.ROUNDING, Status.FAIL, "; ".join(problems[:4]))] if problems else []


def _concluded(sites: Sequence[SiteReport]) -> list[Check]:
    killed = sum(m.killed for s in sites for m in s.mutants)
    total = sum(len(s.mutants) for s in sites)
    spared = sum(m.harmless and not m.killed for s in sites for m in s.mutants)
    reasons: dict[str, list[SiteReport]] = {}
    for site in sites:
        if not site.exercised:
            reasons.setdefault(site.survivors[0].note, []).append(site)
    checks: list[Check] = []
    for note, unseen in reasons.items():
        names = ", ".join(dict.fromkeys(m.name for site in unseen for m in site.survivors))
        checks.append(Check(Question.SENSITIVITY, Status.NOT_EXERCISED, f"{_places(unseen)}: {note} ({names})"))
    if checks:
        return checks
    text = f"{killed} of {total} mutants killed at {plural(len(sites), 'site')}"
    if spared:
        text += f", {spared} proven undetectable and harmless here"
    measured = {"killed": killed, "total": total, "harmless": spared}
    return [Check(Question.SENSITIVITY, Status.PASS, text, measured)]


def _places(sites: Sequence[SiteReport]) -> str:
    """Name some sites: the first three, and how many more."""
    first = "; ".join(f"{site.kind} at {site.where!r}" for site in sites[:3])
    return first if len(sites) <= 3 else f"{first}; and {len(sites) - 3} more sites"
