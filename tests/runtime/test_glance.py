"""The first glance throws out what is hopeless, and the same on an idle and on a busy machine."""

from __future__ import annotations

import numpy as np
import pytest

from normdeploy.runtime.tuning import glance as room
from normdeploy.runtime.tuning.glance import glance


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


def test_turns_are_interleaved(monkeypatch):
    clock = Busy(0, load=False)
    monkeypatch.setattr(room, "time", clock)
    order = []

    def way(name):
        def call():
            order.append(name)
            clock.work(0.02)

        return call

    glance({name: way(name) for name in "abc"}, "a")
    assert "".join(order) == "abc" + "abccba" * 3
