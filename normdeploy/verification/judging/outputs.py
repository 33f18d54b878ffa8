"""A candidate's outputs held against a case: shapes, what is not finite, integers, rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normdeploy.array_types import Array
from normdeploy.verification.bounds.criteria import Judgement, judge
from normdeploy.verification.family_case import Case
from normdeploy.verification.sides.exact_agreement import exact_differences, is_float, nonfinite_problems

_DOUBTFUL = 4.0
"""Ratio of error to bound up to which S is measured anew: a few runs may have drawn it small in one of many blocks."""

_ANOTHER_BRANCH = 16.0
"""Ratio of error to a bound of eager's own error alone from which a decision that turned is looked for before S is
measured: S is of the size of that error (docs/verification.md, "Evidence for the constants")."""


@dataclass(frozen=True)
class OutputResult:
    """One output held against its case.

    Args:
        index: which output. problems: failures, in sentences. notes: remarks.
        judgement: of a float output that was judged. ties: elements left out as undecidable.
    """

    index: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    judgement: Judgement | None
    ties: int = 0

    @property
    def holds(self) -> bool:
        """True where nothing differs beyond rounding; an error that is NaN does not hold."""
        return not self.problems and (self.judgement is None or self.judgement.ratio <= 1)


def hold_against(
    case: Case, outputs: Sequence[Array], *, eager: bool = True, exact: bool = True, refined: bool = True
) -> list[OutputResult]:
    """Hold a candidate's outputs against the case: shapes, non-finite values, integers, rounding.

    Args:
        outputs: the candidate's, in order.
        eager: count eager's error in the bound.
        exact: dtypes must agree (False for float64 candidates).
        refined: measure S to the end, and anew where an output is little beyond its bound.
    """
    results = []
    for i, (y, o) in enumerate(zip(case.truth, outputs, strict=True)):
        name = case.names[i]
        want = case.eager[i].dtype if exact else None
        if want is not None and o.dtype != want:
            results.append(
                OutputResult(i, (f"output {name!r} has dtype {o.dtype}; the reference has {want}",), (), None)
            )
        elif y.shape != o.shape:
            results.append(_shape_result(case, i, name, y, o))
        elif is_float(y):
            results.append(_float_result(case, i, name, o, eager=eager, refined=refined))
        else:
            results.append(_exact_result(case, i, name, y, o))
    return results


def _shape_result(case: Case, i: int, name: str, y: Array, o: Array) -> OutputResult:
    dynamic = case.noisy is not None and len(y.shape) == len(o.shape) and bool(case.ties(i).size) and case.ties(i).all()
    if dynamic:
        return OutputResult(
            i, (), (f"the shape of {name!r} turns on a tie: {y.shape} or {o.shape}",), None, int(y.size)
        )
    return OutputResult(i, (f"output {name!r} has shape {o.shape}; the reference has {y.shape}",), (), None)


def _exact_result(case: Case, i: int, name: str, y: Array, o: Array) -> OutputResult:
    different = exact_differences(y.astype(o.dtype) if y.dtype.kind == o.dtype.kind else y, o)
    if not different.any():
        return OutputResult(i, (), (), None)
    if case.undecided(i):
        return _undecided(case, i)
    ties = case.ties(i)
    wrong = different & ~ties
    tied = int((different & ties).sum())
    if wrong.any():
        at = tuple(int(k) for k in np.argwhere(wrong)[0])
        text = (
            f"output {name!r} is {o[at]} at {list(at)}; the reference is {y[at]} ({int(wrong.sum())} of {y.size} differ"
        )
        return OutputResult(i, (text + (", beyond what ties explain)" if tied else ")"),), (), None, tied)
    return OutputResult(i, (), (f"{tied} elements of {name!r} are decided by a margin within the bound",), None, tied)


def _undecided(case: Case, i: int) -> OutputResult:
    size = int(np.size(case.truth[i]))
    note = f"{case.names[i]!r} hangs on decisions within the bound in {case.found_ties(i)} or more of {size} elements"
    return OutputResult(i, (), (f"{note}: not judged in this family",), None, size)


def _float_result(case: Case, i: int, name: str, o: Array, *, eager: bool, refined: bool) -> OutputResult:
    failures, notes, finite = nonfinite_problems(case.truth[i], case.eager[i], o, name)
    candidate = np.where(np.isfinite(np.asarray(o, np.float64)), np.asarray(o, np.float64), 0.0)
    judgement = judge(candidate, case.bounds(i, keep=finite, eager=eager, spread=False))
    if eager and judgement.ratio > _ANOTHER_BRANCH and case.turns_at_once(i):  # ahead of the many runs that S takes
        return _undecided(case, i)
    while judgement.ratio > 1:  # no more runs than it takes: S only grows
        if (not refined or case.settled()) and case.rounding.hardly_reaches(judgement.ratio):
            if refined:  # by how much a file is wrong that fails anyway needs no further digit
                case.rounding.settle()
                judgement = judge(candidate, case.bounds(i, keep=finite, eager=eager, spread=False))
            break
        if not case.rounding.more():
            break
        judgement = judge(candidate, case.bounds(i, keep=finite, eager=eager, spread=False))
    if refined and 1 < judgement.ratio <= _DOUBTFUL and case.rounding.refine():
        judgement = judge(candidate, case.bounds(i, keep=finite, eager=eager))
    tied = 0
    if judgement.ratio > 1 and case.noisy is not None and case.noisy.decides:
        if case.undecided(i):
            return _undecided(case, i)
        ties = case.ties(i)
        if ties.any():
            tied = int(ties.sum())
            judgement = judge(candidate, case.bounds(i, keep=finite & ~ties, eager=eager))
            notes = [*notes, f"{tied} elements of {name!r} hang on decisions within the bound and are left out"]
    return OutputResult(i, tuple(failures), tuple(notes), judgement, tied)
