"""The precision that really ran, read off the size of the error.

Rounding noise is proportional to u, so the size of a run's error tells the precision that computed it, whatever dtype
the graph declares.
"""

from __future__ import annotations

import math

import numpy as np

from normdeploy.array_types import Array
from normdeploy.verification.bounds.criteria import rms
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.family_case import Case
from normdeploy.verification.sides.flat_values import UNIT_ROUNDOFF

_FORMATS: tuple[tuple[float, float, str], ...] = ((6.5, 9.5, "bfloat16 has 8"), (9.5, 12.5, "float16 and TF32 have 11"))
"""(from, to, what it is) in bits of mantissa, hidden bit included."""

_FEWEST, _MOST = 5.0, 20.0


def mantissa_bits(case: Case, index: int, output: Array, file: NoisyGraph) -> float:
    """Return the bits of mantissa that explain an output's error.

    The file's graph is run in float64 with each result rounded once at float16's u; an error 2^k times that spread
    belongs to 11 - k bits.

    Args:
        index: which output. output: as run. file: the file's graph.
    """
    bounds = case.bounds(index)
    o = np.asarray(output, np.float64)
    keep = bounds.keep & np.isfinite(o)
    error = rms(o[keep] - bounds.truth[keep])
    u = UNIT_ROUNDOFF["float16"]
    *_, found = file.spreads(case.family.feeds, roundoff=u, floor=0.0, runs=4, seed=case.seed + 5, plain=True)
    spread = found[index]
    if spread.shape != o.shape:
        return -math.log2(bounds.roundoff)
    noise = rms(np.where(np.isfinite(spread), spread, 0.0)[keep])
    if error == 0 or noise == 0:
        return -math.log2(bounds.roundoff)
    return -math.log2(u) - math.log2(error / noise)


def drop_in_words(case: Case, index: int, output: Array, file: NoisyGraph) -> str:
    """Return a sentence if an output's error is spread like rounding of a lower precision; "" otherwise.

    An error concentrated in few elements, or as large as the values, is a mistake and no precision.
    """
    bits = mantissa_bits(case, index, output, file)
    if not _FEWEST <= bits <= _MOST:
        return ""
    bounds = case.bounds(index)
    o = np.asarray(output, np.float64)
    keep = bounds.keep & np.isfinite(o)
    error = np.abs(o[keep] - bounds.truth[keep])
    if error.size >= 32 and np.count_nonzero(error > 0.1 * rms(error)) < 0.3 * error.size:
        return ""
    names = [name for low, high, name in _FORMATS if low <= bits < high]
    known = names[0] if names else f"{case.precision} has {round(-math.log2(case.roundoff))}"
    return f"provider computed in about {round(bits)} bits of mantissa ({known})"
