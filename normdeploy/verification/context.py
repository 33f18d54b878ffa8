"""What the checks of one verification share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from normdeploy.graph import Evaluator
from normdeploy.graph.derivation import Derivation
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.cases import Case, Evaluated, make_case
from normdeploy.verification.cost import NOISY, NOISY_SINGLE, SINGLE, Budget
from normdeploy.verification.derivation.checker import Report
from normdeploy.verification.hints import Hints
from normdeploy.verification.levels import Level
from normdeploy.verification.record.verdict import Check, CheckStatus, Measurement, SiteReport
from normdeploy.verification.samples.families import Family
from normdeploy.verification.samples.specs import InputSpec
from normdeploy.verification.sides.reference import GraphReference, Reference, Subject, run_evaluator
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.values import Feeds

if TYPE_CHECKING:
    from collections.abc import Iterator

_FEW_RUNS = 4
"""Runs with noise of a network of which one run is much work."""

Progress = Callable[[str, float], None]
"""Called with the stage's name and the share done (0 to 1)."""


@dataclass
class Context:
    """Shared by the checks; each adds its answers here.

    Args:
        reference, subject: the two sides.
        noisy: the reference's graph before folding, for noise and mutants; None where there is none.
        hints: what the file's values may stand for, and where that comes from; nothing believes it.
        kept: the hints that were needed, as they are kept beside the file.
        derived: the graph recomputed from the reference by the rewrite room, weights unrounded; None if not made.
        canonical: the reference's graph with every normalization as one operator; the unfolded graph otherwise.
        specs: inputs at their example sizes. level: how much to check. settings: runtime settings to check.
        precision: float dtype whose rounding is judged.
        weights_precision: lowest float dtype among the weights, where the file is of reduced precision on purpose
            (``reduced``).
        heavy: one run is much work (:mod:`normdeploy.verification.cost`): single rows, noise in float32, mutants by
            derivative.
        proven: what algebra shows of the file.
        own: the file was written from the very graph that its numbers are held against: each is its one rounding.
        budget: work that may be spent on what can also be left out.
        example, example_traced: what the example gives in the reference, and in its graph in float64, once known.
        seed: of all random numbers. folder: where a failure's bundle may be written; None writes none.
    """

    reference: Reference
    subject: Subject
    noisy: NoisyGraph | None
    derived: ir.Model | None
    canonical: ir.Model | None
    specs: list[InputSpec]
    level: Level
    settings: Sequence[Setting]
    precision: str
    seed: int = 0
    folder: Path | None = None
    heavy: bool = False
    budget: Budget = field(default_factory=lambda: Budget(math.inf))
    weights_precision: str = "float32"
    reduced: bool = False
    own: bool = False
    hints: Hints = field(default_factory=lambda: Hints(Derivation()))
    kept: str = ""
    proven: Report | None = None
    progress: Progress | None = None
    cases: list[Case] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    sites: list[SiteReport] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    example: Evaluated | None = None
    example_traced: list[Any] | None = None

    @property
    def evaluator(self) -> Evaluator | None:
        """Float64 evaluator of the reference's graph before folding."""
        return None if self.noisy is None else self.noisy.evaluator

    def without_graph(self, reason: str) -> None:
        """Go on without a graph of the reference: no noise model, no mutants, and at most a weak verdict."""
        self.noisy = self.derived = self.canonical = None
        self.not_checked.append(f"{reason}: no noise model and no mutants")

    @cached_property
    def file_noise(self) -> NoisyGraph:
        """The file's own graph for noise runs, made when a precision has to be named."""
        return NoisyGraph(self.subject.model)

    def graph_of(self, evaluator: Evaluator) -> ir.Model | None:
        """Return the graph of an evaluator of :func:`normdeploy.verification.mutation.rerun.site_groups`."""
        return self.reference.graph if evaluator is self.evaluator else self.canonical

    def answer(self, name: str, status: CheckStatus, detail: str, **measured: Any) -> None:
        """Record one check's answer."""
        self.checks.append(Check(name, status, detail, measured))

    def fails(self, name: str) -> list[Check]:
        """Return the failures recorded under a check's name."""
        return [check for check in self.checks if check.name == name and check.status == "fail"]

    @property
    def failed(self) -> bool:
        """True once any check failed."""
        return any(check.status == "fail" for check in self.checks)

    def leave_out(self, what: str) -> None:
        """Note what this level leaves out of what a higher one checks."""
        self.not_checked.append(f"{what} (level {self.level.name})")

    def tell(self, stage: str, share: float) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(stage, min(max(share, 0.0), 1.0))

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Time a stage and report its start and end."""
        return _stage(self, name)

    @property
    def noise_runs(self) -> int:
        """How many runs with noise a case takes."""
        return _FEW_RUNS if self.heavy else self.level.noise_runs

    def case(self, family: Family, *, runs: int | None = None) -> Case:
        """Evaluate the reference on a family; the runs with noise come when something needs them."""
        known = self.example is not None and self.example.feeds is family.feeds
        self.budget.spend(0 if known else 1 + SINGLE, family.feeds)
        case = make_case(
            self.reference,
            self.noisy,
            family,
            self.subject.output_names,
            runs=runs or self.noise_runs,
            seed=self.seed,
            precision=self.precision,
            fast=self.heavy,
            known=self.example,
            spend=partial(self._spend_on_noise, family.feeds),
            unmeasured=partial(self._unmeasured, family.name),
        )
        if self.level.measured:
            case.rounding.values  # noqa: B018 # asked for here, so that it is measured
        return case

    def _unmeasured(self, name: str, reason: str) -> None:
        text = f"rounding noise on {name!r}: the reference's graph cannot be evaluated on it here ({reason})"
        if text not in self.not_checked:
            self.not_checked.append(text)

    def _spend_on_noise(self, feeds: Feeds, evaluations: float) -> None:
        self.budget.spend(evaluations * (NOISY_SINGLE if self.heavy else NOISY), feeds)

    def traced(self, case: Case) -> list[Any]:
        """Return the float64 outputs of the reference's graph on a case's inputs."""
        feeds = case.family.feeds
        if isinstance(self.reference, GraphReference):
            return case.truth
        if self.example is not None and self.example.feeds is feeds and self.example_traced is not None:
            return self.example_traced
        assert self.evaluator is not None
        self.budget.spend(1, feeds)
        return list(run_evaluator(self.evaluator, feeds).values())


@contextmanager
def _stage(context: Context, name: str) -> Iterator[None]:
    start = time.perf_counter()
    context.tell(name, 0.0)
    try:
        yield
    finally:
        context.seconds[name] = context.seconds.get(name, 0.0) + time.perf_counter() - start
        context.tell(name, 1.0)
