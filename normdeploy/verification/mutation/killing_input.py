"""Search for an input that kills a surviving mutant: first by scale, then by gradient.

Epsilon shows where a site's variance is small, so inputs of falling scale are tried first. Where the network does not
shrink with its input (a bias in front), the input is moved by gradient ascent on the logarithm of the mutant's
effect, through the float64 graph.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from normdeploy.array_types import Arrays
from normdeploy.graph import Evaluator
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.verification.mutation.mutants import Mutant, Site
from normdeploy.verification.mutation.rerun import CleanRun, difference_ratio
from normdeploy.verification.samples.families import make_families
from normdeploy.verification.samples.family import Family

if TYPE_CHECKING:
    from normdeploy.verification.check_context import Context

SHARE = 0.8
"""Share of a level's work after which the search stops at first: feeding the site itself (probes.py) comes before
the rest of it."""

_SCALES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 10.0)


def search(
    context: Context, evaluator: Evaluator, site: Site, mutant: Mutant, *, until: float
) -> tuple[Family, float] | None:
    """Return the best input found and its ratio of effect to rounding bound; None if no input is a float.

    Args:
        context: its level says how long to search. evaluator: of the canonical graph. site, mutant: what survived.
        until: work spent in all at which the search is cut short.
    """
    floats = [spec.name for spec in context.specs if spec.is_float and not spec.is_mask]
    if not floats:
        return None
    name = f"searched for {mutant.name} at {site.where}"
    base = next(make_families(context.specs, seed=context.seed + 31)).feeds
    best: tuple[Family, float] | None = None
    for scale in _SCALES:
        feeds = {k: (v * scale).astype(v.dtype) if k in floats else v for k, v in base.items()}
        best = _better(context, evaluator, site, mutant, Family(name, feeds), best)
        if (best is not None and best[1] >= 2 * context.cases[0].constants.kill) or context.effort.spent >= until:
            return best
    start = best[0].feeds if best is not None else base
    moved = _ascend(context, evaluator, site, mutant, start, floats, until=until)
    if moved is not None:
        best = _better(context, evaluator, site, mutant, Family(name, moved), best)
    return best


def _better(
    context: Context,
    evaluator: Evaluator,
    site: Site,
    mutant: Mutant,
    family: Family,
    best: tuple[Family, float] | None,
) -> tuple[Family, float] | None:
    case = context.case(family, runs=4)
    context.effort.spend(2, family.feeds)
    clean_run = CleanRun(evaluator, case, [site])
    ratio = difference_ratio(case, clean_run.outputs, clean_run.mutated(site, mutant))
    return (family, ratio) if best is None or ratio > best[1] else best


def _ascend(
    context: Context,
    evaluator: Evaluator,
    site: Site,
    mutant: Mutant,
    start: Arrays,
    floats: list[str],
    *,
    until: float,
) -> Arrays | None:
    """Ascend log RMS(effect) - log RMS(output) from an input by normalized gradient steps; None without a gradient."""
    inputs: dict[str, Tensor] = {k: torch.from_numpy(np.array(v)) for k, v in start.items()}
    for name in floats:
        inputs[name] = inputs[name].double().requires_grad_(True)
    names = [] if site.inner else [name for name in site.inputs if name]
    fetch = [*dict.fromkeys(names), *evaluator.output_names]
    step = 0.3
    best_value = -math.inf
    best_inputs: dict[str, Tensor] | None = None
    for _ in range(context.level.search_steps):
        if context.effort.spent >= until:
            break
        context.effort.spend(4, start)
        with torch.enable_grad():
            found = evaluator.run(inputs, fetch=fetch)
            if site.inner:
                moved = evaluator.run(inputs, stand_ins={site.node: mutant.apply})
            else:
                wrong = mutant.apply([found[n] if n else None for n in site.inputs])
                moved = evaluator.run(inputs, replace={site.output: wrong})
            objective = _objective(found, moved, evaluator.output_names)
        if objective is None or not objective.requires_grad:
            return None if best_inputs is None else _rounded(best_inputs, start)
        value = float(objective.detach())
        if value > best_value:
            best_value, best_inputs = value, {k: v.detach().clone() for k, v in inputs.items()}
        else:
            step /= 2
        gradients = torch.autograd.grad(objective, [inputs[n] for n in floats], allow_unused=True)
        for name, gradient in zip(floats, gradients, strict=True):
            if gradient is None or not bool(torch.isfinite(gradient).all()):
                continue
            size = gradient.square().mean().sqrt()
            spread = inputs[name].detach().square().mean().sqrt()
            if float(size) > 0:
                moved_input = inputs[name].detach() + step * spread * gradient / size
                inputs[name] = moved_input.requires_grad_(True)
    return None if best_inputs is None else _rounded(best_inputs, start)


def _objective(found: dict[str, Tensor], moved: dict[str, Tensor], outputs: list[str]) -> Tensor | None:
    terms = []
    for name in outputs:
        a, b = found[name], moved[name]
        if a.is_floating_point() and a.shape == b.shape:
            effect = (b - a).square().sum()
            terms.append(torch.log(effect + 1e-300) - torch.log(a.square().sum() + 1e-300))
    return torch.stack(terms).max() if terms else None


def _rounded(inputs: dict[str, Tensor], like: Arrays) -> Arrays:
    return {k: to_numpy(v).astype(like[k].dtype) for k, v in inputs.items()}
