"""Sensitivity: could the checks have failed? Every mutant of every normalization site must move the outputs.

A mutant counts as killed where its outputs differ from the right ones by at least twice the rounding bound in some
input family. One that survives every family gets a search for an input that kills it; one that provably stays below a
rounding of the site's own operator is harmless and says so. Anything else leaves the site not exercised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator
from normdeploy.verification.check_context import Context
from normdeploy.verification.checks.decisive import probe_decisions
from normdeploy.verification.checks.traced import check_traced
from normdeploy.verification.family_case import Case
from normdeploy.verification.moved_constants import MovedConstants
from normdeploy.verification.mutation.called_parts import key_of
from normdeploy.verification.mutation.estimates import FEW, alive_of, chain_of, dead_sites, effect, kill_by_derivatives
from normdeploy.verification.mutation.harmless import SAME_FUNCTION
from normdeploy.verification.mutation.killed_by_calls import kill_by_calls, kill_by_quiet_calls
from normdeploy.verification.mutation.killing_input import SHARE, search
from normdeploy.verification.mutation.lone_rows import two_rows, watched_on
from normdeploy.verification.mutation.mutants import Site
from normdeploy.verification.mutation.probes import probe_sites
from normdeploy.verification.mutation.proofs import prove, prove_cancelling, prove_nothing, prove_same_file
from normdeploy.verification.mutation.rerun import CleanRun, Target, difference_ratio, site_groups
from normdeploy.verification.mutation.unfed import prove_unfed
from normdeploy.verification.mutation.watched_sites import Key
from normdeploy.verification.mutation.zeros import behind_zeros
from normdeploy.verification.record.answers import Check, Killer, MutantReport, Question, SiteReport, Status
from normdeploy.verification.record.measured import Killed
from normdeploy.verification.runs import check_case
from normdeploy.verification.samples.ranges import batch_name
from normdeploy.verification.sides.exact_agreement import plural
from normdeploy.verification.sides.grids import unrounded
from normdeploy.verification.sides.two_sides import EagerReference
from normdeploy.verification.trace_agreement import hold_trace


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
            if target.evaluator is evaluator:
                target.note = unseen.get(target.site, "")
    everything, targets = targets, [t for t in targets if not t.note]
    prove_nothing(targets)
    targets = alive_of(targets)
    estimated = not context.level.exact_mutants
    if estimated and targets:
        context.leave_out("mutants one by one (tried at their site's own value, or by derivative)")
        _seen_at_sites(context, targets)
        if context.named is not None and alive_of(targets):
            context.links = check_traced(context)
            _seen_at_sites(context, alive_of(targets))
        kill_by_calls(context, alive_of(targets))
    prove_unfed(context, alive_of(targets))
    if estimated and targets:
        prove(context, groups, [t for t in alive_of(targets) if t.mutant.proven_at_once], context.cases[:1])
        if len(alive_of(targets)) > FEW:
            kill_by_derivatives(context, groups, targets)
        prove(context, groups, alive_of(targets))
        kill_by_quiet_calls(context, _unproven(targets))
    for number, case in enumerate([case for case in context.cases if not case.shows_nothing]):
        eager = number < _EAGER_FAMILIES and not estimated
        alive = [t for t in targets if t.killed is not Killer.ROUNDING] if eager else _unproven(targets)
        if not alive:
            break
        _try_family(context, case, groups, alive)
        context.tell("sensitivity", (number + 1) / len(context.cases))
    _follow_bodies(context, groups, [t for t in _unproven(targets) if t.site.inner])
    prove(context, groups, _unproven(targets))
    prove_cancelling(context, _unproven(targets))
    for target in _unproven(targets):
        prove_same_file(context, target)
    wrong: list[Check] = []
    for target in _unproven(targets):
        wrong += _second_chance(context, target, until=SHARE * context.effort.limit)
    probe_decisions(context, alive_of(targets))
    fed = probe_sites(context, alive_of(targets))
    until = context.effort.last()
    for target in [t for t in _unproven(targets) if t.unsearched]:
        wrong += _second_chance(context, target, until=until)
    unsearched = sum(target.unsearched for target in _unproven(targets))
    if unsearched:
        context.leave_out(f"the search for inputs that show {plural(unsearched, 'mutant')}")
    for evaluator, sites in groups:
        for site in sites:
            mine = [t for t in everything if t.site is site and t.evaluator is evaluator]
            context.sites.append(SiteReport(site.where, site.kind, tuple(_report(t) for t in mine)))
    if any(check.status is Status.FAIL for check in fed):
        return [*wrong, *fed]
    return [*wrong, *fed, *_concluded(context.sites)]


def _seen_at_sites(context: Context, targets: Sequence[Target]) -> None:
    """Kill what the comparison of the traced graph's sites with the reference would have shown."""
    if not (context.links.hold or context.links.nearly):
        return
    by = Killer.MODULE if isinstance(context.reference, EagerReference) else Killer.DERIVATION
    dead = set() if by is Killer.MODULE else dead_sites(context, targets)
    asked = [t for t in targets if t.site not in dead]
    if context.links.nearly:
        _seen_within_rounding(context, asked, by)
        return
    for target in asked:
        if context.named is not None and key_of(target) in context.named:
            target.spare(SAME_FUNCTION)
    asked = alive_of(asked)
    _kill_seen(context, asked, context.watched[1], by, context.cases[0].family.name)
    between = [t for t in alive_of(asked) if t.mutant.between_rows]
    known = context.watched[1]
    lone = [t for t in between if known.get(key_of(t)) == 0] if batch_name(context.specs) else []
    if lone:
        family = two_rows(context)
        _kill_seen(context, lone, watched_on(context, lone, family), by, family.name)


