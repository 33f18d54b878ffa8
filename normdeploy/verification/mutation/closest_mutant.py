"""Which known mistake a wrong output looks like: the mutant whose outputs it matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normdeploy.array_types import Array
from normdeploy.verification.bounds.criteria import finite_alike, outputs_apart
from normdeploy.verification.check_context import Context
from normdeploy.verification.family_case import Case
from normdeploy.verification.mutation.mutants import Mutant, Site
from normdeploy.verification.mutation.rerun import CleanRun, site_groups
from normdeploy.verification.sides.exact_agreement import is_float

_CLOSE = 0.1
"""A mutant is named if it leaves at most this share of the error unexplained."""


@dataclass(frozen=True)
class Likely:
    """The known mistake that a wrong output looks like.

    Args:
        text: in words; "" where none is like it. unexplained: the share of the error it leaves.
    """

    text: str = ""
    unexplained: float | None = None


def likeliest(context: Context, case: Case, outputs: Sequence[Array]) -> Likely:
    """Return the mutant that explains an output best, in words; nothing if none explains nine tenths of the error.

    Args:
        case: where the failure shows. outputs: the wrong outputs.
    """
    if context.canonical is None or context.evaluator is None:
        return Likely()
    best: tuple[float, Site, Mutant] | None = None
    for evaluator, sites in site_groups(context):
        if sites:
            found = _closest(case, CleanRun(evaluator, case, sites), sites, outputs)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
    if best is None:
        return Likely()
    unexplained, site, mutant = best
    return Likely(_in_words(site, mutant), unexplained)


def closest_mutant(case: Case, clean_run: CleanRun, sites: Sequence[Site], outputs: Sequence[Array]) -> str:
    """Return in words the mutant of some sites that explains an output; "" if none explains nine tenths of the error.

    Args:
        case: where the failure shows. clean_run: a clean run on it. sites: whose mutants. outputs: the wrong outputs.
    """
    best = _closest(case, clean_run, sites, outputs)
    return _in_words(best[1], best[2]) if best is not None else ""


def _in_words(site: Site, mutant: Mutant) -> str:
    return f"output matches {mutant.words or mutant.name} at {site.where!r}"


def _closest(
    case: Case, clean_run: CleanRun, sites: Sequence[Site], outputs: Sequence[Array]
) -> tuple[float, Site, Mutant] | None:
    plain = _distance(case.truth, outputs) if len(outputs) == len(case.truth) else None
    if not plain:
        return None
    best: tuple[float, Site, Mutant] | None = None
    for site in sites:
        for mutant in site.mutants:
            distance = _distance(clean_run.mutated(site, mutant), outputs)
            if distance is not None and distance / plain < (_CLOSE if best is None else best[0]):
                best = (distance / plain, site, mutant)
    return best


def _distance(a: Sequence[Array], b: Sequence[Array]) -> float | None:
    """Return the RMS difference over the RMS value, worst over the float outputs; None if shapes differ."""
    if any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        return None
    alike = all(finite_alike(x, y) for x, y in zip(a, b, strict=True) if is_float(x))
    return outputs_apart(b, a) if alike else None
