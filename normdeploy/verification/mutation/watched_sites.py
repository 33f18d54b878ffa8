r"""Sites of the traced graph held against the module value by value, and the mutants that this comparison sees.

Where the file is confirmed for every input, samples are left with one question of logic: is the trace the module? It is
asked of the outputs (:mod:`normdeploy.verification.checks.traced`), and here of each normalization's own result. The
traced graph's float64 run leaves three numbers of a site's output y: <r, y> for three fixed patterns r of random signs.
The module's float64 run is watched call by call for a tensor of that shape with the same three numbers. Such a site was
compared with the module itself, to the difference d |y| that was found. A pattern is a product of signs by row and by
column of y as a matrix, so that one product of matrices gives all, and the sums over each channel besides.

A mutant's change c of the site's output is computed there from what the site reads. Had the trace been that mutant, the
numbers would have been off by <r, c>: by that very amount, since nothing lies between the site and the comparison. A
mutant is seen where one of them is twice what the comparison lets pass, the larger of 10 d and 1e-13. Neither a
derivative nor a probability is in this. What it does not see, by chance or because no call of the module returns the
site's value, is left to the other ways.

Where the reference is a graph itself there is no trace to doubt: the confirmed file is that very graph, for every
input, and d is 0. An affine map of stored statistics is then asked on inputs of these statistics as well as on those
that the example brings: behind a hundred layers that each double their input, a shift is below any rounding of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator
from normdeploy.graph.operator_evaluation import promote
from normdeploy.verification.float64_chain import FINEST
from normdeploy.verification.mutation.derivative import affine_map
from normdeploy.verification.mutation.mutants import BATCH_NORM, Apply, Site, Values
from normdeploy.verification.mutation.signed_products import SAME, SignedProducts
from normdeploy.verification.sides.flat_values import Feeds

REPEATED = 1e-9
"""Relative difference up to which a site, computed again from what it reads, is what the traced graph computes."""

MARGIN = 10.0
"""What the comparison lets pass over the difference that it found, as for whole outputs."""

Key = tuple[str, str, str]
"""A mutant: its site's module path, the value that it replaces, its name."""


@dataclass
class _Seen:
    """A site in the traced graph's run: its output's size (2-norm) and products, and what each mutant does to these."""

    site: Site
    shape: torch.Size
    products: Tensor
    size: float
    moved: dict[str, float] = field(default_factory=dict)
    away: float = math.inf

    def ratio(self, mutant: str, least: float = FINEST) -> float:
        """Return by how many times a mutant would have shown; 0 where nothing of the module was compared.

        Args:
            least: the relative difference that is let pass in any case.
        """
        return self.moved.get(mutant, 0.0) / max(MARGIN * self.away, least) if self.away <= SAME else 0.0


