"""The first glance throws out what is hopeless, and the same on an idle and on a busy machine."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from normdeploy.runtime import Settings
from normdeploy.runtime.tuning import stopwatch as room
from normdeploy.runtime.tuning.candidates import Candidate
from normdeploy.runtime.tuning.judge import Outcome
from normdeploy.runtime.tuning.measured_candidate import MeasuredCandidate
from normdeploy.runtime.tuning.stopwatch import glance


class Busy:
    """A clock that work moves; for stretches of it another program takes most of the processor."""

    def __init__(self, seed: int, *, load: bool) -> None:
        self.now, self.load = 0.0, load
        self.draw = np.random.default_rng(seed)
        self.until, self.factor = 0.0, 1.0

    def perf_counter_ns(self) -> int:
        return round(self.now * 1e9)

    def work(self, seconds: float) -> None:
        if self.load and self.now >= self.until:  # the next stretch: free, or taken for a while
            self.factor = float(self.draw.choice([1.0, 8.0, 20.0]))
            self.until = self.now + float(self.draw.uniform(0.005, 0.08))
        self.now += seconds * self.factor


WAYS = {"untuned": 1.0, "as fast": 1.0, "better": 0.4, "slower": 3.0, "hopeless": 15.0, "worse": 80.0}


@pytest.mark.parametrize("unit", [2e-4, 3e-3, 0.05])
@pytest.mark.parametrize("load", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_thrown_out_does_not_depend_on_load(unit, load, seed, monkeypatch):
    clock = Busy(seed, load=load)
    monkeypatch.setattr(room, "time", clock)
    times, slow = glance({name: (lambda f=factor: clock.work(f * unit)) for name, factor in WAYS.items()}, "untuned")
    assert slow <= {"hopeless", "worse"}
    assert "worse" in slow or load
    if not load:
        assert slow == {"hopeless", "worse"}
    assert times.keys() == WAYS.keys()


def test_the_numbers_told_of_a_hopeless_way_do_not_contradict_the_reason(monkeypatch):
    """Both are of the glance: the rounds that follow may be slower by whatever else runs then."""
    clock = Busy(3, load=False)
    monkeypatch.setattr(room, "time", clock)
    times, slow = glance({name: (lambda f=factor: clock.work(f * 1e-3)) for name, factor in WAYS.items()}, "untuned")
    assert slow
    model = Path("a.onnx")
    winner = MeasuredCandidate(Candidate("untuned", "float32", model, Settings()))
    for name in slow:
        entry = MeasuredCandidate(
            Candidate(name, "int8", Path("a.int8.onnx"), Settings()),
            outcome=Outcome(True, "int8"),
            hopeless=(times[name], times["untuned"]),
        )
        trial = entry.to_trial(winner, model, model)
        assert trial.latency is None
        assert trial.ratio is None
        mine, beside = (float(found) for found in re.findall(r"([\d.e+-]+) ms", trial.reason))
        assert mine == pytest.approx(1e3 * np.median(times[name].samples), rel=0.01)
        assert mine > room.HOPELESS * beside * 0.99  # three digits are printed
        assert "more than 5 times" in trial.reason


def _order(monkeypatch, ways: str, times: dict[str, float]) -> str:
    clock = Busy(0, load=False)
    monkeypatch.setattr(room, "time", clock)
    order = []

    def way(name):
        def call():
            order.append(name)
            clock.work(times[name])

        return call

    glance({name: way(name) for name in ways}, "a")
    return "".join(order)


def test_turns_are_interleaved(monkeypatch):
    assert _order(monkeypatch, "abc", {"a": 0.02, "b": 0.2, "c": 0.3}) == "abc" + "abccba" * 3


def test_who_is_fast_enough_once_is_not_called_again(monkeypatch):
    assert _order(monkeypatch, "abc", {"a": 0.02, "b": 0.02, "c": 0.09}) == "abc" + "abc"
    assert _order(monkeypatch, "abc", {"a": 0.02, "b": 0.02, "c": 0.3}) == "abc" + "abc" + "ca" + "acca" * 2
