"""How much is checked: quick, default, thorough. What a level leaves out is listed in the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normdeploy.errors import UsageError


@dataclass(frozen=True)
class Level:
    """One amount of checking.

    Args:
        name: "quick", "default" or "thorough".
        seconds: wall time after which optional work (further families, input search, exact mutants) is left out.
        batch: rows of axis 0 in the generated families, where it is dynamic.
        noise_runs: float64 runs with noise behind S (4 for slow networks).
        families: at most this many generated families; None for all.
        user_rows: rows of the user's data used.
        optimization: optimization levels at which the first family is run; the deployed one runs them all.
        sensitivity: mutants are tried.
        search_steps: steps of the search for an input that kills a surviving mutant.
        sizes: sizes tried for each dynamic dimension.
        slow: processor seconds of one float64 run of the example, or half of those of a run with noise, above which
            a network counts as slow (single rows, noise in float32, mutants by derivative): a hundredth of
            ``seconds``. Another program's load does not count.
        localize: a failure is localized.
    """

    name: str
    seconds: float
    batch: int
    noise_runs: int
    families: int | None
    user_rows: int
    optimization: tuple[str, ...]
    sensitivity: bool
    search_steps: int
    sizes: tuple[int, ...]
    slow: float
    localize: bool = True


_ALL = ("disabled", "basic", "extended", "layout", "all")

LEVELS: dict[str, Level] = {
    "quick": Level("quick", 10.0, 4, 8, 4, 16, ("disabled", "all"), True, 0, (1, 2), 0.1),
    "default": Level("default", 45.0, 4, 8, None, 64, _ALL, True, 30, (1, 2, 7), 0.4),
    "thorough": Level("thorough", 3600.0, 8, 12, None, 1024, _ALL, True, 200, (1, 2, 3, 5, 7, 16), math.inf),
}


def level_named(name: str) -> Level:
    """Return a level.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in LEVELS:
        raise UsageError(f"level is {name!r}; expected one of {sorted(LEVELS)}")
    return LEVELS[name]
