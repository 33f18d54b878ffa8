"""Survivors shown to be harmless: alike for every input, hidden by a mask, or cancelled behind the site."""

from __future__ import annotations

from collections.abc import Sequence

from normdeploy.graph import Evaluator
from normdeploy.verification.check_context import Context
from normdeploy.verification.family_case import Case
from normdeploy.verification.mutation.harmless import SAME_FUNCTION, harmless
from normdeploy.verification.mutation.invariant import cancels
from normdeploy.verification.mutation.lone_rows import one_row
from normdeploy.verification.mutation.masked_scores import only_masked_scores
from normdeploy.verification.mutation.mutants import Site
from normdeploy.verification.mutation.one_key import of_one_key, one_key_nodes
from normdeploy.verification.mutation.rerun import CleanRun, CleanRuns, Target
from normdeploy.verification.mutation.same_file import same_file


def prove_nothing(targets: Sequence[Target]) -> None:
    """Find the mutants that change nothing, by what they were made of or where: they are neither run nor looked for."""
    unread: dict[Site, str] = {}
    ones = {graph: one_key_nodes(graph) for graph in {target.evaluator.graph for target in targets}}
    for target in targets:
        graph = target.evaluator.graph
        if target.site not in unread:
            unread[target.site] = of_one_key(graph, target.site, ones[graph])
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


def prove_cancelling(context: Context, target: Target) -> None:
    """Find out whether what a survivor changes cancels behind its site, whatever the site reads."""
    if target.site.inner:
        return
    proof = cancels(target.evaluator, context.cases[0], target.site, target.mutant, seed=context.seed + 91)
    if proof:
        target.spare(proof)


def prove_same_file(context: Context, target: Target) -> None:
    """Find out whether a file of what a survivor computes would be this file."""
    if target.site.inner or target.evaluator is context.evaluator:
        return
    clean = CleanRun(target.evaluator, context.cases[0], [target.site])
    proof = same_file(context, clean, target.site, target.mutant)
    if proof:
        target.spare(proof)