def _seen_within_rounding(context: Context, asked: Sequence[Target], by: Killer) -> None:
    """Do the same where the file's numbers are known to within another order of rounding.

    What that rounding hides of an affine map, which is folded into such numbers, is no larger than they may be off; nor
    is what it hides of such a map behind a padded border.
    """
    family, kill = context.cases[0].family.name, context.cases[0].constants.kill
    _kill_seen(context, asked, context.watched_coarsely, by, family)
    for target in alive_of(asked):
        if target.mutant.proven_at_once and context.watched[1].get(key_of(target), 0.0) >= kill:
            target.family = family
            target.spare("another order of rounding of the numbers that it is folded into is as large")


def _kill_seen(
    context: Context, targets: Sequence[Target], ratios: Mapping[Key, float], by: Killer, family: str
) -> None:
    for target in targets:
        ratio = ratios.get(key_of(target), 0.0)
        if ratio >= context.cases[0].constants.kill:
            target.killed, target.chain_ratio, target.family = by, ratio, family


_EAGER_FAMILIES = 3
"""Families on which a mutant that only the float64 chain killed is still tried against the rounding bound."""


def _try_family(
    context: Context, case: Case, groups: Sequence[tuple[Evaluator, list[Site]]], alive: Sequence[Target]
) -> None:
    for evaluator, sites in groups:
        mine = [t for t in alive if t.evaluator is evaluator]
        if not mine:
            continue
        clean_run = CleanRun(evaluator, case, [s for s in sites if any(t.site is s for t in mine)])
        for target in mine:
            ratio, chain_ratio = effect(context, clean_run, target)
            target.seen(ratio, chain_ratio, case.family.name, case.constants.kill)
        swallowed = [t for t in mine if not t.killed] if chain_of(context, case) else []
        rounding = unrounded(evaluator) if swallowed else {}
        if rounding:  # a quantizer hides what is smaller than its step; the chain was checked without its rounding, too
            clean_run = CleanRun(evaluator, case, [s for s in sites if any(t.site is s for t in swallowed)], rounding)
            if any(np.shape(a) != np.shape(t) for a, t in zip(clean_run.outputs, case.truth, strict=True)):
                continue  # how many rows are found hangs on the rounding
            for target in swallowed:
                moved = clean_run.mutated(target.site, target.mutant)
                ratio = difference_ratio(case, clean_run.outputs, moved, bounds=Case.chain_bounds)
                target.seen(0.0, ratio, case.family.name, case.constants.kill)


def _follow_bodies(context: Context, groups: Sequence[tuple[Evaluator, list[Site]]], targets: Sequence[Target]) -> None:
    """Try survivors in bodies on the families whose float64 chain the level left out.

    Which branch runs hangs on the family, and what stands in a body cannot be fed.
    """
    if not targets or not context.links.hold:
        return
    constants = MovedConstants(context)
    for case in context.cases:
        alive = _unproven(targets)
        if not alive or case.chain is not None or case.shows_nothing:
            continue
        try:
            agrees = hold_trace(context, case, constants) <= 1
        except GraphError:
            agrees = False
        if agrees:
            _try_family(context, case, groups, alive)
        else:
            case.chain = None  # float32's bound judges alone there


def _report(target: Target) -> MutantReport:
    if target.report is not None:
        return target.report
    if not target.killed:
        note, spared = target.harmless or target.note, bool(target.harmless)
        return MutantReport(target.mutant.name, False, target.ratio, target.family, note, harmless=spared)
    ratio = target.ratio if target.killed is Killer.ROUNDING else target.chain_ratio
    return MutantReport(target.mutant.name, True, ratio, target.family, target.note, by=target.killed)


def _unproven(targets: Sequence[Target]) -> list[Target]:
    return [target for target in alive_of(targets) if not target.harmless]


def _second_chance(context: Context, target: Target, *, until: float) -> list[Check]:
    """Look for an input that kills a survivor; such an input is checked like any family, and what fails returned.

    Args:
        until: work spent in all at which no search is begun or goes on.
    """
    if not target.unsearched:  # what was tried since then is noted already
        target.note = "no input family moves the outputs beyond rounding"
    target.unsearched = bool(context.level.search_steps) and context.effort.spent >= until
    if not context.level.search_steps or target.unsearched:
        return []
    found = search(context, target.evaluator, target.site, target.mutant, until=until)
    if found is not None and found[1] >= context.cases[0].constants.kill:
        case = context.case(found[0])
        context.cases.append(case)
        target.show(found[1], found[0].name, "killed by an input searched for")
        return check_case(context, case)
    if found is not None:
        target.ratio, target.family = max((target.ratio, target.family), (found[1], found[0].name))
    target.note += ", nor does any input the search found"
    return []


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
    return [Check(Question.SENSITIVITY, Status.PASS, text, Killed(killed, total, spared))]


def _places(sites: Sequence[SiteReport]) -> str:
    """Name some sites: the first three, and how many more."""
    first = "; ".join(f"{site.kind} at {site.where!r}" for site in sites[:3])
    return first if len(sites) <= 3 else f"{first}; and {len(sites) - 3} more sites"
