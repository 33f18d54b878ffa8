"""One mutant and its effect: a clean float64 run kept at the sites, and what lies behind a site run again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array, Floats
from normdeploy.graph import Evaluator, constant_tensor
from normdeploy.graph.evaluate import Hook, StandIn
from normdeploy.graph.walk import bodies_of
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.verification.bounds.criteria import Bounds, judge_error
from normdeploy.verification.check_context import Context
from normdeploy.verification.family_case import Case
from normdeploy.verification.mutation.mutant_sites import sites_of
from normdeploy.verification.mutation.mutants import Apply, Mutant, Site
from normdeploy.verification.mutation.mutate_affine import affine_sites, epsilon_sites
from normdeploy.verification.record.answers import Killer, MutantReport
from normdeploy.verification.sides.exact_agreement import is_float


class CleanRun:
    """One clean float64 run of a graph, kept at the sites, so that a mutant re-runs only what lies behind its site.

    Args:
        evaluator: of the graph. case: the inputs. sites: whose inputs and outputs are kept.
        stand_ins: what computes some operators in their place, in every run.
        graded: keep what gradients at the sites' outputs need, until :meth:`gradients` is asked for the last time.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        case: Case,
        sites: Sequence[Site],
        stand_ins: Mapping[ir.Node, StandIn] | None = None,
        *,
        graded: bool = False,
    ) -> None:
        self.evaluator, self.case, self._stand_ins = evaluator, case, dict(stand_ins or {})
        self._graph = evaluator.graph
        outer = [site for site in sites if not site.inner]
        constants = {n for site in outer for n in site.inputs if n} & _constants(self._graph)
        names = dict.fromkeys(n for s in outer for n in (*s.inputs, s.output) if n and n not in constants)
        outputs = evaluator.output_names
        self._calls: dict[ir.Node, list[list[Tensor | None]]] = {}
        recording = {site.node: self._recording(site) for site in sites if site.inner}
        self.leaves: dict[str, Tensor] = {}
        hook = self._leaf({site.output for site in outer}) if graded else None
        with torch.set_grad_enabled(graded):
            found = evaluator.run(
                {name: torch.from_numpy(np.array(array)) for name, array in case.family.feeds.items()},
                fetch=[*names, *constants, *outputs],
                hook=hook,
                stand_ins=self._stand_ins | recording,
            )
        self.results = [found[name] for name in outputs] if graded else []
        self.kept: dict[str, Tensor] = {name: found[name].detach() for name in names}
        self.constants = {name: found[name] for name in constants}
        self.outputs: list[Array] = [to_numpy(found[name]) for name in outputs]

    def _leaf(self, wanted: Collection[str]) -> Hook:
        """Return a hook that makes the values named start gradients, and keeps them."""

        def hook(node: ir.Node, results: list[Tensor]) -> list[Tensor]:
            for position, output in enumerate(node.outputs[: len(results)]):
                if output.name in wanted and results[position].is_floating_point():
                    self.leaves[str(output.name)] = results[position] = results[position].requires_grad_(True)
            return results

        return hook

    def gradients(self, weights: Mapping[int, Tensor], *, last: bool) -> dict[str, Tensor]:
        """Return the gradients, at the sites' outputs, of the outputs' sum with some weights; a graded run's only.

        Args:
            weights: by the output's place. last: nothing more will be asked, and what gradients need may go.
        """
        names = list(self.leaves)
        found = torch.autograd.grad(
            [self.results[i] for i in weights],
            [self.leaves[n] for n in names],
            grad_outputs=list(weights.values()),
            retain_graph=not last,
            allow_unused=True,
        )
        if last:
            self.leaves, self.results = {}, []
        return {n: g.detach() for n, g in zip(names, found, strict=True) if g is not None}

    def _recording(self, site: Site) -> Apply:
        calls = self._calls.setdefault(site.node, [])

        def apply(values: Sequence[Tensor | None]) -> Tensor:
            calls.append(list(values))
            return site.clean(values)

        return apply

    def calls(self, site: Site) -> list[list[Tensor | None]]:
        """Return what a site reads each time it runs: once in the main graph, any number of times in a body."""
        return self._calls.get(site.node, []) if site.inner else [self.inputs(site)]

    def inputs(self, site: Site) -> list[Tensor | None]:
        """Return the values that a site of the main graph reads."""
        return [None if not n else self.kept[n] if n in self.kept else self.constants[n] for n in site.inputs]

    def mutated(self, site: Site, mutant: Mutant) -> list[Array]:
        """Return the graph's outputs with a mutant in its site's place."""
        with torch.no_grad():
            if not site.inner:
                return self.behind(site, mutant.apply(self.inputs(site)))
            found = self.evaluator.run(
                dict(self.case.family.feeds), stand_ins=self._stand_ins | {site.node: mutant.apply}
            )
        return [to_numpy(found[name]) for name in self.evaluator.output_names]

    def behind(self, site: Site, wrong: Tensor) -> list[Array]:
        """Return the graph's outputs with the output of a site of the main graph replaced."""
        dependent = downstream(self._graph, site.output)
        replace = {name: tensor for name, tensor in self.kept.items() if name not in dependent}
        replace[site.output] = wrong
        with torch.no_grad():
            found = self.evaluator.run(dict(self.case.family.feeds), replace=replace, stand_ins=self._stand_ins)
        return [to_numpy(found[name]) for name in self.evaluator.output_names]


