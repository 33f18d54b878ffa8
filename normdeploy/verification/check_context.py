"""What the checks of one verification share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator
from normdeploy.graph.derivation import Derivation
from normdeploy.graph.evaluate import Hook
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.check_levels import Level
from normdeploy.verification.derivation.related.report import Report, Row
from normdeploy.verification.evaluation_cost import (
    DECIDING,
    NOISY,
    NOISY_SINGLE,
    SINGLE,
    Counted,
    Effort,
    counted,
    elements,
)
from normdeploy.verification.family_case import Case, Evaluated, make_case
from normdeploy.verification.float64_chain import Links
from normdeploy.verification.hints import Hints
from normdeploy.verification.judging.flips import FlipRecord
from normdeploy.verification.record.answers import Check, Depth, Localization, Measurement, Question, SiteReport, Status
from normdeploy.verification.samples.family import Family
from normdeploy.verification.samples.ranges import InputRange
from normdeploy.verification.sides.flat_values import Feeds, run_evaluator
from normdeploy.verification.sides.graph_reference import GraphReference
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.subject import Subject
from normdeploy.verification.sides.two_sides import EagerReference, Reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from normdeploy.verification.mutation.mutants import Site

_FEWEST = 20
"""Operators that any network is taken to have: a small one's verification costs little in any case."""

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
        heavy: one run is much work (:mod:`normdeploy.verification.evaluation_cost`): single rows, noise in float32,
            mutants by derivative.
        proven: what algebra shows of the file.
        own: the file was written from the very graph that its numbers are held against: each is its one rounding.
        effort: work that may be spent on what can also be left out.
        waiting: input families that the level leaves out, unless they are what decides.
        refused: names of those on which reference or graph cannot be run, by what is said of them.
        links: what the float64 chain says of the file, once it was followed.
        wrong_in_float64: some output was, on some family. wrong_under: runtime settings under which some output was.
        localization: where a failure starts. depth: the error along the graph.
        watched: how many sites of the traced graph were held against the module value by value, and by how many times
            each mutant (module path, value, name) would have shown there. watched_coarsely: the same where another
            order of rounding of the file's numbers is let pass.
        called: the same of calls of the module on the example; None where they were not looked at.
        named: the mutants of sites that calls name which change nothing; None where the trace was followed.
        sites_by_graph: where mutants are made, by the graph that they are evaluated on, once they were looked for.
        example, example_traced: what the example gives in the reference, and in its graph in float64, once known.
        seed: of all random numbers. folder: where a failure's bundle may be written; None writes none.
    """

    reference: Reference
    subject: Subject
    noisy: NoisyGraph | None
    derived: ir.Model | None
    canonical: ir.Model | None
    specs: list[InputRange]
    level: Level
    settings: Sequence[Setting]
    precision: str
    seed: int = 0
    folder: Path | None = None
    heavy: bool = False
    effort: Effort = field(default_factory=lambda: Effort(math.inf))
    weights_precision: str = "float32"
    reduced: bool = False
    own: bool = False
    hints: Hints = field(default_factory=lambda: Hints(Derivation()))
    kept: str = ""
    proven: Report | None = None
    progress: Progress | None = None
    cases: list[Case] = field(default_factory=list)
    waiting: list[Family] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    sites: list[SiteReport] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    links: Links = field(default_factory=Links)
    wrong_in_float64: bool = False
    wrong_under: list[Setting] = field(default_factory=list)
    localization: Localization | None = None
    depth: list[Depth] = field(default_factory=list)
    watched: tuple[int, dict[tuple[str, str, str], float]] = (0, {})
    watched_coarsely: dict[tuple[str, str, str], float] = field(default_factory=dict)
    called: dict[tuple[str, str, str], float] | None = None
    named: set[tuple[str, str, str]] | None = None
    sites_by_graph: list[tuple[Evaluator, list[Site]]] | None = None
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
    def epsilons(self) -> list[float]:
        """Epsilons of the reference's normalization operators, for the small-variance families."""
        nodes = [] if self.canonical is None else list(self.canonical.graph.all_nodes())
        found = {n.attributes.get_float("epsilon", 1e-5) for n in nodes if n.op_type.endswith("Normalization")}
        return sorted(found) or [1e-5]

    def run_traced(self, example: Feeds, *, hook: Hook | None = None, weigh: bool = True) -> None:
        """Evaluate the reference's graph on the example.

        Args:
            hook: sees what each of its operators returns. weigh: take what it costs as the cost of an evaluation.
        """
        found: Counted | None = None
        if self.evaluator is not None:
            try:
                found = counted(self.evaluator, example, hook=hook)
                self.example_traced = found.outputs
            except GraphError as error:
                if not isinstance(self.reference, EagerReference):
                    raise
                self.without_graph(f"the reference's graph cannot be evaluated here ({error})")
        if not weigh:
            self.effort.spend(2, example)
            return
        if found is None:
            try:
                found = counted(self.subject.evaluator, example)
            except GraphError:  # the runtime may know what is not known here
                found = Counted(0.0, 0)
        self.weigh(found, example, runs=2)

    def weigh(self, found: Counted, example: Feeds, *, runs: float) -> None:
        """Set what one evaluation of the network costs, and whether that is much; from sizes alone.

        Args:
            found: what one costs on the example. runs: in float64 that were made of it.
        """
        operators = max(found.operators, _FEWEST)
        limit = self.level.work * operators
        deciding = DECIDING * operators if math.isfinite(limit) else math.inf
        self.effort = Effort(limit, once=found.work, size=elements(example), deciding=deciding)
        self.effort.spend(runs + 3 * SINGLE)  # the example, so far
        self.heavy = found.work > self.level.heavy

    @cached_property
    def flips(self) -> FlipRecord:
        """What runs of the file moved by flips."""
        return FlipRecord(self.subject)

    @cached_property
    def file_noise(self) -> NoisyGraph:
        """The file's own graph for noise runs, made when a precision has to be named."""
        return NoisyGraph(self.subject.model)

    def graph_of(self, evaluator: Evaluator) -> ir.Model | None:
        """Return the graph of an evaluator of :func:`normdeploy.verification.mutation.rerun.site_groups`."""
        return self.reference.graph if evaluator is self.evaluator else self.canonical

    def answered(self, question: Question, status: Status) -> bool:
        """True where a question has an answer."""
        return any(check.name is question and check.status is status for check in self.checks)

    @property
    def contradicted(self) -> list[Row]:
        """Operators of the file that are proven to hold other numbers than they should."""
        wrong = self.answered(Question.DERIVATION, Status.FAIL)
        return self.proven.contradicted if wrong and self.proven is not None else []

    @property
    def failed(self) -> bool:
        """True once any check failed."""
        return any(check.status is Status.FAIL for check in self.checks)

    def leave_out(self, what: str) -> None:
        """Note what this level leaves out of what a higher one checks."""
        self.not_checked.append(f"{what} (level {self.level.name})")

    def tell(self, stage: str, share: float) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(stage, min(max(share, 0.0), 1.0))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage and report its start and end."""
        start = time.perf_counter()
        self.tell(name, 0.0)
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            self.tell(name, 1.0)

    @property
    def lean(self) -> bool:
        """True where the level leaves out what takes further runs of a network of which one is much work."""
        return self.level.lean and self.heavy

    @property
    def known_by_algebra(self) -> bool:
        """True where the level does not sample what is confirmed of the file for every input."""
        return not self.level.measured and self.proven is not None and self.proven.confirmed

    @property
    def confirmed_and_heavy(self) -> bool:
        """True where one run is much work and only the trace and the runtime's kernels are left to samples."""
        return self.heavy and self.known_by_algebra

    @property
    def noise_runs(self) -> int:
        """How many runs with noise a case takes."""
        return _FEW_RUNS if self.heavy else self.level.noise_runs

    def case(self, family: Family, *, runs: int | None = None) -> Case:
        """Evaluate the reference on a family; the runs with noise come when something needs them."""
        known = self.example is not None and self.example.feeds is family.feeds
        self.effort.spend(0 if known else 1 + SINGLE, family.feeds)
        case = make_case(
            self.reference,
            self.noisy,
            family,
            self.subject.output_names,
            runs=runs or self.noise_runs,
            seed=self.seed,
            precision=self.precision,
            fast=self.heavy or self.effort.work(family.feeds) > self.level.heavy,
            known=self.example,
            spend=partial(self._spend_on_noise, family.feeds),
            unmeasured=partial(self._unmeasured, family.name),
            settled=lambda: self.failed or self.wrong_in_float64,
        )
        if self.level.measured:
            case.rounding.values  # noqa: B018 # asked for here, so that it is measured
        return case

    def _unmeasured(self, name: str, reason: str) -> None:
        text = f"rounding noise on {name!r}: the reference's graph cannot be evaluated on it here ({reason})"
        if text not in self.not_checked:
            self.not_checked.append(text)

    def _spend_on_noise(self, feeds: Feeds, evaluations: float) -> None:
        self.effort.spend(evaluations * (NOISY_SINGLE if self.heavy else NOISY), feeds)

    def traced(self, case: Case) -> list[Any]:
        """Return the float64 outputs of the reference's graph on a case's inputs."""
        feeds = case.family.feeds
        if isinstance(self.reference, GraphReference):
            return case.truth
        if self.example is not None and self.example.feeds is feeds and self.example_traced is not None:
            return self.example_traced
        assert self.evaluator is not None
        self.effort.spend(1, feeds)
        return list(run_evaluator(self.evaluator, feeds).values())
