r"""Where int8 loses more than the budget: leave those operators in float32 that lose most, and no more than needed.

The loss of each operator is measured by quantizing it alone. Errors of different operators are nearly independent, so
that what several lose together is close to the root of the sum of squares; the order by single loss is therefore a good
order in which to give operators up. How many have to go is then found by bisection with the budget's own measure on
the evaluation rows: log2 of the number of operators, not one more measurement per operator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from normdeploy.array_types import Array
from normdeploy.budget import relative_error
from normdeploy.ort.settings import Settings
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.tuning.int8 import Int8Recipe, Quantizer
from normdeploy.runtime.tuning.judge import Outcome


@dataclass(frozen=True)
class Attempt:
    """One number of operators left in float32.

    Args:
        kept: how many stay in float32. total: how many the recipe quantizes.
        file: the variant.
        outcome: what the judge says of it.
    """

    kept: int
    total: int
    file: Path
    outcome: Outcome


def rank_by_loss(
    model: Path,
    quantizer: Quantizer,
    recipe: Int8Recipe,
    rows: Mapping[str, Array],
    workspace: Path,
    *,
    seconds: float,
) -> list[str]:
    """Return the names of the recipe's operators, the one that loses most first.

    Args:
        model: the float32 model.
        quantizer: of that model.
        recipe: which operators, and how.
        rows: one batch of calibration rows.
        workspace: for the variants; one file at a time.
        seconds: when they are over, the operators not yet measured keep the order of the graph, behind the others.
            The outermost operators, which lose most as a rule, are measured first.
    """
    settings = Settings(threads=1)
    truth = [np.asarray(value, np.float64) for value in open_backend(model, settings).run(rows)]
    names = quantizer.operators(recipe)
    losses: dict[str, float] = {}
    started = time.perf_counter()
    for name in _outermost_first(names):
        if time.perf_counter() - started > seconds:
            break
        target = workspace / "alone.onnx"
        quantizer.write(target, recipe, only=[name])
        loss = relative_error(open_backend(target, settings).run(rows), truth)
        losses[name] = float("inf") if np.isnan(loss) else loss
    return sorted(names, key=lambda name: -losses.get(name, -1.0))


def _outermost_first(names: Sequence[str]) -> Iterator[str]:
    left, right = 0, len(names) - 1
    while left <= right:
        yield names[left]
        if left < right:
            yield names[right]
        left, right = left + 1, right - 1


def fewest_kept(
    quantizer: Quantizer,
    recipe: Int8Recipe,
    ranked: Sequence[str],
    workspace: Path,
    judge: Callable[[Path], Outcome],
    *,
    deadline: float,
) -> list[Attempt]:
    """Find the fewest operators to leave in float32 for a variant within the budget.

    Args:
        quantizer: of the model.
        recipe: which operators, and how; quantizing all of them is known to be outside the budget.
        ranked: the recipe's operators in the order in which they are given up.
        workspace: for the variants.
        judge: says of a file whether it is within the budget.
        deadline: on `time.monotonic`; no attempt begins later.

    Returns:
        every attempt, in the order made; the accepted one that keeps fewest is the answer, if any was accepted.
    """
    attempts: list[Attempt] = []
    linear = [index for index, name in enumerate(ranked) if quantizer.is_linear(name)]
    low, high = 0, max(linear, default=0) + 1  # low is outside the budget; from high on no linear layer is quantized
    while high - low > 1 and time.monotonic() < deadline:
        kept = (low + high) // 2
        target = workspace / f"{recipe.file_stem}.{kept}.onnx"
        quantizer.write(target, recipe, keep=ranked[:kept])
        outcome = judge(target)
        attempts.append(Attempt(kept, len(ranked), target, outcome))
        low, high = (low, kept) if outcome.accepted else (kept, high)
    return attempts
