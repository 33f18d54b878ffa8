"""Which mutants may explain a wrong output: those where the file departs, and what one backward pass says of all.

With e the error of the outputs, J^T e comes from one backward pass for all sites, and <J^T e, dx> = <e, J dx> is
to first order the share of e that a mutant's change dx of its site's output makes. A second direction of random signs
tells those apart that move the outputs in other ways besides. It says which mutants to run, never that one is it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.verification.mutation.derivative import ChannelSums, affine_map
from normdeploy.verification.mutation.mutants import BATCH_NORM, Mutant, Site
from normdeploy.verification.mutation.rerun import CleanRun


def nearest(graph: ir.Graph, sites: Sequence[Site], value: str) -> list[Site]:
    """Return the site whose output is nearest to a value in the graph's order; none where the graph has no such value.

    Args:
        graph: of the sites. value: its name; "" where it is not known.
    """
    places = {str(v.name): place for place, node in enumerate(graph) for v in node.outputs}
    here = [site for site in sites if site.output in places]
    if value not in places or not here:
        return []
    return [min(here, key=lambda site: abs(places[site.output] - places[value]))]


def mutants_at(sites: Sequence[Site]) -> list[tuple[Site, Mutant]]:
    """Return all mutants of some sites."""
    return [(site, mutant) for site in sites for mutant in site.mutants]


def to_first_order(
    run: CleanRun, sites: Sequence[Site], outputs: Sequence[Array], *, seed: int
) -> list[tuple[Site, Mutant]]:
    """Return the mutants of some sites, those first that explain most of an error to first order.

    Args:
        run: a graded clean run of the sites' graph. outputs: the wrong outputs. seed: of the random signs.
    """
    errors = {i: _error(y, o) for i, (y, o) in enumerate(zip(run.results, outputs, strict=True)) if _moves(y, o)}
    sizes = {i: float(error.norm()) for i, error in errors.items()}
    wrong = [i for i, size in sizes.items() if size > 0]
    if not wrong:
        return mutants_at(sites)
    generator = torch.Generator().manual_seed(seed)
    outer = {i: errors[i] / (sizes[i] ** 2 * len(wrong)) for i in wrong}
    signs = {i: _signs(errors[i], generator) / (sizes[i] * math.sqrt(len(wrong))) for i in wrong}
    gradients = [run.gradients(outer, last=False), run.gradients(signs, last=True)]
    shares = [1.0, sum(float((signs[i] * errors[i]).sum()) for i in wrong)]
    found: list[tuple[float, Site, Mutant]] = []
    for site in sites:
        pulls = [gradient[site.output] for gradient in gradients if site.output in gradient]
        if site.inner or len(pulls) < len(gradients):  # nothing is known of it: as if it explained nothing
            found += [(1.0, site, mutant) for mutant in site.mutants]
        else:
            found += _left(run, site, pulls, shares)
    return [(site, mutant) for _, site, mutant in sorted(found, key=lambda row: row[0])]


def _moves(y: Tensor, o: Array) -> bool:
    return y.is_floating_point() and y.requires_grad and tuple(y.shape) == o.shape


def _error(y: Tensor, o: Array) -> Tensor:
    """Return what is wrong of an output; 0 where either is no number."""
    right = y.detach()
    error = torch.from_numpy(np.array(o, np.float64)).to(right) - right
    return torch.where(error.isfinite(), error, 0.0)


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, like.shape, generator=generator).to(like).mul_(2).sub_(1)


def _left(
    run: CleanRun, site: Site, gradients: Sequence[Tensor], shares: Sequence[float]
) -> list[tuple[float, Site, Mutant]]:
    """Return what share of the error each mutant of a site leaves, as far as the products with two directions show.

    Args:
        gradients: of the directions, at the site's output. shares: the products of the error itself.
    """
    values, clean = run.inputs(site), run.kept[site.output]
    sums: ChannelSums | None = None
    found: list[tuple[float, Site, Mutant]] = []
    with torch.no_grad():
        for mutant in site.mutants:
            if mutant.affine and site.node.op_type == BATCH_NORM:
                sums = sums or ChannelSums(gradients, values, site, clean)
                products, _ = sums.of(*affine_map(mutant.apply, values))
            else:
                change = mutant.apply(values) - clean
                products = [float((gradient * change).sum()) for gradient in gradients]
            left = math.hypot(*(share - product for share, product in zip(shares, products, strict=True)))
            found.append((left if math.isfinite(left) else math.inf, site, mutant))
    return found
