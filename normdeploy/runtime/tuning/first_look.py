"""A first look at all ways together: which are hopeless, so that the rounds are left to the others.

All take their turns within rounds, and one is hopeless only where it was in every round: what slows the machine for a
while slows whoever happens to run, and must not decide. A turn counts by its fastest call, which others disturbed
least. Who is not that slow in one round takes no part in the next: a call of a large network takes long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from normdeploy.runtime.latency import Latency

HOPELESS = 5.0  # times the untuned model's time: not timed in every round
_ROUNDS = 6
TURN = 0.01  # seconds of calls in a turn; one call at least
_NANO = 1e-9


def glance(runs: Mapping[str, Callable[[], object]], base: str) -> tuple[dict[str, Latency], set[str]]:
    """Call each way in turns and tell which are hopeless beside ``base``.

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
