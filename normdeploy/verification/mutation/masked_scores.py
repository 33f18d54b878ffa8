"""Mutants of the number that hides keys: how far below zero a hidden key's score is shows in no output.

(1 - m) * -10000 is added to the scores in front of a Softmax; m is 1 where a key counts and 0 elsewhere. A scale off by
one in 1000 adds 10 to every score that counts, which a Softmax does not see, and leaves the hidden ones at
-10000, which weigh 0 as they do at -10010. No mask tells the two apart, though the path is alive.

So a mutant is harmless where all that its site writes goes to a Softmax, through nothing but moves and sums, and in
every row seen, with it and without it, the same keys weigh 0, by far more than the other scores vary, while the scores
of all others move by one amount. Some row must show that the site hides keys: without it they weigh something.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.verification.mutation.mutants import Mutant, Site
from normdeploy.verification.mutation.rerun import CleanRun, CleanRuns

_NOTHING = 150.0
"""A score so far below a row's largest weighs exp(-150) = 1e-65: 0 in float32, whose smallest number is 1e-45."""

_SPARE = 8.0
"""How many times further below the hidden scores have to be than all others are apart, whatever rows come yet."""


def only_masked_scores(clean_runs: CleanRuns, site: Site, mutant: Mutant) -> str:
    """Return in a sentence that a mutant moves hidden scores further below the others, no more; "" where it does more.

    Args:
        clean_runs: one clean run per input family, of the graph that the site is in. site, mutant: what survived.
    """
    if site.inner or not site.is_affine:
        return ""
    behind = _softmaxes(clean_runs.evaluator.graph, site.output)
    if not behind:
        return ""
    shown, least = False, math.inf
    for clean_run in clean_runs:
        wrong = mutant.apply(clean_run.inputs(site))
        right = clean_run.kept[site.output]
        if wrong.shape != right.shape:
            return ""
        runs = [_scores(clean_run, site, value, behind) for value in (right, wrong, torch.zeros_like(right))]
        for before, after, without in zip(*runs, strict=True):
            spare = _spare(before, after, clean_run.case.roundoff)
            if spare is None:
                return ""
            least = min(least, spare)
            shown |= bool((_hidden(before) & ~_hidden(without)).any())
    if not shown:
        return ""
    where = ", ".join(repr(node.name or str(node.outputs[0].name)) for node in behind[:3])
    return (
        f"undetectable and harmless here: it is added to the scores of Softmax {where}, and in every row seen "
        f"the hidden ones weigh 0 with and without it, {least:.3g} lower than they need be; the others move together"
    )


def _softmaxes(graph: ir.Graph, name: str) -> list[ir.Node]:
    """Return the Softmaxes that read all that depends on a value, through moves and sums; [] where others do."""
    found: dict[ir.Node, None] = {}
    start = next((v for node in graph for v in node.outputs if v.name == name), None)
    queue, met = ([] if start is None else [start]), set()
    while queue:
        value = queue.pop()
        if value in met:
            continue
        met.add(value)
        if value.is_graph_output():
            return []
        for node, index in value.uses():
            if is_standard(node, "Softmax"):
                found[node] = None
            elif node.graph is graph and (has(node, Trait.ADDS) or (has(node, Trait.MOVES) and index == 0)):
                queue += node.outputs
            else:
                return []
    return list(found)


def _scores(clean_run: CleanRun, site: Site, value: Tensor, behind: Sequence[ir.Node]) -> list[Tensor]:
    """Return what each Softmax reads where a site writes a value, the axis it sums over last."""
    names = [str(node.inputs[0].name) for node in behind if node.inputs[0] is not None]
    with torch.no_grad():
        found = clean_run.evaluator.run(dict(clean_run.case.family.feeds), replace={site.output: value}, fetch=names)
    axes = [node.attributes.get_int("axis", -1) for node in behind]
    return [found[name].movedim(axis, -1) for name, axis in zip(names, axes, strict=True)]


def _below(scores: Tensor) -> Tensor:
    """Return how far each score is below the largest of its row; 0 in a row without any."""
    return (scores.amax(-1, keepdim=True) - scores).nan_to_num(nan=0.0, posinf=math.inf)


def _hidden(scores: Tensor) -> Tensor:
    return _below(scores) > _NOTHING


def _spare(before: Tensor, after: Tensor, roundoff: float) -> float | None:
    """Return by how much hidden scores are further below than they need be; None where a weight changes, or may."""
    hidden = _hidden(before)
    if before.shape != after.shape or not torch.equal(hidden, _hidden(after)):
        return None
    counts = ~hidden & before.isfinite()
    moved = torch.where(counts, after - before, math.nan)
    if bool((counts & ~after.isfinite()).any()):
        return None
    low, high = (torch.where(counts, moved, end) for end in (math.inf, -math.inf))
    apart = high.amax(-1) - low.amin(-1)
    if bool((apart > roundoff).any()):
        return None
    if not bool(hidden.any()):
        return math.inf
    spread = max(float(torch.where(counts, _below(scores), 0.0).max()) for scores in (before, after))
    gap = min(float(torch.where(hidden, _below(scores), math.inf).min()) for scores in (before, after))
    spare = gap - _NOTHING - _SPARE * spread
    return spare if spare > 0 else None
