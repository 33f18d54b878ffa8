"""Sites that no input of the model reaches as their mutants need: feed them directly, everything else in place.

Behind an embedding no text makes a row whose spread is near epsilon, so an epsilon ten times smaller moves no output.
For such a site the reference's graph, the graph its mutants are made in and the file are cut at the site's input. What
was computed there becomes an input, which gets rows of every family. The file's two halves of the question stay the
same: its graph in float64 against the reference's, and the runtime against float64, under the same criterion. A mutant
that moves the outputs of the cut graph by twice the bound is killed at the site.

What is fed stands for the result of an operator, which in the whole graph has its rounding; so has it here. (A fold
that multiplies x + b by s errs by u |s x| where b cancels x: exact numbers fed there would call that a wrong file.)

A cut is believed only where it is seen to be right: with the value that the model computes, and with other samples'
values in its place, the cut graphs agree. What this shows and what it does not: docs/verification.md.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator
from normdeploy.verification.check_context import Context
from normdeploy.verification.evaluation_cost import NOISY, SINGLE
from normdeploy.verification.family_case import Case
from normdeploy.verification.judging.flips import FlipRecord
from normdeploy.verification.judging.float64_outputs import logic_problems
from normdeploy.verification.mutation.closest_mutant import closest_mutant
from normdeploy.verification.mutation.cut_sides import Cut
from normdeploy.verification.mutation.mutants import Site
from normdeploy.verification.mutation.rerun import CleanRun, Target, by_site, difference_ratio, site_groups
from normdeploy.verification.mutation.site_cuts import cut_at, values_to_cut_at
from normdeploy.verification.record.answers import Check, Killer, Localization, Question, Side, Status
from normdeploy.verification.record.measured import Ratios
from normdeploy.verification.runs import judge_outputs
from normdeploy.verification.samples.families import make_families, small_spread_first
from normdeploy.verification.samples.family import Family, Kind
from normdeploy.verification.samples.ranges import InputRange
from normdeploy.verification.sides.exact_agreement import plural, shortened
from normdeploy.verification.sides.grids import rounding_themselves
from normdeploy.verification.sides.kernels import one_pass_variance

_EACH = 3 + 8 * SINGLE
"""Evaluations of a cut graph for one family, runs with noise and mutants aside: reference, file, sessions."""

KILLED = "exercised at the site: fed there directly, since no model input reaches it"


def probe_sites(context: Context, targets: Sequence[Target]) -> list[Check]:
    """Feed the sites of surviving mutants directly; report what is killed there, note why where nothing can be.

    Args:
        targets: survivors; those killed get a report, the others a longer note.

    Returns:
        The answer; nothing where no site could be fed.
    """
    made: dict[tuple[Evaluator, str], Cut | str] = {}
    tried: dict[str, float] = {}
    until, left = context.effort.last(), 0
    for site, evaluator, known in by_site(targets):
        mine = [t for t in known if t.report is None]  # what was fed in front may have killed them
        if not mine:
            continue
        why = "it stands in the body of a control flow operator" if site.inner else "no input of the model reaches it"
        for entry in [] if site.inner else values_to_cut_at(site, evaluator):
            if context.effort.spent >= until:
                why = "the work that the level gives to it was spent"
                break
            found = cut_at(context, site, evaluator, entry, made)
            if isinstance(found, str):
                why = found
                continue
            held = _values_of(found)
            if not _lies_among(held, site):  # what adds an epsilon to a sum of another value and a number
                why = "what it reads does not depend on one value alone"
                continue
            worst, failure = _feed(context, found, mine, _behind(held, evaluator, targets), until)
            if failure is not None:
                return [failure]
            tried[site.where] = max(tried.get(site.where, 0.0), worst)
            mine = [t for t in mine if t.report is None]
            if not mine:
                break
        left += bool(mine) and context.effort.spent >= until
        for target in mine:
            fed = site.where in tried
            target.note += (
                ", nor do rows fed at the site itself" if fed else f"; the site cannot be fed directly: {why}"
            )
    if left:
        context.leave_out(f"feeding {plural(left, 'site')} directly")
    if not tried:
        return []
    killed = sum(t.report is not None for t in targets)
    places = plural(len(tried), "site")
    text = f"{places} fed directly, which killed {plural(killed, 'mutant')} that no model input shows"
    return [Check(Question.SITE, Status.PASS, text, Ratios(max(tried.values()), sites=tuple(sorted(tried))))]


def _behind(held: Set[str], evaluator: Evaluator, targets: Sequence[Target]) -> list[Target]:
    """Return the survivors whose sites lie wholly in a cut graph of these values, behind the cut or beside it."""
    return [t for t in targets if t.evaluator is evaluator and not t.site.inner and _lies_among(held, t.site)]


def _values_of(made: Cut) -> set[str]:
    """Return the names of the values that a cut graph holds."""
    graph = made.mutated.graph
    return (
        {str(v.name) for node in graph for v in node.outputs}
        | {str(v.name) for v in graph.inputs}
        | {*graph.initializers}
    )


def _lies_among(held: Set[str], site: Site) -> bool:
    """Tell whether all that a site reads, and its result, are among some values."""
    return held >= {*filter(None, site.inputs), site.output}


def _feed(
    context: Context, made: Cut, targets: Sequence[Target], behind: Sequence[Target], until: float
) -> tuple[float, Check | None]:
    """Feed one site with every family until all its mutants are dead; return the worst ratio, and a failure.

    A norm gets constant rows in any case: its 0 / 0 is a case of its own, which no mutant that scales anything shows.
    Behind an affine map there is none; rows at which the reference has no number at all are not held against the file.

    Args:
        targets: the site's. behind: these and others that may die of what is fed here.
        until: work spent in all after which no further family is fed.
    """
    spec = InputRange(made.names[0], np.dtype(np.float32), made.value.shape, {})
    worst = 0.0
    for family in _rows(spec, context.seed + 57, targets):
        alive = [t for t in targets if t.report is None]
        if not alive and (family.kind is not Kind.CONSTANT or targets[0].site.is_affine):
            continue
        if context.effort.spent >= until:
            break
        alive += [t for t in behind if t.report is None and t not in alive]
        case = made.case(context, family.name, family.feeds[spec.name])
        context.effort.spend(made.share * (_EACH + context.noise_runs * NOISY + len(alive)))
        problems, ratio = judged_cut(context, made, case)
        if problems and context.heavy:  # what float32's noise, made visible, cannot show (a sine of 1e9) float64's does
            case = made.case(context, family.name, family.feeds[spec.name], exact=True)
            problems, ratio = judged_cut(context, made, case)
        if case.shows_nothing and targets[0].site.is_affine:
            continue  # no number comes of such rows, and none that the model makes is like them
        worst = max(worst, ratio)
        if problems:
            return worst, _failed(context, made, case, problems, targets)
        clean_run = CleanRun(made.mutated, case, [t.site for t in alive])
        for target in alive:
            moved = difference_ratio(case, clean_run.outputs, clean_run.mutated(target.site, target.mutant))
            if moved >= case.constants.kill:
                here = target.site.where == made.where
                note = KILLED if here else f"exercised behind {made.where!r}, which was fed directly"
                target.show(moved, case.family.name, note, by=Killer.SITE)
    return worst, None


def _rows(spec: InputRange, seed: int, targets: Sequence[Target]) -> list[Family]:
    """Return the families to feed: for a norm those with a spread near its epsilon first, near 1e-5 if it has none."""
    if targets[0].site.is_affine:
        return list(make_families([spec], seed=seed))
    return small_spread_first(spec, seed, max(target.site.epsilon for target in targets) or 1e-5)


def judged_cut(context: Context, made: Cut, case: Case) -> tuple[list[str], float]:
    """Hold the cut file against a case, in float64 and under the deployed settings at every optimization level.

    What flips at its quantizers explain has to agree where no optimizer runs, but for kernels that quantize themselves.
    """
    problems, worst = logic_problems(case, made.file.logic(case.family.feeds))
    if problems:
        return problems, worst
    settings = [replace(s, level=level) for s in context.settings for level in context.level.optimization]
    waiting, flips = list(dict.fromkeys([*context.settings, *settings])), FlipRecord(made.file)
    while waiting:
        setting = waiting.pop(0)
        try:
            outputs = made.file.run(case.family.feeds, setting)
        except GraphError as error:
            return [f"{case.family.name}: {error}"], worst
        found, ratio = judge_outputs(context, case, outputs, setting, name_precision=False, part=flips)
        problems, worst = problems + found, max(worst, ratio)
        unmoved = replace(setting, level="disable")
        if flips.found and setting == unmoved:
            if not rounding_themselves(made.file.model):
                problems.append(
                    f"{case.family.name}: steps of a quantized grid are off where no optimizer runs ({setting})"
                )
        elif flips.found and unmoved not in waiting:
            waiting.append(unmoved)
        flips.found.clear()
    return problems, worst


def _failed(context: Context, made: Cut, case: Case, problems: list[str], targets: Sequence[Target]) -> Check:
    outputs = made.file.logic(case.family.feeds)
    export = bool(logic_problems(case, outputs)[0])
    text = (
        f"fed directly at {made.where!r} with rows that no model input was found to make, the file does not compute "
        f"what the reference computes: {shortened(problems)}"
    )
    known = "" if export else one_pass_variance(made.file.model.graph)
    text += f"; {known}" if known else ""
    words = _closest(context, made, case, targets, outputs) if export else ""
    side = Side.EXPORT if export else Side.RUNTIME
    context.localization = Localization(case.family.name, side, where=made.where, op=targets[0].site.kind, likely=words)
    return Check(Question.SITE, Status.FAIL, text)


def _closest(context: Context, made: Cut, case: Case, targets: Sequence[Target], outputs: Sequence[Array]) -> str:
    """Name the mutant that explains the outputs: an epsilon written out at the site, or one of those that survived."""
    written = [s for _, sites in site_groups(context) for s in sites if s.is_epsilon and s.where == made.where]
    survived = list(dict.fromkeys(t.site for t in targets))
    for evaluator, sites in ((made.reference.evaluator, written), (made.mutated, survived)):
        words = closest_mutant(case, CleanRun(evaluator, case, sites), sites, outputs) if sites else ""
        if words:
            return words
    return ""
