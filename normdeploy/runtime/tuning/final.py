"""The last comparison: the fastest accepted candidates against each other, with fresh sessions, until it is clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from normdeploy.runtime.latency import Latency, measure_latency
from normdeploy.runtime.tuning.entries import LITTLE, Entry

BLOCK, PAUSE = 5, 0.02  # lets threads that spin between calls show their gain without disturbing the others
_FINALISTS = 3
_PASSES = 3

Opener = Callable[[Entry], Callable[[], object]]


def compare_finalists(
    accepted: Sequence[Entry], base: Entry, opened: Opener, seconds: float, seed: int, deadline: Callable[[], bool]
) -> Entry:
    """Time the finalists against each other and return the winner.

    The winner has to beat the untuned model, and the best float32 candidate, beyond the noise; otherwise the simpler
    one stays. Where its gain is large but the noise too, the comparison is repeated with fresh sessions, three times in
    all: on a busy machine the first pass may be too short to tell.

    Args:
        accepted: candidates within the budget, the fastest so far first.
        base: the untuned model.
        opened: opens a session and returns what calls it once.
        seconds: for one pass.
        seed: of the order within rounds.
        deadline: whether time is over; then no further pass begins.
    """
    exact = next((entry for entry in accepted if entry.candidate.precision == "float32"), base)
    finalists = list(accepted[:_FINALISTS])
    finalists += [entry for entry in dict.fromkeys((exact, base)) if entry not in finalists]
    steady = any(entry.candidate.settings.spinning == "always" for entry in finalists)
    block, pause = (BLOCK, PAUSE) if steady else (1, 0.0)
    parts: list[Mapping[str, Latency]] = []
    while True:
        order = finalists if len(parts) % 2 == 0 else finalists[::-1]
        runs = {entry.candidate.name: opened(entry) for entry in order}
        parts.append(measure_latency(runs, seconds=seconds, block=block, pause=pause, seed=seed + len(parts)))
        for entry in finalists:
            name = entry.candidate.name
            entry.latency = Latency(name, sum((part[name].samples for part in parts), ()))
        if base.latency is None:
            raise AssertionError("the untuned model is always a finalist")
        for entry in finalists:
            if entry.latency is not None:
                entry.ratio = entry.latency.ratio(base.latency).to_dict()
        winner, clear = _winner(finalists, base, exact)
        if clear or len(parts) == _PASSES or deadline():
            return winner


def _winner(finalists: Sequence[Entry], base: Entry, exact: Entry) -> tuple[Entry, bool]:
    """Return who wins by the times so far, and whether that is clear."""
    fastest = min((entry for entry in finalists if entry.accepted), key=lambda entry: entry.relative)
    for simpler in (base, exact):  # settings and precision are given up for a gain beyond the noise only
        if not simpler.accepted or simpler is fastest or not fastest.latency or not simpler.latency:
            continue
        gain = fastest.latency.ratio(simpler.latency)
        worth = simpler is base or (simpler.ratio is not None and simpler.ratio["high"] < 1)
        if gain.high >= 1 and worth:
            return simpler, gain.value > LITTLE
    return fastest, True
