"""Which known mistake a wrong output looks like: the mutant whose outputs it matches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from normdeploy.verify.cases import Case
from normdeploy.verify.context import Context
from normdeploy.verify.criteria import rms
from normdeploy.verify.sensitivity import Tape, site_groups
from normdeploy.verify.structure import is_float
from normdeploy.verify.values import Array

_CLOSE = 0.1
"""A mutant is named if it leaves at most this share of the error unexplained."""


def likeliest(context: Context, case: Case, outputs: Sequence[Array]) -> dict[str, Any]:
    """Return the mutant that explains an output best, in words; {} if none explains nine tenths of the error.

    Args:
        case: where the failure shows. outputs: the wrong outputs.
    """
    if context.canonical is None or context.evaluator is None or len(outputs) != len(case.truth):
        return {}
    plain = _distance(case.truth, outputs)
    if plain is None or plain == 0:
        return {}
    best = (_CLOSE, "", "", "")
    for evaluator, sites in site_groups(context):
        if not sites:
            continue
        tape = Tape(evaluator, case, sites)
        for site in sites:
            for mutant in site.mutants:
                with torch.no_grad():
                    wrong = mutant.apply(tape.inputs(site))
                distance = _distance(tape.behind(site, wrong), outputs)
                if distance is not None and distance / plain < best[0]:
                    best = (distance / plain, site.where, site.kind, mutant.words or mutant.name)
    if not best[1]:
        return {}
    return {
        "likely": f"output matches {best[3]} at {best[1]!r}",
        "likely_where": best[1],
        "likely_kind": best[2],
        "unexplained": best[0],
    }


def _distance(a: Sequence[Array], b: Sequence[Array]) -> float | None:
    """Return the RMS difference over the RMS value, worst over the float outputs; None if shapes differ."""
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape:
            return None
        if not is_float(x):
            continue
        p, q = np.asarray(x, np.float64), np.asarray(y, np.float64)
        finite = np.isfinite(p) & np.isfinite(q)
        if bool((np.isfinite(p) != np.isfinite(q)).any()):
            return None
        worst = max(worst, rms(p[finite] - q[finite]) / (rms(q[finite]) or 1.0))
    return worst
