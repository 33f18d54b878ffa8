"""Survivors shown to be harmless: alike for every input, hidden by a mask, or cancelled behind the site."""

from __future__ import annotations

from collections.abc import Sequence

from normdeploy.graph import Evaluator
from normdeploy.verification.check_context import Context
from normdeploy.verification.evaluation_cost import UNPROVEN
from normdeploy.verification.family_case import Case
from normdeploy.verification.mutation.harmless import SAME_FUNCTION, harmless
from normdeploy.verification.mutation.invariant import find_cancelling
from normdeploy.verification.mutation.lone_rows import one_row
from normdeploy.verification.mutation.masked_scores import only_masked_scores
from normdeploy.verification.mutation.mutants import Site
from normdeploy.verification.mutation.one_key import of_one_key, one_key_nodes
from normdeploy.verification.mutation.rerun import CleanRun, CleanRuns, Target, by_site
from normdeploy.verification.mutation.same_file import same_file
from normdeploy.verification.mutation.unheard import UNHEARD, unheard
from normdeploy.verification.sides.exact_agreement import plural


def prove_nothing(targets: Sequence[Target]) -> None:
    """Find the mutants that change nothing, by what they were made of or where: they are neither run nor looked for."""
    unread: dict[Site, str] = {}
    ones = {graph: one_key_nodes(graph) for graph in {target.evaluator.graph for target in targets}}
    silent = {evaluator: unheard(evaluator) for evaluator in {target.evaluator for target in targets}}
    for target in targets:
        graph = target.evaluator.graph
        if target.site not in unread:
            unread[target.site] = of_one_key(graph, target.site, ones[graph])
            if not target.site.inner and target.site.output in silent[target.evaluator]:
                unread[target.site] = UNHEARD
        nothing = target.mutant.nothing or (target.mutant.between_rows and one_row(target.site))
        proof = SAME_FUNCTION if nothing else unread[target.site]
        if proof:
            target.spare(proof)


def prove(
    context: Context,
    groups: Sequence[tuple[Evaluator, list[Site]]],
    alive: Sequence[Target],
    cases: Sequence[Case] | None = None,
) -> None:
    """Find the survivors that are harmless, for every input or (to be tried at the site yet) for those seen.

    Args:
        cases: the families seen, all by default; one is enough for a proof that holds for every input.
    """
    if cases is None:  # what is proven for every input needs one family
        prove(context, groups, [t for t in alive if t.mutant.proven_at_once], context.cases[:1])
        alive = [t for t in alive if t.report is None]
    for evaluator, sites in groups:
        mine = [t for t in alive if t.evaluator is evaluator]
        wanted = [s for s in sites if any(t.site is s for t in mine)]
        clean_runs = CleanRuns(evaluator, cases or context.cases, wanted)
        for target in mine:
            proof, always = harmless(clean_runs, target.site, target.mutant)
            if not proof and cases is None:
                proof = only_masked_scores(clean_runs, target.site, target.mutant)
            target.harmless = proof if always or cases is None else ""
            if always:
                target.spare(proof)


def prove_cancelling(context: Context, targets: Sequence[Target]) -> None:
    """Find out which survivors' changes cancel behind their sites, whatever these read, as far as the work goes.

    Few files get here that algebra confirms for every input; to the others as much more is given as to their samples.
    """
    until, left = context.effort.spent + UNPROVEN * context.effort.deciding, 0
    for site, _, mine in by_site(targets):
        if context.effort.spent >= until:
            left += 1
        elif not site.inner:
            find_cancelling(context, mine)
    if left:
        context.leave_out(f"whether what is changed at {plural(left, 'site')} cancels behind it")


def prove_same_file(context: Context, target: Target) -> None:
    """Find out whether a file of what a survivor computes would be this file."""
    if target.site.inner or target.evaluator is context.evaluator:
        return
    clean = CleanRun(target.evaluator, context.cases[0], [target.site])
    proof = same_file(context, clean, target.site, target.mutant)
    if proof:
        target.spare(proof)
