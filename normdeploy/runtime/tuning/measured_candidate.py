"""A candidate with what was found out about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from normdeploy.runtime.latency import Latency
from normdeploy.runtime.plan import Status, Trial
from normdeploy.runtime.tuning.candidates import Candidate
from normdeploy.runtime.tuning.judge import Outcome
from normdeploy.runtime.tuning.stopwatch import HOPELESS

LITTLE = 0.95  # a gain smaller than this is not worth a word or another look


@dataclass(eq=False)
class MeasuredCandidate:
    """A candidate under trial.

    Args:
        candidate: what is tried.
        outcome: what the judge says; None before, or where it could not be run.
        failure: why it could not be run.
        latency: its times in rounds; None where it was not timed in rounds.
        ratio: its time over the untuned model's, as ``Ratio.to_dict``; None likewise.
        hopeless: a first glance was enough: its time in that glance and the untuned model's beside it. They are no
            times of the rounds, and are told together or not at all.
    """

    candidate: Candidate
    outcome: Outcome | None = None
    failure: str = ""
    latency: Latency | None = None
    ratio: dict[str, float] | None = None
    hopeless: tuple[Latency, Latency] | None = None

    @property
    def accepted(self) -> bool:
        """Within the budget, and timed."""
        return self.outcome is not None and self.outcome.accepted and self.ratio is not None

    @property
    def too_lossy(self) -> bool:
        """Outside the budget, and timed."""
        return self.outcome is not None and not self.outcome.accepted and self.ratio is not None

    @property
    def relative(self) -> float:
        """Its time over the untuned model's; infinite where it was not timed in rounds."""
        return self.ratio["value"] if self.ratio else float("inf")

    @property
    def slowdown(self) -> float | None:
        """Its time over the untuned model's, of the rounds or of the first glance; None where it was not timed."""
        if self.hopeless is not None:
            mine, beside = self.hopeless
            return mine.median / beside.median
        return self.ratio["value"] if self.ratio else None

    def to_trial(self, winner: MeasuredCandidate, model: Path, file: Path) -> Trial:
        """Return the row of the plan file.

        Args:
            winner: the entry that won.
            model: the model under tuning.
            file: where the winner's file lies; other variants are not kept.
        """
        status: Status
        chosen = self is winner
        if self.outcome is None:
            status, reason = "failed", self.failure
        elif not self.outcome.accepted:
            status, reason = "rejected", self.outcome.reason
        elif chosen:
            status, reason = "chosen", ""
        elif self.ratio and self.relative < LITTLE * winner.relative:
            interval = f"{self.ratio['low']:.2f} to {self.ratio['high']:.2f}"
            status = "accepted"
            reason = f"unclear: {interval} of the untuned model's time; tune again when the machine is less busy"
        elif self.relative < winner.relative:
            status, reason = "accepted", "as fast, as far as the noise tells"
        else:
            status, reason = "accepted", f"slower{self._glance()}"
        kept = model if self.candidate.file == model else (file if chosen else None)
        return Trial(
            name=self.candidate.name,
            precision=self.outcome.precision if self.outcome else self.candidate.precision,
            status=status,
            reason=reason,
            file=kept.name if kept else "",
            settings=self.candidate.settings,
            latency=self.latency.to_dict() if self.latency else None,
            ratio=self.ratio,
            loss=self.outcome.loss if self.outcome else None,
        )

    def _glance(self) -> str:
        """Say what the first glance saw, where it was enough."""
        if self.hopeless is None:
            return ""
        mine, beside = (1e3 * seen.median for seen in self.hopeless)
        return (
            f": {mine:.3g} ms where the untuned model took {beside:.3g} ms, more than {HOPELESS:.0f} times as long in "
            "each turn of a first glance"
        )


def simplest_first(entries: Iterable[MeasuredCandidate], base: Candidate) -> list[MeasuredCandidate]:
    """Sort candidates: the untuned model, then float32, then lower precision; among these what was tried earlier."""
    return sorted(entries, key=lambda entry: (entry.candidate is not base, entry.candidate.precision != "float32"))