class CleanRuns:
    """Clean runs of several families, each made when it is first looked at: the first one may tell enough.

    Args:
        evaluator: of the graph. cases: the families. sites: whose inputs and outputs are kept.
    """

    def __init__(self, evaluator: Evaluator, cases: Sequence[Case], sites: Sequence[Site]) -> None:
        self.evaluator, self._cases, self._sites = evaluator, cases, sites
        self._made: list[CleanRun] = []

    def __iter__(self) -> Iterator[CleanRun]:
        for place, case in enumerate(self._cases):
            if place == len(self._made):
                self._made.append(CleanRun(self.evaluator, case, self._sites))
            yield self._made[place]


def _constants(graph: ir.Graph) -> set[str]:
    """Return the names of the graph's constants."""
    made = (output for node in graph for output in node.outputs)
    return set(graph.initializers) | {str(output.name) for output in made if constant_tensor(output) is not None}


def downstream(graph: ir.Graph, name: str) -> set[str]:
    """Return the names of every value that depends on ``name``, itself included."""
    reached = {name}
    for node in graph:
        if any(value is not None and value.name in reached for value in node.inputs):
            reached.update(str(output.name) for output in node.outputs)
        elif bodies_of(node):
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
                worst = max(worst, _ratio(case, i, error, bounds(case, i)))
    if worst == 0.0:
        for i, (a, b) in enumerate(zip(clean, outputs, strict=True)):
            if not is_float(a):
                different = np.asarray(a != b)
                if different.any() and bool((different & ~case.ties(i)).any()):
                    return float("inf")
    return worst


def _ratio(case: Case, index: int, error: Floats, bounds: Bounds) -> float:
    """Return an error over its bound; where decisions could have turned by rounding, without these elements."""
    ratio = judge_error(error, bounds).ratio
    if ratio >= 1 and case.noisy is not None and case.noisy.decides:
        if case.undecided(index):
            return 0.0
        return judge_error(np.where(case.ties(index), 0.0, error), bounds).ratio
    return ratio


@dataclass
class Target:
    """One mutant, the best kill so far, and why its survival would say nothing (``harmless``)."""

    evaluator: Evaluator
    site: Site
    mutant: Mutant
    ratio: float = 0.0
    chain_ratio: float = 0.0
    family: str = ""
    killed: Killer | None = None
    note: str = ""
    harmless: str = ""
    unsearched: bool = False
    report: MutantReport | None = None

    def seen(self, ratio: float, chain_ratio: float, family: str, kill: float) -> None:
        """Take in one family's answer."""
        if ratio > self.ratio or not self.family:
            self.ratio, self.family = ratio, family
        self.chain_ratio = max(self.chain_ratio, chain_ratio)
        if self.ratio >= kill:
            self.killed = Killer.ROUNDING
        elif self.chain_ratio >= kill:
            self.killed = Killer.FLOAT64

    def spare(self, proof: str) -> None:
        """Report it as harmless."""
        self.report = MutantReport(self.mutant.name, False, self.ratio, self.family, proof, harmless=True)

    def show(self, ratio: float, family: str, note: str, by: Killer = Killer.ROUNDING) -> None:
        """Report it as killed by an input that is none of the families'."""
        self.report = MutantReport(self.mutant.name, True, ratio, family, note, by=by)

    def revive(self) -> None:
        """Take back that it was killed."""
        self.ratio = self.chain_ratio = 0.0
        self.family = self.note = ""
        self.killed = None


def by_graph(targets: Sequence[Target]) -> list[tuple[Evaluator, list[Site]]]:
    """Return the sites of some mutants, each once, by the graph that they are evaluated on."""
    found: dict[Evaluator, dict[Site, None]] = {}
    for target in targets:
        found.setdefault(target.evaluator, {})[target.site] = None
    return [(evaluator, list(sites)) for evaluator, sites in found.items()]


def by_site(targets: Sequence[Target]) -> list[tuple[Site, Evaluator, list[Target]]]:
    """Return some mutants by their sites, in the order in which these run."""
    groups: dict[Site, tuple[Site, Evaluator, list[Target]]] = {}
    for target in targets:
        groups.setdefault(target.site, (target.site, target.evaluator, []))[2].append(target)
    places = {str(v.name): i for _, e, _ in groups.values() for i, n in enumerate(e.graph) for v in n.outputs}
    return sorted(groups.values(), key=lambda group: places.get(group[0].output, len(places)))


def site_groups(context: Context) -> list[tuple[Evaluator, list[Site]]]:
    """Return the sites by the graph that they are evaluated on; looked for once."""
    if context.sites_by_graph is None:
        context.sites_by_graph = _site_groups(context)
    return context.sites_by_graph


def _site_groups(context: Context) -> list[tuple[Evaluator, list[Site]]]:
    assert context.canonical is not None
    assert context.evaluator is not None
    assert context.reference.graph is not None
    canonical = Evaluator(context.canonical)
    operators = sites_of(canonical.graph)
    known: dict[str, list[float]] = {}
    for site in operators:
        known.setdefault(site.where, []).append(site.node.attributes.get_float("epsilon", 1e-5))
    spelled = affine_sites(context.canonical)
    epsilon = epsilon_sites(context.reference.graph, known)
    return [(canonical, operators + spelled), (context.evaluator, epsilon)]
