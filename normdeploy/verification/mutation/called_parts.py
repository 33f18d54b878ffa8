r"""Mutants that a call of the module into torch would have shown, held against the part of the trace that it became.

A site may have no value of its own in the module: attention's scale lies inside one call, which the trace spells out.
And what the module's values differ from the trace's by in the middle of a network is what rounding all constants in
front did, far more than an epsilon there. So calls are compared one by one: where the tensors that a call reads and the
one it returns are values of the traced graph (to 1e-6 in three products of some elements with fixed signs), the
operators between these are evaluated in float64 on the very tensors that the call read, and what they give is held
against what it returned, all elements of it. The difference d that is found is that of this part alone. What a site
reads counts as read by each later call, where an earlier one returned it: a norm whose rows the trace cuts lies between
two calls.

A mutant of a site in between is evaluated on the same tensors. Had the trace been that mutant, this comparison would
have been off by what it changes. It is seen where that is twice the larger of 10 d and 1e-13, relative to the result's
2-norm. Neither a derivative nor a probability is in this, and nothing is said of mutants that move no call's result
(equal keys hide a query's scale), nor of sites between values that no call returns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import Evaluator, constant_tensor
from normdeploy.graph.operator_evaluation import promote
from normdeploy.graph.walk import bodies_of
from normdeploy.verification.float64_chain import FINEST
from normdeploy.verification.mutation.mutants import Site
from normdeploy.verification.mutation.rerun import Target, by_graph
from normdeploy.verification.mutation.signed_products import SAME, Fingerprints, Prints
from normdeploy.verification.mutation.watched_sites import MARGIN, REPEATED, Key, SiteWatch, constants_of
from normdeploy.verification.sides.flat_values import Feeds

_BEHIND = 16
"""How many operators behind a site the result of a call that spans it is looked for."""

_SHOWN = 2.0
"""From so many times what a comparison lets pass on, a mutant is not asked about again."""

_LARGEST = 64
"""Operators of the largest part that one call is taken to have become; what makes masks of sizes and ids is none."""


class CallWatch:
    """Watches one float64 run of the traced graph, then the calls of one run of the module.

    Args:
        evaluator: of the traced graph. targets: the mutants asked about. feeds: the inputs of both runs.
        sites: watches the same runs, in front of this: what it shows is not asked here. The graph's run is watched by
            :meth:`graph_hook` then; without it, the run is made here.

    Attributes:
        ratios: by a target's place, how many times what the comparison lets pass its mutant would have shown.
        work: what was evaluated of the graph besides the first run, in whole runs.
    """

    def __init__(
        self, evaluator: Evaluator, targets: Sequence[Target], feeds: Feeds, *, sites: SiteWatch | None = None
    ) -> None:
        self._evaluator, self._targets, self._feeds, self._sites = evaluator, targets, feeds, sites
        self._prints = Fingerprints()
        self.ratios: dict[int, float] = {}
        self.work = 0.0
        graph = evaluator.graph
        self._values = {str(v.name): v for node in graph for v in node.outputs}
        self._order = {node: place for place, node in enumerate(graph)}
        self._constants = _constants(targets) if sites is None else sites.constants
        held = {*feeds, *self._constants}
        self._behind: dict[str, list[int]] = {}
        self._made: dict[str, tuple[Tensor, int] | None] = {}  # what sites read, as calls of the module returned it
        self._at: dict[str, list[int]] = {}
        self._open = set(range(len(targets)))
        self._discrete: set[ir.Node] = set()  # operators whose results are no floats
        for place, target in enumerate(targets):
            site = target.site
            there = all(name in self._values or name in held for name in site.inputs if name)
            if not site.inner and site.output in self._values and there:
                self._at.setdefault(site.output, []).append(place)
                self._made |= dict.fromkeys(name for name in site.inputs if name and name not in held)
        for output, places in self._at.items():
            for name in _results_behind(self._values[output]):
                if name in self._values:  # of a body, nothing is printed
                    self._behind.setdefault(name, []).extend(places)
        self._alike: dict[torch.Size, Prints] = {}
        for name, array in feeds.items():
            self._print(name, promote(array, torch.float64))
        if self._behind and sites is None:
            self.work += 1
            with torch.no_grad():
                evaluator.run(dict(feeds), hook=self.graph_hook)

    @property
    def asks(self) -> bool:
        """True where the traced graph holds what some mutant's site reads and writes."""
        return bool(self._behind)

    def graph_hook(self, node: ir.Node, results: list[Tensor]) -> None:
        """Take in what an operator of the traced graph returns: a hook for its evaluator."""
        for output, result in zip(node.outputs, results, strict=False):
            self._print(str(output.name), result)
        if not any(result.is_floating_point() for result in results):
            self._discrete.add(node)

    def module_call(self, result: Tensor, read: Sequence[Tensor] = ()) -> None:
        """Compare what a call of the module returned with the part of the trace that reads the same.

        Args:
            result: of the call. read: the tensors that it read.
        """
        names = self._like(result)
        for name in names:
            if name in self._made:
                self._made[name] = result.detach(), result._version  # the module may write into its own
            if name in self._at and not any(map(self._asked, self._at[name])):  # what it reads is not asked for again
                read_there = {at for place in self._at[name] for at in self._targets[place].site.inputs}
                self._made |= dict.fromkeys(read_there & self._made.keys())
        for name in names:
            places = [place for place in self._behind.get(name, []) if self._asked(place)]
            if places:
                kept = {at: one for at, one in self._made.items() if one is not None}
                entries = {at: tensor for at, (tensor, version) in kept.items() if tensor._version == version}
                entries |= {at: tensor for tensor in read for at in self._like(tensor)}
                entries.pop(name, None)
                self._compare(name, entries, result.detach(), places)

    def _asked(self, place: int) -> bool:
        """Tell whether nothing showed a mutant so far."""
        if place in self._open:
            target = self._targets[place]
            ratio = 0.0 if self._sites is None else self._sites.ratio(target.site, target.mutant.name)
            if max(ratio, self.ratios.get(place, 0.0)) < _SHOWN:
                return True
            self._open.remove(place)
        return False

    def _print(self, name: str, value: Tensor) -> None:
        if value.dtype == torch.float64 and value.dim():
            products, size = self._prints.of(value)
            if 0 < size < math.inf:
                self._alike.setdefault(value.shape, Prints()).add(name, products, size)

    def _like(self, tensor: Tensor) -> list[str]:
        prints = self._alike.get(tensor.shape)
        if prints is None or tensor.dtype != torch.float64:
            return []
        products, size = self._prints.of(tensor.detach())
        return prints.like(products) if 0 < size < math.inf else []

    def _compare(self, name: str, entries: Mapping[str, Tensor], result: Tensor, places: Sequence[int]) -> None:
        part = _part(self._values[name], {*entries, *self._feeds}, self._discrete)
        for site in dict.fromkeys(self._targets[place].site for place in places):
            if part is None or self._values[site.output] not in part.values:
                continue
            mine = [place for place in places if self._targets[place].site is site]
            self._try_site(site, name, entries, result, mine, part)

    def _try_site(
        self, site: Site, name: str, entries: Mapping[str, Tensor], result: Tensor, places: Sequence[int], part: _Part
    ) -> None:
        share, size = len(part.values) / max(len(self._evaluator.graph), 1), _size(result)
        with torch.no_grad():
            self.work += share
            read = [n for n in site.inputs if n and n not in self._constants]
            if not all(n in entries or n in self._feeds or self._values[n] in part.values for n in read):
                return  # the site begins in front of what the module is known to have computed
            # the part alone is looked through, not the graph for each site
            nodes = sorted(part.nodes, key=self._order.__getitem__)
            found = self._run(entries, [name, site.output, *read], nodes)
            values = [(found[n] if n in found else self._constants[n]) if n else None for n in site.inputs]
            right = found[name]
            again = _away(site.clean(values), found[site.output])
            if right.shape != result.shape or again > REPEATED:
                return  # of this name is another value there
            limit = max(MARGIN * max(_away(right, result), again), FINEST)
            if limit > MARGIN * SAME:
                return
            for place in places:
                wrong = self._targets[place].mutant.apply(values)
                self.work += share
                moved = self._run({**entries, site.output: wrong}, [name], nodes)[name]
                change = float(torch.linalg.vector_norm(moved - right)) / size if moved.shape == right.shape else 0.0
                if math.isfinite(change):
                    self.ratios[place] = max(self.ratios.get(place, 0.0), change / limit)

    def _run(self, replace: Mapping[str, Tensor], wanted: Sequence[str], among: Sequence[ir.Node]) -> dict[str, Tensor]:
        fetch = list(dict.fromkeys(wanted))
        return self._evaluator.run(dict(self._feeds), replace=replace, fetch=fetch, among=among)


