from __future__ import annotations

import time

import numpy as np
import pytest

from normdeploy.errors import UsageError
from normdeploy.runtime import latency as latency_module
from normdeploy.runtime.latency import (
    PAUSE,
    STRETCH,
    Latency,
    fair_turn,
    joined,
    measure_in_sessions,
    measure_latency,
    paired_ratio,
    session_ratio,
)


@pytest.fixture
def short_turns() -> None:
    """Nothing is shorter here, where times are asked of."""


class Clock:
    """A clock that only the work under test moves, so that a busy machine cannot fail the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def perf_counter_ns(self) -> int:
        return round(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(latency_module, "time", made)
    return made


def test_ratio_of_known_work_is_found(clock):
    found = measure_latency({"one": lambda: clock.work(0.002), "three": lambda: clock.work(0.006)}, rounds=15)
    ratio = found["three"].ratio(found["one"])
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((3.0, 3.0, 3.0))
    assert found["one"].median == pytest.approx(0.002)


def test_the_real_clock_sees_a_sleep():
    found = measure_latency({"sleep": lambda: time.sleep(0.01), "nothing": lambda: None}, rounds=5)
    assert min(found["sleep"].samples) >= 0.01
    assert min(found["nothing"].samples) < 0.01


def test_the_processors_clock_sees_no_sleep():
    sums = {"sleep": lambda: time.sleep(0.02), "work": lambda: sum(range(200_000))}
    found = measure_latency(sums, rounds=5, clock=time.thread_time_ns)
    assert min(found["sleep"].samples) < 0.01
    assert min(found["work"].samples) > 0.0


def test_calls_are_interleaved_and_in_changing_order():
    calls: list[str] = []
    measure_latency({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=20, warmup=2, seed=1)
    timed = calls[6:]
    assert len(timed) == 60
    triples = [tuple(timed[i : i + 3]) for i in range(0, 60, 3)]
    assert all(sorted(triple) == ["a", "b", "c"] for triple in triples)
    assert len(set(triples)) > 1


def test_paired_ratio_cancels_what_slows_the_whole_round():
    noise = np.random.default_rng(0).lognormal(sigma=1.0, size=101)
    base, slow = Latency("base", tuple(noise)), Latency("slow", tuple(1.25 * noise))
    ratio = paired_ratio(slow, base)
    assert ratio.value == pytest.approx(1.25)
    assert ratio.low == pytest.approx(1.25)
    assert ratio.high == pytest.approx(1.25)


def test_confidence_interval_covers_the_true_median():
    draw = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        ones = Latency("ones", (1.0,) * 41)
        ratio = paired_ratio(Latency("x", tuple(np.exp(draw.normal(size=41)))), ones)
        hits += ratio.low <= 1.0 <= ratio.high
    assert 0.92 <= hits / 300 <= 1.0


def test_summary_numbers():
    latency = Latency("x", (4.0, 1.0, 2.0, 3.0, 5.0))
    assert latency.median == 3.0
    assert latency.quartiles == (2.0, 4.0)
    assert latency.spread == pytest.approx(2 / 3)
    assert latency.to_dict()["min_s"] == 1.0


def test_wrong_use_is_refused():
    with pytest.raises(UsageError, match="no callables"):
        measure_latency({})
    with pytest.raises(UsageError, match="rounds=0"):
        measure_latency({"a": lambda: None}, rounds=0)
    with pytest.raises(UsageError, match=r"stretch=-0\.1"):
        measure_latency({"a": lambda: None}, stretch=-0.1)
    with pytest.raises(UsageError, match="one measure_latency call"):
        paired_ratio(Latency("a", (1.0,)), Latency("b", (1.0, 2.0)))


def test_time_budget_sets_the_rounds(clock):
    assert len(measure_latency({"a": lambda: clock.work(0.01)}, seconds=0.2)["a"].samples) == 20
    assert len(measure_latency({"a": lambda: clock.work(1.0)}, seconds=0.2)["a"].samples) == 5
    assert len(measure_latency({"a": lambda: clock.work(1e-9)}, seconds=0.2)["a"].samples) == 1000
    stretches = measure_latency({"a": lambda: clock.work(0.01)}, seconds=1.0, stretch=0.02, pause=0.08)
    assert len(stretches["a"].samples) == 10


def test_stretch_and_pause(clock):
    """A turn goes on until its time is over: five short calls, or one that is longer than the stretch."""
    calls: list[str] = []
    found = measure_latency(
        {
            "short": lambda: (calls.append("short"), clock.work(0.003)),
            "long": lambda: (calls.append("long"), clock.work(0.05)),
        },
        rounds=4,
        warmup=1,
        stretch=0.014,
        pause=0.02,
    )
    assert calls.count("short") == 1 + 4 * 5
    assert calls.count("long") == 1 + 4
    assert clock.pauses == [0.02] * 8
    assert found["short"].samples == pytest.approx([0.003] * 4)
    assert found["long"].samples == pytest.approx([0.05] * 4)


def test_waking_threads_costs_a_stretch_little(clock):
    """A way whose threads fall asleep in pauses: timed call by call it is slow, in stretches as fast as in use."""
    asleep_after, last = 0.01, [-1.0]

    def two_threads():
        clock.work(0.001 if clock.now - last[0] < asleep_after else 0.005)
        last[0] = clock.now

    def other():
        clock.work(0.02)

    def ratio(**how):
        found = measure_latency({"two": two_threads, "other": other}, rounds=21, warmup=1, **how)
        return found["two"].ratio(found["other"]).value

    assert ratio() == pytest.approx(0.25)
    assert ratio(stretch=STRETCH, pause=PAUSE) < 0.06


def test_time_is_kept_where_later_calls_are_slower_than_the_first(clock):
    calls = 0

    def slows_down():
        nonlocal calls
        calls += 1
        clock.work(1e-4 if calls <= 3 else 0.25)  # warm-up says a thousand rounds take a tenth of a second

    found = measure_latency({"x": slows_down}, seconds=2.0)
    assert clock.now < 2.0 + 0.25 + 1e-3
    assert len(found["x"].samples) == 8


def test_the_interval_is_that_of_sessions(clock):
    """Two sessions of one file differ by 10 %, for as long as they live: the interval of a file against itself must
    hold 1, which that of the rounds alone leaves out."""
    draw = np.random.default_rng(0)
    inside = alone = 0
    for _ in range(200):

        def prepare(session):
            one, other = 1e-3 * (1 + 0.1 * draw.standard_normal(2).clip(-2, 2))
            return {
                "a": lambda: clock.work(one * (1 + 0.01 * draw.random())),
                "b": lambda: clock.work(other * (1 + 0.01 * draw.random())),
            }

        parts = measure_in_sessions(prepare, rounds=60)
        assert len(parts) == 6
        found = session_ratio(parts, "a", "b")
        inside += found.low <= 1 <= found.high
        rounds = paired_ratio(joined(parts, "a"), joined(parts, "b"))
        alone += rounds.low <= 1 <= rounds.high
    assert inside >= 180  # 95 % of 200, less four deviations
    assert alone < 150


def test_sessions_share_rounds_and_stop_when_time_is_over(clock):
    made = []

    def prepare(session):
        made.append(session)
        return {"a": lambda: clock.work(1.0), "b": lambda: clock.work(2.0)}

    parts = measure_in_sessions(prepare, rounds=8)
    assert [len(part["a"].samples) for part in parts] == [2, 2, 1, 1, 1, 1]
    assert session_ratio(parts, "b", "a").value == pytest.approx(2.0)
    assert session_ratio(parts, "a", "a") == paired_ratio(joined(parts, "a"), joined(parts, "a"))
    assert len(joined(parts, "b").samples) == 8
    made.clear()
    begun = clock.now
    parts = measure_in_sessions(prepare, seconds=1.0)
    assert made == [0, 1, 2]  # three, whatever the time: fewer tell nothing of how sessions differ
    assert clock.now - begun <= 3 * (3 + 3 * 3)
    assert all(len(part["a"].samples) == 1 for part in parts)


def test_a_turn_is_a_stretch_with_one_thread_too():
    assert fair_turn(1) == {"stretch": STRETCH, "pause": 0.0}
    assert fair_turn(1, 2) == {"stretch": STRETCH, "pause": PAUSE}
    assert fair_turn(0) == {"stretch": STRETCH, "pause": PAUSE}


def test_a_gain_of_warm_calls_shows_with_one_thread(clock):
    """A way that is faster when called back to back, as it is in use: one call each in turn hides that."""
    last = [""]

    def work(name, cold, warm):
        def call():
            clock.work(warm if last[0] == name else cold)
            last[0] = name

        return call

    def ratio(**how):
        runs = {"plan": work("plan", 1.0e-3, 0.7e-3), "other": work("other", 1.0e-3, 1.0e-3)}
        found = measure_latency(runs, rounds=9, **how)
        return found["plan"].ratio(found["other"]).value

    assert ratio(**fair_turn(1)) == pytest.approx(0.7, abs=0.02)
    assert ratio() > 0.8
