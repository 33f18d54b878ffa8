"""Is a candidate within the budget? Asked of its outputs alone, whatever made them.

Two questions, never mixed. One that says it computes in float32 must pass the verifier's float32 criterion; if it does
not, either its errors look like the rounding of a lower precision (then it is treated as that precision), or it
computes something else (then it is out, whatever the budget). One of lower precision is held against the loss that the
user states, on the user's own data, with the float64 evaluation of the reference as truth.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from normdeploy.array_types import Array
from normdeploy.budget import Budget
from normdeploy.errors import InputError, UsageError
from normdeploy.graph import load_graph
from normdeploy.intervals import Interval
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.family_case import Case, make_case
from normdeploy.verification.judging.outputs import hold_against
from normdeploy.verification.judging.precision import drop_in_words, mantissa_bits
from normdeploy.verification.samples.example import example_from_file
from normdeploy.verification.samples.families import make_families
from normdeploy.verification.samples.family import user_families
from normdeploy.verification.samples.ranges import batch_name, input_specs, resized
from normdeploy.verification.sides.flat_values import Signature, to_torch
from normdeploy.verification.sides.graph_reference import GraphReference
from normdeploy.verification.sides.two_sides import EagerReference, Reference

RunFeeds = Callable[[Mapping[str, Array]], Sequence[Array]]

_NOISE_RUNS = 4
_CASE_ROWS = 4
_CASE_SECONDS = 20.0
_FAMILIES = 5
_TRUTH_SECONDS = 60.0
_CHUNK = 32
_MOST_ROWS = 2048
_SAME_BITS = 3.0
_SHOWS = 0.01  # of the rounding bound: where nothing is rounded, on zeros say, every precision is exact
_CALIBRATION_ROWS = 128
_SEPARATE_FROM = 192  # with fewer rows than this, calibration and evaluation share them


@dataclass(frozen=True)
class Outcome:
    """What the judge says of one candidate.

    Args:
        accepted: within the budget.
        precision: what it computes in, as declared or, where that is not true, as measured.
        reason: why it was rejected, in a sentence; empty when accepted.
        loss: what was measured: "rounding" is the worst error over what float32 rounding explains (at most 1 passes).
    """

    accepted: bool
    precision: str
    reason: str = ""
    loss: Mapping[str, float] = field(default_factory=dict)


class Judge:
    """Truth and bounds, computed once for all candidates.

    Args:
        path: the model under tuning.
        budget: what may be lost.
        data: the user's rows: input name to array, rows along the first axis; needed for a lossy budget.
        reference: whose float64 evaluation is the truth: a module, an ONNX file or graph, or None for ``path`` itself.
        sizes: sizes of dynamic dimensions other than the batch, by word, for made-up inputs.
        seed: of made-up inputs and noise.
        fixed: rows in every call, where the graph insists on a number; 0 where any number goes.

    Raises:
        UsageError: a lossy budget without data.
        InputError: data that does not fit.
    """

    def __init__(
        self,
        path: Path,
        budget: Budget,
        data: Mapping[str, Array] | None,
        *,
        reference: Any = None,
        sizes: Mapping[str, int] | None = None,
        seed: int = 0,
        fixed: int = 0,
    ) -> None:
        if budget.metric != "exact" and data is None:
            raise UsageError(
                f"budget {budget.text} is measured on your data and none was given; "
                "expected data (--data FILE), or budget exact"
            )
        self.budget = budget
        self._fixed = fixed
        graph = load_graph(path)
        names = [str(value.name) for value in graph.graph.outputs]
        with tempfile.TemporaryDirectory() as folder:
            side = _side(reference, path, Path(folder), sizes)
            self._noisy = NoisyGraph(graph)
            self._cases = self._make_cases(side, graph, names, data, sizes, seed)
            self.evaluation: list[dict[str, Array]] = []
            self.calibration: list[dict[str, Array]] = []
            self._truth: list[Array] = []
            self.note = "made-up inputs" if data is None else "your data and made-up inputs"
            if budget.metric != "exact" and data is not None:
                self._prepare(side, data)

    def _make_cases(
        self,
        side: Reference,
        graph: Any,
        names: list[str],
        data: Mapping[str, Array] | None,
        sizes: Mapping[str, int] | None,
        seed: int,
    ) -> list[Case]:
        specs = input_specs(graph, example_from_file(graph, seed=seed, sizes=sizes))
        batch = batch_name(specs)
        small = resized(specs, {batch: _CASE_ROWS}) if batch else specs
        own = None if data is None else {name: array[: self._fixed or _CASE_ROWS] for name, array in data.items()}
        families = [] if own is None else user_families(own, specs, rows=_CASE_ROWS)
        families += islice(make_families(small, seed=seed), _FAMILIES)
        started = time.perf_counter()
        cases: list[Case] = []
        for family in families:
            if cases and time.perf_counter() - started > _CASE_SECONDS:
                break
            try:
                cases.append(
                    make_case(side, self._noisy, family, names, runs=_NOISE_RUNS, seed=seed, precision="float32")
                )
            except (InputError, RuntimeError, IndexError, ValueError):
                if family.user or not cases:
                    raise
                # the reference itself refuses this made-up family; nothing can be asked of a candidate there
        return cases

    def _prepare(self, side: Reference, data: Mapping[str, Array]) -> None:
        total = min(len(array) for array in data.values())
        order = np.random.default_rng(0).permutation(total)
        apart = total >= max(_SEPARATE_FROM, 2 * self._fixed)
        chunk = self._fixed or _CHUNK
        count = min(_CALIBRATION_ROWS, total)
        count = max(count - count % self._fixed, self._fixed) if self._fixed else count
        calibration, rest = order[:count], order[count:] if apart else order
        if self._fixed:
            rest = rest[: len(rest) - len(rest) % self._fixed]
        self.calibration = [_take(data, calibration[at : at + chunk]) for at in range(0, len(calibration), chunk)]
        started = time.perf_counter()
        truth: list[list[Array]] = []
        rows = 0
        for at in range(0, min(len(rest), _MOST_ROWS), chunk):
            if truth and time.perf_counter() - started > _TRUTH_SECONDS:
                break
            feeds = _take(data, rest[at : at + chunk])
            self.evaluation.append(feeds)
            truth.append(side.truth(feeds))
            rows += len(next(iter(feeds.values())))
        self._truth = [np.concatenate(parts) for parts in zip(*truth, strict=True)]
        self.note = f"{rows} of your {total} rows" + (
            f", calibrated on {count} others" if apart else f", calibrated on {count} of the same rows"
        )

    def judge(self, run: RunFeeds, precision: str, *, conversion: float | None = None) -> Outcome:
        """Say whether what ``run`` returns is within the budget.

        Args:
            run: one call of the candidate, outputs in the model's order.
            precision: what it says it computes in.
            conversion: what `loss` says of the same variant without fused low-precision kernels: tells what the
                conversion loses from what the kernels lose.
        """
        if precision == "float32":
            problems, ratio, drop = self._rounding(run)
            if not problems:
                return Outcome(True, "float32", "", {"rounding": ratio})
            if drop is None:
                return Outcome(False, "float32", f"changes the result: {problems[0]}", {"rounding": ratio})
            precision = drop.precision
            if self.budget.metric == "exact":
                return Outcome(False, precision, drop.words, {"rounding": ratio})
        elif self.budget.metric == "exact":
            return Outcome(False, precision, "computes in less than float32; the budget is exact")
        outputs = self.outputs(run)
        found = self.budget.loss(outputs, self._truth)
        loss: dict[str, float] = {self.budget.metric: found}
        if np.isfinite(found) and all(array.ndim for array in outputs):
            interval = self.budget.interval(outputs, self._truth)
            loss |= {f"{self.budget.metric} low": interval.low, f"{self.budget.metric} high": interval.high}
        if conversion is not None:
            loss[f"{self.budget.metric} by conversion"] = conversion
        if found <= self.budget.limit:
            return Outcome(True, precision, "", loss)
        reason = f"loses {self.budget.metric} {found:.3g}; the budget is {self.budget.limit:.3g}"
        return Outcome(False, precision, reason, loss)

    def loss_of(self, outputs: Sequence[Array]) -> float:
        """Return the budget's loss of what `outputs` returned."""
        return self.budget.loss(outputs, self._truth)

    def outputs(self, run: RunFeeds) -> list[Array]:
        """Return what ``run`` makes of the user's evaluation rows."""
        outputs = [list(run(feeds)) for feeds in self.evaluation]
        return [np.concatenate(parts) for parts in zip(*outputs, strict=True)]

    def gain(self, before: Sequence[Array], after: Sequence[Array]) -> Interval:
        """Return the loss of ``after`` less that of ``before``, both from `outputs`, with its interval."""
        return self.budget.gain(before, after, self._truth)

    def _rounding(self, run: RunFeeds) -> tuple[list[str], float, _Drop | None]:
        """Return problems, the worst ratio of error to bound, and the lower precision that explains all of them."""
        problems: list[str] = []
        worst = 0.0
        drops: list[_Drop | None] = []
        within = 0
        for case in self._cases:
            outputs = list(run(case.family.feeds))
            if len(outputs) != len(case.truth):
                return [f"returns {len(outputs)} outputs; expected {len(case.truth)}"], float("inf"), None
            for result in hold_against(case, outputs):
                at = result.index
                problems += [f"{case.family.name}: {text}" for text in result.problems]
                drops += [None] * len(result.problems)
                if result.judgement is None or result.judgement.ratio <= 1:
                    ratio = result.judgement.ratio if result.judgement else 0.0
                    worst, within = max(worst, ratio), within + (ratio > _SHOWS)
                    continue
                ratio = result.judgement.ratio  # above 1, or NaN
                worst = float("nan") if np.isnan(ratio) else max(worst, ratio)
                problems.append(
                    f"{case.family.name}: output {case.names[at]!r} is {ratio:.3g} times the rounding bound"
                )
                words = drop_in_words(case, at, outputs[at], self._noisy)
                drops.append(_Drop(words, mantissa_bits(case, at, outputs[at], self._noisy)) if words else None)
        found = [drop for drop in drops if drop is not None]
        if not found or len(found) < len(drops) or np.ptp([drop.bits for drop in found]) > _SAME_BITS:
            return problems, worst, None  # a lower precision shows alike on every input; this does not
        if within:  # a sum taken in another order, say; it shows where terms cancel, and nowhere else
            return problems, worst, _Drop(f"{problems[0]}; on other inputs it is within that bound", found[0].bits)
        return problems, worst, _Drop(f"{found[0].words}, without a word of its own", found[0].bits)


@dataclass(frozen=True)
class _Drop:
    """A lower precision that would explain an error: in words, and its bits of mantissa."""

    words: str
    bits: float

    @property
    def precision(self) -> str:
        return f"about {round(self.bits)} bits"


def _take(data: Mapping[str, Array], rows: Array) -> dict[str, Array]:
    return {name: np.ascontiguousarray(np.asarray(array)[rows]) for name, array in data.items()}


def _side(reference: Any, path: Path, workspace: Path, sizes: Mapping[str, int] | None) -> Reference:
    if not isinstance(reference, nn.Module):
        return GraphReference(path if reference is None else reference, workspace)
    graph = load_graph(path)
    example = example_from_file(graph, sizes=sizes)
    args = tuple(to_torch(array) for array in example.values())
    return EagerReference(reference, Signature(reference, args, None, list(example)), None)
