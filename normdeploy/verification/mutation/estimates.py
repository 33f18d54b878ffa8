"""Mutants killed by their first-order effect, a family each, until few enough are left to be run one by one.

What kills: an effect so far beyond the bound that what a first-order estimate leaves out cannot bring it back
(:func:`normdeploy.verification.mutation.derivative.needed`). What comes near the bound is run exactly. That the
estimates are to be believed on this network is tried: the two that killed with the least room are run exactly as well,
and where one of them does not die of it, nothing here is believed and every mutant is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from normdeploy.array_types import Array
from normdeploy.graph import Evaluator, weight_bytes
from normdeploy.verification.check_context import Context
from normdeploy.verification.evaluation_cost import SINGLE, elements
from normdeploy.verification.family_case import Case
from normdeploy.verification.mutation.derivative import Sensitivities, needed
from normdeploy.verification.mutation.mutants import Site
from normdeploy.verification.mutation.proofs import prove
from normdeploy.verification.mutation.rerun import CleanRun, Target, by_graph, difference_ratio

_RANDOM_BELOW = 5.0
"""An estimate that is further below the bound than this is no reason to run a mutant on that family."""

LARGEST = 1 << 29
"""Bytes of weights up to which gradients are taken in float64."""

FEW = 8
"""Survivors so few are run exactly on the next family; more are tried by derivative first."""

_TRIED = 2
"""Estimates of a network that are tried by an exact run: those that killed with the least room."""


@dataclass(frozen=True)
class _Kill:
    """A mutant that an estimate killed.

    Args:
        target: the mutant. case: on what. run: of its graph on it. room: how far beyond what counts it is.
    """

    target: Target
    case: Case
    run: CleanRun
    room: float


def alive_of(targets: Sequence[Target]) -> list[Target]:
    """Return the mutants that nothing was found of yet."""
    return [target for target in targets if not target.killed and target.report is None]


def dead_sites(context: Context, targets: Sequence[Target]) -> set[Site]:
    """Return the sites that no output depends on to first order, on the example: one backward pass for all.

    Such a site shows nothing of the runtime's kernels behind it, whatever algebra shows of the file.
    """
    case, dead = context.cases[0], set[Site]()
    for evaluator, sites in by_graph([t for t in targets if not t.site.inner]):
        context.effort.spend(2, case.family.feeds)
        run = CleanRun(evaluator, case, sites, graded=True)
        generator = torch.Generator().manual_seed(context.seed)
        signs = {
            i: torch.randint(0, 2, y.shape, generator=generator).to(y.dtype).mul_(2).sub_(1)
            for i, y in enumerate(run.results)
            if y.is_floating_point() and y.requires_grad and y.numel()
        }
        found = run.gradients(signs, last=True) if signs else {}
        dead |= {s for s in sites if s.output not in found or not bool((found[s.output] != 0).any())}
    return dead


def kill_by_derivatives(
    context: Context, groups: Sequence[tuple[Evaluator, list[Site]]], targets: Sequence[Target]
) -> None:
    """Kill by backward passes, a family each, what they kill with room to spare.

    Args:
        groups: the sites by the graph that they are evaluated on. targets: their mutants.
    """
    for number, case in enumerate(sorted(context.cases, key=lambda c: elements(c.family.feeds))):
        if number == 1:
            prove(context, groups, [t for t in alive_of(targets) if t.mutant.proven_at_once], context.cases[:1])
        alive = [t for t in alive_of(targets) if not t.site.inner]
        if number and len(alive) <= FEW:
            return
        kills = [kill for group in groups for kill in _on_one_graph(context, case, group, alive)]
        if not _hold(context, kills):
            for kill in kills:
                kill.target.revive()
            context.not_checked.append("mutants by derivative (an exact run did not confirm one): each was run")
            return


def _on_one_graph(
    context: Context, case: Case, group: tuple[Evaluator, list[Site]], targets: Sequence[Target]
) -> list[_Kill]:
    """Estimate the mutants of one graph on one family; those near the bound are run exactly."""
    evaluator, sites = group
    mine = [t for t in targets if t.evaluator is evaluator]
    if not mine:
        return []
    chain = chain_of(context, case)
    run, gradients, exact = _graded(context, evaluator, case, [s for s in sites if any(t.site is s for t in mine)])
    kill, least, kills = case.constants.kill, case.constants.kill / _RANDOM_BELOW, []
    for target in mine:
        found = gradients.estimate(target.site, target.mutant, run.inputs(target.site), run.kept[target.site.output])
        limit = kill * needed(found.relative, context.level.probes)
        # S, and what else takes runs of its own, only where the bound without it is exceeded and nothing else kills
        ratio = finer = 0.0
        if chain and exact and found.ratio * gradients.coarser >= least:
            finer = found.ratio * gradients.finer
        if found.ratio >= least and (finer < limit or case.rounding.measured):
            ratio = found.ratio * gradients.wider
        if chain and not exact and ratio < limit:  # no float64 gradients of a network so large: what may be seen is run
            ratio = max(ratio, min(found.ratio * gradients.coarser, kill))
        if max(ratio, finer) >= limit:
            target.seen(ratio if ratio >= limit else 0.0, finer, case.family.name, kill)
            target.note = "estimated by a directional derivative"
            kills.append(_Kill(target, case, run, max(ratio, finer) / limit))
        elif max(ratio, finer) >= least:
            context.effort.spend(1, case.family.feeds)
            target.seen(*effect(context, run, target), case.family.name, kill)
    return kills


def _graded(
    context: Context, evaluator: Evaluator, case: Case, sites: Sequence[Site]
) -> tuple[CleanRun, Sensitivities, bool]:
    """Return a float64 run, gradients, and whether these are float64's.

    Gradients that cancel are nothing but rounding in float32, which the chain's bound would take for an effect; so they
    are taken in float64 where the chain is asked, unless autograd's copy of the weights would be too large.
    """
    probes, seed = context.level.probes, context.seed
    chain, large = chain_of(context, case), weight_bytes(context.subject.model) > LARGEST
    if not context.heavy or (chain and not large):
        context.effort.spend(1 + probes, case.family.feeds)
        run = CleanRun(evaluator, case, sites, graded=True)
        return run, Sensitivities(run, probes=probes, seed=seed), True
    context.effort.spend(1 + (1 + probes) * SINGLE, case.family.feeds)
    single = CleanRun(Evaluator(evaluator.graph, dtype=torch.float32), case, sites, graded=True)
    return CleanRun(evaluator, case, sites), Sensitivities(single, probes=probes, seed=seed), False


def _hold(context: Context, kills: Sequence[_Kill]) -> bool:
    """Run the estimates that killed with the least room exactly; False where one of them does not die of it."""
    for kill in sorted(kills, key=lambda k: k.room)[:_TRIED]:
        context.effort.spend(1, kill.case.family.feeds)
        if max(effect(context, kill.run, kill.target)) < kill.case.constants.kill:
            return False
    return True


def chain_of(context: Context, case: Case) -> bool:
    """Tell whether the float64 chain holds, and was followed on a case."""
    return context.links.hold and case.chain is not None


def effect(context: Context, run: CleanRun, target: Target) -> tuple[float, float]:
    """Return how many times a mutant exceeds the rounding bound and, where that does not kill it, the chain's.

    What the chain kills is not held against a bound that has yet to be measured: 0 stands for it.
    """
    case, outputs = run.case, run.mutated(target.site, target.mutant)
    kill = case.constants.kill
    if not chain_of(context, case):
        return difference_ratio(case, run.outputs, outputs), 0.0
    if case.rounding.measured:
        ratio = difference_ratio(case, run.outputs, outputs)
        return ratio, 0.0 if ratio >= kill else _finer(run, outputs)
    finer = _finer(run, outputs)
    return 0.0 if finer >= kill else difference_ratio(case, run.outputs, outputs), finer


def _finer(run: CleanRun, outputs: Sequence[Array]) -> float:
    """Return how many times the chain's bound some outputs differ from a run's own."""
    # Without the parts that take runs of their own the bound is smaller: what does not exceed it needs no such run
    ratio = difference_ratio(run.case, run.outputs, outputs, bounds=partial(Case.chain_bounds, spread=False))
    if ratio < run.case.constants.kill:
        return ratio
    return difference_ratio(run.case, run.outputs, outputs, bounds=Case.chain_bounds)
