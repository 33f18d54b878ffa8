"""What must agree exactly: number, names, dtypes and shapes of the outputs, NaN, infinities, integers.

Comparisons with NaN are false, NumPy broadcasts and unsigned integers wrap: each of these has let a wrong file pass
elsewhere, so none of them is left to an arithmetic comparison here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from normdeploy.array_types import Array


def signature_problems(expected: Sequence[Array], got: Sequence[Array], names: Sequence[str]) -> list[str]:
    """Return one sentence per difference in count, dtype or shape; empty if there is none.

    Args:
        expected: the reference's outputs in their own dtypes. got: the file's. names: for the messages.
    """
    problems = []
    if len(expected) != len(got):
        problems.append(
            f"the file returns {len(got)} outputs ({', '.join(names[: len(got)])}); "
            f"the reference returns {len(expected)}"
        )
    for i, (want, have) in enumerate(zip(expected, got, strict=False)):
        name = names[i] if i < len(names) else str(i)
        if want.dtype != have.dtype:
            problems.append(f"output {name!r} has dtype {have.dtype} in the file; the reference has {want.dtype}")
        if want.shape != have.shape:
            problems.append(f"output {name!r} has shape {have.shape} in the file; the reference has {want.shape}")
    return problems


def is_float(array: Array) -> bool:
    """True for floating dtypes, bfloat16 included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def nowhere_finite(arrays: Sequence[Array]) -> bool:
    """Tell whether floats hold no finite number at all."""
    return all(is_float(array) and array.size and not np.isfinite(array).any() for array in arrays)


def nonfinite_problems(truth: Array, eager: Array, got: Array, name: str) -> tuple[list[str], list[str], Array]:
    """Compare NaN positions and signs of infinities.

    A float32 overflow where the float64 truth is finite is no logic error if eager overflows there too.

    Args:
        truth: float64. eager, got: as run.

    Returns:
        failures, notes, and a mask of the elements whose error may be measured (finite on all three sides).
    """
    y, e, o = (np.asarray(a, np.float64) for a in (truth, eager, got))
    finite = np.isfinite(y) & np.isfinite(e) & np.isfinite(o)
    failures: list[str] = []
    notes: list[str] = []
    if finite.all():
        return failures, notes, finite
    limit = float(np.finfo(np.float32).max) if got.dtype == np.float32 else np.inf
    rounded = np.where(np.abs(y) > limit, np.copysign(np.inf, y), y)
    like_truth = _same_kind(rounded, o)
    like_eager = _same_kind(e, o)
    bad = ~finite & ~like_truth & ~like_eager
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        failures.append(
            f"output {name!r} is {o[at]} at {list(at)} where the reference is {y[at]} in float64 and {e[at]} in eager "
            f"({int(bad.sum())} such elements)"
        )
    odd = ~finite & ~_same_kind(rounded, e)
    if odd.any():
        at = tuple(int(i) for i in np.argwhere(odd)[0])
        notes.append(f"eager itself gives {e[at]} at {list(at)} of {name!r} where float64 gives {y[at]}")
    return failures, notes, finite


def _same_kind(a: Array, b: Array) -> Array:
    same = (np.isnan(a) & np.isnan(b)) | (np.isposinf(a) & np.isposinf(b)) | (np.isneginf(a) & np.isneginf(b))
    return np.asarray(same | (np.isfinite(a) & np.isfinite(b)))


def exact_differences(expected: Array, got: Array) -> Array:
    """Return the mask of elements of an integer, boolean or string output that differ.

    The comparison is of values as they are stored: nothing is subtracted, so nothing wraps.
    """
    if expected.dtype != got.dtype or expected.shape != got.shape:
        raise ValueError("dtype and shape are compared first")
    result: Any = expected != got
    return np.asarray(result, dtype=bool)


def shortened(texts: Sequence[str], limit: int = 2) -> str:
    """Join sentences, each once, and count what is left out."""
    unique = list(dict.fromkeys(texts))
    return "; ".join(unique[:limit] + ([f"and {len(unique) - limit} more"] if len(unique) > limit else []))


def plural(count: int, word: str, words: str = "") -> str:
    """Return "1 site", "2 sites"; ``words`` for several, where that is not ``word`` with an s."""
    return f"{count} {word}" if count == 1 else f"{count} {words or word + 's'}"
