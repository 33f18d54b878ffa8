"""How much is checked: quick, default, thorough. What a level leaves out is listed in the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normdeploy.errors import UsageError
from normdeploy.ort.levels import OPTIMIZATIONS


@dataclass(frozen=True)
class Level:
    """One amount of checking.

    What it affords depends on the network and never on the machine: work is counted from the sizes of the operators
    (:mod:`normdeploy.verification.evaluation_cost`), in billions of multiply-adds. Exporting a network takes time by
    the number of
    its operators, whatever their sizes, and so much is what its verification may take: the default level about as much
    as ``torch.onnx.export`` (benchmarks/verdict_cost.py).

    Args:
        name: "quick", "default" or "thorough".
        work: per operator that runs, after which what is optional (further families, sizes, the input search) is left
            out. What decides between a pass and "not exercised" has an amount of its own.
        heavy: work of one evaluation of the example above which a network is taken with single rows, noise in float32
            and mutants by derivative.
        batch: rows of axis 0 in the generated families, where it is dynamic.
        noise_runs: float64 runs with noise behind S, where it is needed (at most 4 for heavy networks).
        families: at most this many generated families; None for all.
        user_rows: rows of the user's data used.
        optimization: optimization levels at which the first family is run; the deployed one runs them all.
        sensitivity: mutants are tried.
        search_steps: steps of the search for an input that kills a surviving mutant.
        sizes: sizes tried for the batch.
        localize: a failure is localized.
        depth: errors are followed along the graph.
        everywhere: every family is run at every optimization level, not only the telling ones.
        measured: S is measured in every family, not only where it decides, and what algebra confirms is sampled, too.
        exact_mutants: every mutant is run, not only those whose first-order effect is near the bound.
        probes: backward passes behind each first-order effect.
        lean: a network of which one run is much work is judged without batch companions, and at the deployed
            optimization level alone where algebra confirms the file for every input.
    """

    name: str
    work: float
    heavy: float
    batch: int
    noise_runs: int
    families: int | None
    user_rows: int
    optimization: tuple[str, ...]
    sensitivity: bool
    search_steps: int
    sizes: tuple[int, ...]
    localize: bool = True
    depth: bool = True
    everywhere: bool = False
    measured: bool = False
    exact_mutants: bool = False
    probes: int = 2
    lean: bool = False


LEVELS: dict[str, Level] = {
    "quick": Level(
        "quick", 0.0125, 0.25, 4, 4, 4, 16, ("disable", "all"), True, 0, (1, 2), depth=False, probes=1, lean=True
    ),
    "default": Level("default", 0.0625, 1.0, 4, 4, None, 64, OPTIMIZATIONS, True, 30, (1, 2, 7, 33)),
    "thorough": Level(
        "thorough",
        math.inf,
        math.inf,
        8,
        12,
        None,
        1024,
        OPTIMIZATIONS,
        True,
        200,
        (1, 2, 3, 7, 33, 65),
        everywhere=True,
        measured=True,
        exact_mutants=True,
    ),
}


def level_named(name: str) -> Level:
    """Return a level.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in LEVELS:
        raise UsageError(f"level is {name!r}; expected one of {sorted(LEVELS)}")
    return LEVELS[name]
