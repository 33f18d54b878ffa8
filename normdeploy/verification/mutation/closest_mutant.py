"""Which known mistake a wrong output looks like: the mutant whose outputs it matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normdeploy.array_types import Array
from normdeploy.graph import weight_bytes
from normdeploy.verification.bounds.criteria import finite_alike, outputs_apart
from normdeploy.verification.check_context import Context
from normdeploy.verification.family_case import Case
from normdeploy.verification.mutation.estimates import LARGEST
from normdeploy.verification.mutation.explaining import mutants_at, nearest, to_first_order
from normdeploy.verification.mutation.mutants import Mutant, Site
from normdeploy.verification.mutation.rerun import CleanRun, site_groups
from normdeploy.verification.sides.exact_agreement import is_float

_CLOSE = 0.1
"""A mutant is named if it leaves at most this share of the error unexplained."""


_HARDLY = 0.01
"""A mutant of the nearest site that leaves no more is what was made; no other one is looked for."""

TRIED = 6
"""Mutants of each graph that are run, of all sites, most telling first."""


@dataclass(frozen=True)
class _Close:
    """A mutant that explains most of an error, and the share that it leaves."""

    unexplained: float
    site: Site
    mutant: Mutant


@dataclass(frozen=True)
class Likely:
    """The known mistake that a wrong output looks like.

    Args:
        text: in words; "" where none is like it. unexplained: the share of the error it leaves.
    """

    text: str = ""
    unexplained: float | None = None


def likeliest(context: Context, case: Case, outputs: Sequence[Array], *, value: str = "") -> Likely:
    """Return the mutant that explains an output best, in words; nothing if none explains nine tenths of the error.

    To run every mutant would take many times as long as a verdict. The mutants of the site nearest to where the file
    departs are run; where none of them leaves hardly anything unexplained, so are those of all sites that explain most
    to first order.

    Args:
        case: where the failure shows. outputs: the wrong outputs.
        value: name of the first value, or result of the first operator, that is wrong; "" where that is not known.
    """
    if context.canonical is None or context.evaluator is None or len(outputs) != len(case.truth):
        return Likely()
    runs = [(evaluator, sites, nearest(evaluator.graph, sites, value)) for evaluator, sites in site_groups(context)]
    found: list[_Close] = []
    for evaluator, _, near in runs:
        if near:
            found += _explaining(case, CleanRun(evaluator, case, near), mutants_at(near), outputs)
    if not any(close.unexplained < _HARDLY for close in found) and weight_bytes(context.subject.model) <= LARGEST:
        for evaluator, sites, near in runs:
            if sites:
                run = CleanRun(evaluator, case, sites, graded=True)
                tried = to_first_order(run, [site for site in sites if site not in near], outputs, seed=context.seed)
                found += _explaining(case, run, tried[:TRIED], outputs)
    best = min(found, key=lambda close: close.unexplained, default=None)
    return Likely() if best is None else Likely(_in_words(best.site, best.mutant), best.unexplained)


def closest_mutant(case: Case, clean_run: CleanRun, sites: Sequence[Site], outputs: Sequence[Array]) -> str:
    """Return in words the mutant of some sites that explains an output; "" if none explains nine tenths of the error.

    Args:
        case: where the failure shows. clean_run: a clean run on it. sites: whose mutants. outputs: the wrong outputs.
    """
    found = _explaining(case, clean_run, mutants_at(sites), outputs) if len(outputs) == len(case.truth) else []
    best = min(found, key=lambda close: close.unexplained, default=None)
    return "" if best is None else _in_words(best.site, best.mutant)


def _in_words(site: Site, mutant: Mutant) -> str:
    return f"output matches {mutant.words or mutant.name} at {site.where!r}"


def _explaining(
    case: Case, clean_run: CleanRun, tried: Sequence[tuple[Site, Mutant]], outputs: Sequence[Array]
) -> list[_Close]:
    """Return those of some mutants that explain nine tenths of an error, by exact runs."""
    plain = _distance(case.truth, outputs)
    if not plain:
        return []
    found: list[_Close] = []
    for site, mutant in tried:
        distance = _distance(clean_run.mutated(site, mutant), outputs)
        if distance is not None and distance / plain < _CLOSE:
            found.append(_Close(distance / plain, site, mutant))
    return found


def _distance(a: Sequence[Array], b: Sequence[Array]) -> float | None:
    """Return the RMS difference over the RMS value, worst over the float outputs; None if shapes differ."""
    if any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        return None
    alike = all(finite_alike(x, y) for x, y in zip(a, b, strict=True) if is_float(x))
    return outputs_apart(b, a) if alike else None
