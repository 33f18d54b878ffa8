"""Precedence over other programs while ways are timed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import normdeploy.runtime.precedence as precedence_room
from normdeploy.runtime import Plan, retune, tune
from normdeploy.runtime.precedence import precedence, processor_seconds_of_others
from normdeploy.runtime.tuning import stopwatch as room
from normdeploy.runtime.tuning.stopwatch import Stopwatch

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the scheduler's classes")


def _policies() -> dict[int, int]:
    """Return what each thread has; one of an earlier test may end between its listing and the question."""
    found: dict[int, int] = {}
    for entry in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            found[int(entry.name)] = os.sched_getscheduler(int(entry.name))
    return found


@linux
def test_all_threads_go_first_inside_and_as_before_outside() -> None:
    done = threading.Event()
    older = threading.Thread(target=done.wait)
    older.start()
    try:
        before = _policies()
        with precedence() as granted:
            if not granted:
                pytest.skip("the system grants no precedence here (root or CAP_SYS_NICE)")
            newer = threading.Thread(target=done.wait)
            newer.start()
            assert set(_policies().values()) == {os.SCHED_RR}
        after = _policies()
        assert len(after) == len(before) + 1
        assert set(after.values()) == {os.SCHED_OTHER}
        assert os.sched_getparam(newer.native_id).sched_priority == 0
    finally:
        done.set()
        older.join()


@linux
def test_it_is_given_back_after_an_error() -> None:
    before = _policies()
    with pytest.raises(ZeroDivisionError), precedence():
        _ = 1 / 0
    after = _policies()
    assert {thread: after[thread] for thread in before if thread in after} == {
        thread: policy for thread, policy in before.items() if thread in after
    }


@linux
def test_a_system_that_grants_none_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    set_by_us = []

    def refused(thread: int, policy: int, parameters: os.sched_param) -> None:
        if policy == os.SCHED_RR:
            raise PermissionError(1, "Operation not permitted")
        set_by_us.append((thread, policy, parameters.sched_priority))

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    with precedence() as granted:
        assert not granted
    assert {policy for _, policy, _ in set_by_us} == {os.SCHED_OTHER}


@linux
def test_what_others_take_of_the_processor_is_told_without_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """user 500, nice 20, system 300, irq 7 and softirq 3 jiffies are work; idle, iowait and steal are not."""
    statistics = tmp_path / "stat"
    statistics.write_text("cpu  500 20 300 90000 8000 7 3 6000 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n", encoding="ascii")
    monkeypatch.setattr(precedence_room, "_STATISTICS", statistics)
    monkeypatch.setattr(time, "process_time", lambda: 1.25)
    assert processor_seconds_of_others() == pytest.approx(830 / os.sysconf("SC_CLK_TCK") - 1.25)
    statistics.unlink()
    assert processor_seconds_of_others() is None


@linux
def test_what_others_take_grows_by_what_they_take() -> None:
    before = processor_seconds_of_others()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.4: pass"], check=True)
    after = processor_seconds_of_others()
    assert before is not None
    assert after is not None
    assert after - before > 0.3


@pytest.mark.parametrize(
    ("watch", "said"),
    [
        (Stopwatch(granted=True, seconds=2.0, others=3.0), "timed with precedence over other programs"),
        (Stopwatch(granted=False, seconds=2.0, others=0.1), ""),
        (Stopwatch(granted=False, seconds=2.0, others=None), ""),
        (Stopwatch(), ""),
    ],
)
def test_the_company_is_named_where_it_may_decide(watch: Stopwatch, said: str) -> None:
    assert watch.company == said


@pytest.mark.parametrize("wanted", [True, False])
def test_a_busy_machine_without_precedence_is_named_with_what_to_do(wanted: bool) -> None:
    said = Stopwatch(wanted=wanted, granted=False, seconds=2.0, others=3.0).company
    assert said.startswith("other programs kept 1.5 of ")
    assert "another number of threads may win" in said
    assert ("CAP_SYS_NICE" in said) == wanted


def test_one_refusal_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, False, True])

    class Answer:
        def __enter__(self) -> bool:
            return next(answers)

        def __exit__(self, *_: object) -> None:
            return None

    monkeypatch.setattr(room, "precedence", Answer)
    watch, seen = Stopwatch(), []
    for _ in range(3):
        watch.measure({"a": lambda: None}, 0.01, 0)
        seen.append(watch.granted)
    assert seen == [True, False, False]
    assert watch.seconds > 0


@pytest.mark.parametrize("wanted", [True, False])
def test_every_time_of_a_tuning_is_taken_so(linear, monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    path, inside, seen = linear[0], [], set()

    class Noted:
        def __enter__(self) -> bool:
            inside.append(True)
            return True

        def __exit__(self, *_: object) -> None:
            inside.pop()

    def watched(original):
        def measured(runs, *args, **kwargs):
            seen.add(bool(inside))
            return original(runs, *args, **kwargs)

        return measured

    monkeypatch.setattr(room, "precedence", Noted)
    monkeypatch.setattr(room, "measure_latency", watched(room.measure_latency))
    monkeypatch.setattr(room, "glance", watched(room.glance))
    plan = tune(path, seconds=0.1, time_limit=60, precedence=wanted)
    assert seen == {wanted}
    assert plan.request["precedence"] is wanted
    assert ("with precedence" in plan.company) == wanted or "other programs kept" in plan.company
    assert plan.path is not None
    assert Plan.load(plan.path).company == plan.company
    assert plan.company in plan.summary()
    seen.clear()
    assert retune(plan).request["precedence"] is wanted
    assert seen == {wanted}
