"""Proofs that a surviving mutant is undetectable and harmless: it stays below one rounding of the site's own operator.

For a BatchNorm in evaluation both the site and its mutant are affine maps y = a x + c and y' = a' x + c'. If
|a' - a| <= u |a| and |c' - c| <= u |c| for every channel, then |y' - y| <= u (|a x| + |c|) for **every** x: what one
rounding of the products explains. For statistics norms there is no such bound over all inputs, so the claim is about
the rows seen: the largest relative change of the site's output, and it is harmless only below u. A constant that the
mutant leaves as it is (a scale of ones dropped, a shift of zeros at a padded border) is the same function everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor

from normdeploy.verification.mutation.mutants import Mutant, Site
from normdeploy.verification.mutation.rerun import CleanRuns

SAME_FUNCTION = "it is the same function here, for every input: there is nothing to detect"


def harmless(clean_runs: CleanRuns, site: Site, mutant: Mutant) -> tuple[str, bool]:
    """Return the proof as a sentence ("" where there is none), and whether it holds for every input or those seen.

    Args:
        clean_runs: one clean run per input family, of the graph that the site is in. site, mutant: what survived.
    """
    seen = ((clean_run, values) for clean_run in clean_runs for values in clean_run.calls(site))
    first, values = next(seen, (None, []))
    if first is None:
        return "", False
    constant = not site.inner and all(name in first.constants for name in site.inputs[1:] if name)
    if constant and mutant.same is not None and mutant.same(values):
        return SAME_FUNCTION, True
    roundoff = first.case.roundoff
    if mutant.affine:
        proof = _affine_proof(values, site, mutant, roundoff)
        if proof:
            return proof, True
    rows = chain([values], (more for _, more in seen))
    return _observed(rows, site, mutant, roundoff), False


def _affine_proof(values: Sequence[Tensor | None], site: Site, mutant: Mutant, roundoff: float) -> str:
    x = values[0]
    assert x is not None
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    with torch.no_grad():
        c, c_wrong = site.clean([zero, *values[1:]]), mutant.apply([zero, *values[1:]])
        a, a_wrong = site.clean([one, *values[1:]]) - c, mutant.apply([one, *values[1:]]) - c_wrong
    if torch.equal(a, a_wrong) and torch.equal(c, c_wrong):
        return SAME_FUNCTION
    # a and c come from differences of float64 results; that noise is far below u
    if bool(((a_wrong - a).abs() <= roundoff * a.abs()).all()) and bool(
        ((c_wrong - c).abs() <= roundoff * c.abs()).all()
    ):
        change = float(((a_wrong - a).abs() / a.abs().clamp_min(1e-300)).max())
        return (
            "undetectable and harmless here: it changes scale and shift by at most "
            f"{change / roundoff:.2g} u, for every input"
        )
    return ""


def _observed(seen: Iterable[Sequence[Tensor | None]], site: Site, mutant: Mutant, roundoff: float) -> str:
    worst = 0.0
    for values in seen:
        with torch.no_grad():
            right, wrong = site.clean(values), mutant.apply(values)
        worst = max(worst, change_in_roundoffs(right, wrong, roundoff))
        if worst > 1:
            return ""
    if worst == 0.0:
        return "it is the same function on every row seen: there is nothing to detect here"
    return f"undetectable and harmless here: on every row seen it changes the site's output by at most {worst:.2g} u"


def change_in_roundoffs(right: Tensor, wrong: Tensor, roundoff: float) -> float:
    """Return the largest change of a value, in units u of its numbers' rounding; infinite where it cannot be compared.

    A number's size counts together with its row's mean size, for what cancels to little is rounded as its terms are.
    """
    if right.shape != wrong.shape:
        return math.inf
    same = (wrong == right) | (wrong.isnan() & right.isnan())  # a fully masked row is NaN on both sides
    if bool(same.all()):
        return 0.0
    if not right.is_floating_point():
        return math.inf
    change = (wrong - right).abs().masked_fill(same, 0.0)
    if not bool(torch.isfinite(change).all()):
        return math.inf
    size = right.abs() + (right.abs().mean(-1, keepdim=True) if right.dim() else 0)
    return float((change / size.clamp_min(1e-300)).masked_fill(same, 0.0).max()) / roundoff
