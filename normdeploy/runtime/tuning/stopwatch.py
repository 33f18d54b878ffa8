"""How ways are timed against each other: in fair turns and, where the system grants it, before other programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from normdeploy.ort.machine import usable_cores
from normdeploy.runtime.latency import Latency, fair_turn, measure_latency
from normdeploy.runtime.precedence import precedence, processor_seconds_of_others
from normdeploy.runtime.tuning.first_look import glance

_BUSY = 0.1  # cores: what a system does by itself is less

Runs = Mapping[str, Callable[[], object]]


@dataclass
class Stopwatch:
    """Times ways, and keeps what disturbed them.

    Args:
        wanted: ask for precedence over other programs.
        granted: whether the system granted it every time; None before anything was timed.
        seconds: how long ways were timed.
        others: how much processor time other programs took meanwhile; None where the system does not tell.
    """

    wanted: bool = True
    granted: bool | None = None
    seconds: float = 0.0
    others: float | None = 0.0

    def glance(self, runs: Runs, base: str) -> tuple[dict[str, Latency], set[str]]:
        """Return the times seen and who is hopeless; see `first_look.glance`."""
        with self._running():
            return glance(runs, base)

    def measure(self, runs: Runs, seconds: float, seed: int, warmup: int = 1) -> dict[str, Latency]:
        """Return the times in interleaved turns; see `measure_latency`."""
        with self._running():
            return measure_latency(runs, seconds=seconds, warmup=warmup, seed=seed, **fair_turn(0))

    @property
    def company(self) -> str:
        """What other programs did meanwhile, and what of it may decide, in words; "" where it was nothing."""
        if self.granted:
            return "timed with precedence over other programs"
        if self.others is None or self.others <= _BUSY * self.seconds:
            return ""
        used = (
            f"other programs kept {self.others / self.seconds:.1f} of {usable_cores()} cores busy while ways were timed"
        )
        if not self.wanted:
            return f"{used}: with precedence, or on an idle machine, another number of threads may win"
        return (
            f"{used}: on an idle machine another number of threads may win; expected precedence over them, "
            "which the system grants to root and CAP_SYS_NICE, or an idle machine: tune again there"
        )

    @contextmanager
    def _running(self) -> Iterator[None]:
        began, before = time.perf_counter(), processor_seconds_of_others()
        with precedence() if self.wanted else nullcontext(False) as granted:
            self.granted = granted and self.granted is not False
            yield
        self.seconds += time.perf_counter() - began
        after = processor_seconds_of_others()
        if self.others is not None:
            self.others = None if before is None or after is None else self.others + after - before
