"""What has been tried so far: candidates opened, judged, and timed against the untuned model, interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from normdeploy.array_types import Array
from normdeploy.errors import in_one_line
from normdeploy.ort.settings import Settings
from normdeploy.runtime.backend import Backend, open_backend
from normdeploy.runtime.plan import Trial
from normdeploy.runtime.tuning.candidates import UNTUNED, Candidate
from normdeploy.runtime.tuning.fixed import InFixedBatches
from normdeploy.runtime.tuning.judge import Judge, Outcome
from normdeploy.runtime.tuning.measured_candidate import MeasuredCandidate, simplest_first
from normdeploy.runtime.tuning.stopwatch import Stopwatch


@dataclass
class Tried:
    """Candidates and what was found of them.

    Args:
        base: the untuned model.
        judge: says what is within the budget.
        feeds: what is timed.
        deadline: on `time.monotonic`; nothing new begins later.
        seed: of the orders.
        tell: called with a sentence before each step.
        opened: every candidate that was opened.
        skipped: what was not, and why.
        stopwatch: how they are timed.
    """

    base: Candidate
    judge: Judge
    feeds: Mapping[str, Array]
    deadline: float
    seed: int
    tell: Callable[[str], None]
    opened: list[MeasuredCandidate] = field(default_factory=list)
    skipped: list[Trial] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    _conversions: dict[Path, list[Array]] = field(default_factory=dict)

    def failed(self, name: str, precision: str, error: Exception) -> None:
        """Note what could not be made."""
        reason = in_one_line(error)
        self.skipped.append(Trial(name, precision, "failed", reason))

    def late(self, name: str, precision: str) -> bool:
        """Whether the time limit is over; then the candidate is listed as skipped for that."""
        late = time.monotonic() > self.deadline
        if late:
            self.skipped.append(Trial(name, precision, "skipped", "not tried: the time limit was over"))
        return late

    def round(self, wanted: Sequence[Candidate], seconds: float) -> None:
        """Open, judge and time some candidates against the untuned model, for a time."""
        known = {(entry.candidate.file, entry.candidate.settings) for entry in self.opened}
        fresh = [candidate for candidate in wanted if (candidate.file, candidate.settings) not in known]
        if not fresh:
            return
        opened: list[MeasuredCandidate] = []
        runs: dict[str, Callable[[], object]] = {}
        for candidate in fresh:
            if candidate is not self.base and self.late(candidate.name, candidate.precision):
                continue
            self.tell(f"trying {candidate.name}")
            entry = MeasuredCandidate(candidate)
            opened.append(entry)
            try:
                backend = open_backend(candidate.file, candidate.settings)
                entry.outcome = self._judge(candidate, backend)
            except Exception as error:  # a provider raises whatever it likes; the search goes on and says so
                if candidate is self.base:
                    raise
                entry.failure = in_one_line(error)
                continue
            runs[candidate.name] = call_of(backend, self.feeds)
        self.opened += opened
        if not runs:
            return
        if UNTUNED not in runs:
            runs = {UNTUNED: call_of(open_backend(self.base.file, self.base.settings), self.feeds), **runs}
        self.tell(f"a first glance at {len(runs)} ways")
        glances, slow = self.stopwatch.glance(runs, UNTUNED)
        for entry in opened:
            if (label := entry.candidate.name) in slow:
                entry.hopeless = glances[label], glances[UNTUNED]  # with it in every round there would be few rounds
                del runs[label]
        self.tell(f"timing {len(runs)} ways, {seconds:.0f} s")
        measured = self.stopwatch.measure(runs, seconds, self.seed)
        for entry in opened:
            if entry.candidate.name in measured:
                entry.latency = measured[entry.candidate.name]
                entry.ratio = entry.latency.ratio(measured[UNTUNED]).to_dict()

    def _judge(self, candidate: Candidate, backend: Backend) -> Outcome:
        conversion = None
        if candidate.precision == "int8":
            conversion = self.judge.loss_of(self.converted(candidate.file))
        if not candidate.settings.fixed_shapes:
            return self.judge.judge(backend.run, candidate.precision, conversion=conversion)
        fixed = InFixedBatches(backend, dict(candidate.settings.fixed_shapes))
        outcome = self.judge.judge(fixed.run, candidate.precision, conversion=conversion)
        if outcome.accepted and not fixed.fitting:
            reason = "not judged: no input of the verifier has its shapes; give rows of the timed shapes as data"
            return replace(outcome, accepted=False, reason=reason)
        return outcome

    def converted(self, file: Path) -> list[Array]:
        """Return the outputs of a variant on the evaluation rows without fused kernels: what its conversion makes."""
        if file not in self._conversions:
            plain = open_backend(file, Settings(optimization="disable"))
            self._conversions[file] = self.judge.outputs(plain.run)
        return self._conversions[file]

    def accepted(self) -> list[MeasuredCandidate]:
        """Return what is within the budget, the fastest first."""
        return sorted((entry for entry in self.opened if entry.accepted), key=lambda entry: entry.relative)

    def best(self, among: Callable[[Candidate], bool] = lambda _: True) -> Candidate:
        """Return the simplest within the budget that none beats beyond the noise; the untuned model where none is.

        What is tried next starts from it. The smallest number is luck where several are equally fast, and another run
        would try other ways.
        """
        entries = [entry for entry in simplest_first(self.opened, self.base) if entry.accepted]
        timed = [(entry, entry.ratio) for entry in entries if entry.ratio and among(entry.candidate)]
        least = min((ratio["high"] for _, ratio in timed), default=0.0)
        return next((entry.candidate for entry, ratio in timed if ratio["low"] <= least), self.base)


def call_of(backend: Backend, feeds: Mapping[str, Array]) -> Callable[[], object]:
    """Return one call of a backend."""
    return lambda: backend.run(feeds)
