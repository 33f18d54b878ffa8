"""How ways are timed against each other: in fair turns and, where the system grants it, before other programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from normdeploy.ort.machine import usable_cores
from normdeploy.runtime.latency import Latency, fair_turn, measure_latency
from normdeploy.runtime.precedence import precedence, processor_seconds_of_others

HOPELESS = 5.0  # times the untuned model's time: not timed in every round
_ROUNDS = 6
TURN = 0.01  # seconds of calls in a turn; one call at least
_NANO = 1e-9
_BUSY = 0.1  # cores: what a system does by itself is less

Runs = Mapping[str, Callable[[], object]]


def glance(runs: Runs, base: str) -> tuple[dict[str, Latency], set[str]]:
    """Call each way in turns and tell which are hopeless beside ``base``, so that the rounds are left to the others.

    One is hopeless only where it was in every round: what slows the machine for a while slows whoever happens to run,
    and must not decide. A turn counts by its fastest call, which others disturbed least. Who is not that slow in one
    round takes no part in the next: a call of a large network takes long.

    Args:
        runs: name to one call.
        base: the name of the one that the others are compared with.

    Returns:
        name to the times seen, and the names that took more than `HOPELESS` times the base's time in every round.
    """
    for call in runs.values():
        call()
    samples: dict[str, list[float]] = {name: [] for name in runs}
    slow = [name for name in runs if name != base]
    for number in range(_ROUNDS):
        asked = [name for name in runs if name == base or name in slow]
        for name in asked if number % 2 == 0 else asked[::-1]:
            samples[name].append(_fastest(runs[name]))
        slow = [name for name in slow if samples[name][-1] > HOPELESS * samples[base][-1]]
        if not slow:
            break
    return {name: Latency(name, tuple(mine)) for name, mine in samples.items()}, set(slow)


def _fastest(call: Callable[[], object]) -> float:
    """Call for the length of a turn, once at least; return the fastest call's seconds."""
    begun, best = time.perf_counter_ns(), None
    while True:
        start = time.perf_counter_ns()
        call()
        end = time.perf_counter_ns()
        best = end - start if best is None else min(best, end - start)
        if (end - begun) * _NANO >= TURN:
            return max(best, 1) * _NANO


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
        """Return the times seen and who is hopeless; see `glance`."""
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