class SiteWatch:
    """Watches one float64 run of the traced graph, then one of the module.

    Args:
        graph: the traced graph. groups: sites, by the evaluator of the graph that they were found in.
        feeds: the inputs of both runs. reference: the graph is the reference itself; there is no module to watch.

    Attributes:
        constants: those that the sites read, by name.
    """

    def __init__(
        self,
        graph: ir.Graph,
        groups: Sequence[tuple[Evaluator, list[Site]]],
        feeds: Feeds,
        *,
        reference: bool = False,
    ) -> None:
        self._reference = reference
        self._signed = SignedProducts()
        self._seen: dict[torch.Size, list[_Seen]] = {}
        self._by_site: dict[tuple[str, str], _Seen] = {}
        self._joined: dict[torch.Size, tuple[Tensor, Tensor]] = {}
        there = {str(output.name) for node in graph for output in node.outputs} | set(feeds)
        self.constants: dict[str, Tensor] = {}
        self._at: dict[str, list[Site]] = {}
        self._left: Counter[str] = Counter()
        for evaluator, sites in groups:
            known = constants_of(evaluator, sites)
            for site in sites:
                read = [name for name in site.inputs if name and name not in known]
                if not site.inner and site.output in there and all(name in there for name in read):
                    self.constants |= known
                    self._at.setdefault(site.output, []).append(site)
                    self._left.update(read)
        self._kept = {name: promote(a, torch.float64) for name, a in feeds.items() if name in self._left}

    def graph_hook(self, node: ir.Node, results: list[Tensor]) -> None:
        """Take in what an operator of the traced graph returns: a hook for its evaluator."""
        for output, result in zip(node.outputs, results, strict=False):
            name = str(output.name)
            if name in self._left:
                self._kept[name] = result
            for site in self._at.pop(name, []):
                self._take(site, result)

    def module_call(self, result: Tensor, _read: Sequence[Tensor] = ()) -> None:
        """Take in what a call of the module into torch returns; what it read is not asked for."""
        if result.dtype == torch.float64 and result.shape in self._seen:
            sites = self._seen[result.shape]
            if result.shape not in self._joined:
                sizes = torch.tensor([seen.size for seen in sites], dtype=torch.float64)
                self._joined[result.shape] = torch.stack([seen.products for seen in sites]), sizes
            products, sizes = self._joined[result.shape]
            away = (products - self._signed.of(result.detach())).abs().amax(1) / sizes
            for at in torch.nonzero(away <= SAME).flatten().tolist():
                sites[at].away = min(sites[at].away, float(away[at]))

    def compared(self, least: float = FINEST) -> tuple[int, dict[Key, float]]:
        """Return how many sites were compared with the module; and by how many times each mutant would have shown.

        Args:
            least: the relative difference that is let pass in any case.
        """
        found: dict[Key, float] = {}
        matched = [seen for sites in self._seen.values() for seen in sites if seen.away <= SAME]
        for seen in matched:
            for name in seen.moved:
                found[(seen.site.where, seen.site.output, name)] = seen.ratio(name, least)
        return len(matched), found

    def ratio(self, site: Site, mutant: str) -> float:
        """Return by how many times a mutant would have shown in what was compared so far."""
        seen = self._by_site.get((site.where, site.output))
        return 0.0 if seen is None else seen.ratio(mutant)

    def _take(self, site: Site, y: Tensor) -> None:
        values = [None if not n else self._kept[n] if n in self._kept else self.constants[n] for n in site.inputs]
        for name in site.inputs:
            if name in self._left:
                self._left[name] -= 1
                if not self._left[name]:
                    del self._left[name], self._kept[name]
        size = float(torch.linalg.vector_norm(y)) if y.dtype == torch.float64 and y.dim() else 0.0
        if not 0 < size < math.inf:
            return
        seen = _Seen(site, y.shape, self._signed.of(y), size, away=0.0 if self._reference else math.inf)
        affine = _by_channel(site, y)
        rows = self._signed.rows(values[0]) if affine and values[0] is not None else None
        try:
            right = self._mapped(affine_map(site.clean, values), rows, y) if rows is not None else None
            right = self._signed.of(site.clean(values)) if right is None else right
        except GraphError:
            return  # what the site reads has a name that is another value's there, of another shape
        again = _largest(right - seen.products)
        if again > REPEATED * size:
            return  # of this name is another value there
        for mutant in site.mutants:
            if mutant.nothing:
                continue
            wrong = None
            if rows is not None and mutant.statistics is not None:
                wrong = self._mapped(affine_map(site.clean, mutant.statistics(values)), rows, y)
            elif rows is not None and mutant.affine:
                wrong = self._mapped(affine_map(mutant.apply, values), rows, y)
            if wrong is None:
                wrong = self._signed.of(mutant.apply(values))
            moved = max(_largest(wrong - seen.products) - again, 0.0) / size  # what is no doing of the mutant
            if self._reference and affine and mutant.affine:
                moved = max(moved, _moved_on_own_statistics(site, mutant.apply, values))
            if math.isfinite(moved):
                seen.moved[mutant.name] = moved
        self._by_site[site.where, site.output] = seen
        self._seen.setdefault(y.shape, []).append(seen)
        self._joined.pop(y.shape, None)

    def _mapped(self, by: tuple[Tensor, Tensor], rows: Tensor, y: Tensor) -> Tensor | None:
        """Return the products of an affine map per channel, from the rows' products of what is mapped."""
        scale, shift = by
        if len(scale) != y.shape[1] or len(shift) != y.shape[1]:
            return None
        first, second = self._signed.pattern(y.shape)
        channels = (part.repeat(y.shape[0])[:, None] for part in (scale, shift))
        s, t = channels
        return ((s * rows + t * second.sum(0)) * first).sum(0)


def _by_channel(site: Site, y: Tensor) -> bool:
    """Tell whether a site is one affine map per channel of what it reads first."""
    return site.node.op_type == BATCH_NORM and site.right is None and y.dim() > 1


def _moved_on_own_statistics(site: Site, wrong: Apply, values: Values) -> float:
    """Return what another affine map changes of a BatchNormalization's output, on inputs of its stored statistics.

    With x = m + sd n, n of mean 0 and variance 1, the output a x + b has the mean a m + b and the deviation |a| sd per
    channel; the change relative to it is that of these two.
    """
    mean, variance = values[3], values[4]
    assert mean is not None
    assert variance is not None
    deviation = (variance.double() + site.epsilon).sqrt()

    def moments(scale: Tensor, shift: Tensor) -> Tensor:
        return torch.cat([scale * mean.double() + shift, scale * deviation])

    right, other = (moments(*affine_map(apply, values)) for apply in (site.clean, wrong))
    size = float(torch.linalg.vector_norm(right))
    change = float(torch.linalg.vector_norm(other - right)) / size if size > 0 else 0.0
    return change if math.isfinite(change) else 0.0


def _largest(numbers: Tensor) -> float:
    return float(numbers.abs().max())


def constants_of(evaluator: Evaluator, sites: Sequence[Site]) -> Mapping[str, Tensor]:
    """Return the constants that sites read, by name."""
    graph = evaluator.graph
    made = {str(o.name) for node in graph if node.op_type == "Constant" for o in node.outputs}
    held = set(graph.initializers) - {str(value.name) for value in graph.inputs}
    names = {name for site in sites if not site.inner for name in site.inputs if name in made or name in held}
    return values_of(evaluator, names)


def values_of(evaluator: Evaluator, constants: Collection[str]) -> dict[str, Tensor]:
    """Return what values hold that follow from constants alone, by name."""
    blank = {name: torch.zeros(0) for name in evaluator.input_names}  # none of them reads these
    with torch.no_grad():
        return evaluator.run(blank, fetch=sorted(constants)) if constants else {}