def key_of(target: Target) -> Key:
    """Return what names a mutant of a graph."""
    return target.site.where, target.site.output, target.mutant.name


def _constants(targets: Sequence[Target]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for own, sites in by_graph(targets):
        found |= constants_of(own, sites)
    return found


def _results_behind(value: ir.Value) -> list[str]:
    """Return a value and what is computed from it within some operators, by name, nearest first."""
    found, edge = {value: None}, [value]
    for _ in range(_BEHIND):
        edge = [v for at in edge for node, _ in at.uses() for v in node.outputs if v not in found]
        found |= dict.fromkeys(edge)
    return [str(v.name) for v in found]


@dataclass(frozen=True)
class _Part:
    """What lies between some values and a result: what is computed there, by which operators, constants' too."""

    values: set[ir.Value]
    nodes: set[ir.Node] = field(default_factory=set)


def _part(value: ir.Value, entries: Set[str], discrete: Set[ir.Node]) -> _Part | None:
    """Return what the operators between some values and a result compute; None where it depends on others or is large.

    Args:
        value: the result. entries: names of the values that end the way up: what a call read, and inputs of both runs.
        discrete: operators that make no floats, which do not make it large.
    """
    part, queue, computed = _Part({value}), [value], 0
    for at in queue:
        node = at.producer()
        if node is None or bodies_of(node) or computed > _LARGEST:
            return None
        computed += node not in part.nodes and node not in discrete
        part.nodes.add(node)
        for read in node.inputs:
            if read is None or read in part.values or read.name in entries:
                continue
            if constant_tensor(read) is not None:
                part.nodes.update(made for made in [read.producer()] if made is not None)
                continue
            part.values.add(read)
            queue.append(read)
    return part


def _size(value: Tensor) -> float:
    """Return a float64 tensor's 2-norm; 0 for others and for single numbers."""
    return float(torch.linalg.vector_norm(value)) if value.dtype == torch.float64 and value.dim() else 0.0


def _away(found: Tensor, wanted: Tensor) -> float:
    """Return the 2-norm of a difference over that of what is wanted; infinite where shapes differ."""
    if found.shape != wanted.shape:
        return math.inf
    return float(torch.linalg.vector_norm(found - wanted)) / max(float(torch.linalg.vector_norm(wanted)), 1e-300)
