"""The last comparison, with made-up times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from normdeploy.runtime import Settings
from normdeploy.runtime.latency import Latency
from normdeploy.runtime.tuning.candidates import UNTUNED, Candidate
from normdeploy.runtime.tuning.final_comparison import compare_finalists
from normdeploy.runtime.tuning.judge import Outcome
from normdeploy.runtime.tuning.measured_candidate import MeasuredCandidate


def _entry(name: str, precision: str, ratio: float) -> MeasuredCandidate:
    candidate = Candidate(name, precision, Path("net.onnx"), Settings())
    return MeasuredCandidate(candidate, Outcome(True, precision), ratio={"value": ratio, "low": ratio, "high": ratio})


@pytest.fixture
def contest():
    """Return a function that runs the comparison on given times per pass and says who won after how many passes."""

    def run(entries: list[MeasuredCandidate], *passes: dict[str, list[float]], late: bool = False) -> tuple[str, int]:
        given = iter(passes)
        opened: list[str] = []

        def measured(runs, *_):
            times = next(given)
            return {name: Latency(name, tuple(times[name])) for name in runs}

        def opens(entry: MeasuredCandidate):
            opened.append(entry.candidate.name)
            return lambda: None

        base = next(entry for entry in entries if entry.candidate.name == UNTUNED)
        winner = compare_finalists(entries, base, opens, measured, 1.0, 0, lambda: late)
        return winner.candidate.name, opened.count(UNTUNED)

    return run


STEADY = {UNTUNED: [2.0] * 40, "float32": [1.5] * 40, "int8": [1.0] * 40}


def _noisy(name: str) -> dict[str, list[float]]:
    """Return steady times but for one contestant, whose times lie on both sides of the others' in a few rounds."""
    return {key: times[:6] for key, times in STEADY.items()} | {name: [0.9, 0.9, 0.9, 0.9, 9.0, 9.0]}


def _three() -> list[MeasuredCandidate]:
    return [_entry(UNTUNED, "float32", 1.0), _entry("float32", "float32", 0.75), _entry("int8", "int8", 0.5)]


def test_a_clear_gain_is_taken_at_once(contest):
    assert contest(_three(), STEADY) == ("int8", 1)


def test_a_large_gain_under_noise_is_looked_at_again(contest):
    assert contest(_three(), _noisy("int8"), STEADY) == ("int8", 2)
    assert contest(_three(), _noisy("int8"), _noisy("int8"), STEADY) == ("int8", 3)


def test_what_stays_unclear_leaves_the_simpler_one(contest):
    passes = [_noisy("int8")] * 5
    assert contest(_three(), *passes) == ("float32", 5)
    assert contest(_three(), *passes, late=True) == ("float32", 1)
    slower = [times | {"float32": [2.1] * 6} for times in passes]
    assert contest(_three(), *slower) == (UNTUNED, 5)
    assert contest(_three(), *slower, late=True) == (UNTUNED, 1)


def test_a_small_gain_under_noise_is_not_worth_another_pass(contest):
    draw = np.random.default_rng(0)
    times = {name: list(1 + 0.2 * draw.random(40)) for name in STEADY}
    times["int8"] = [0.99 * value for value in draw.permutation(times[UNTUNED])]
    assert contest(_three(), times) == (UNTUNED, 1)


def test_lower_precision_has_to_beat_float32_too(contest):
    times = dict(STEADY) | {"int8": [1.49, 1.51] * 20}
    name, _ = contest(_three(), times)
    assert name == "float32"


@pytest.mark.parametrize("earlier", ["a", "b"])
def test_of_two_that_are_as_fast_the_one_that_was_tried_first_wins(contest, earlier):
    """Whichever was the faster before and is now, by less than the noise: that is luck."""
    entries = [_entry(UNTUNED, "float32", 1.0), _entry("a", "float32", 0.5), _entry("b", "float32", 0.52)]
    if earlier == "b":
        entries[1:] = entries[:0:-1]
    times = {UNTUNED: [2.0] * 40, "a": [1.0, 1.1] * 20, "b": [1.04] * 40}
    assert contest(entries, times) == (earlier, 1)
    times["b"] = [1.06] * 40
    assert contest(entries, times) == (earlier, 1)
    times["b"] = [1.11] * 40
    assert contest(entries, times) == ("a", 1)
    times["b"] = [0.99] * 40
    assert contest(entries, times) == ("b", 1)


@pytest.mark.parametrize("seed", range(8))
def test_the_choice_is_the_same_on_an_idle_and_on_a_busy_machine(contest, seed):
    """Some ways are as fast as each other; others' work makes half of all turns up to eight times as long."""
    draw = np.random.default_rng(seed)
    ways = {UNTUNED: 2.0, "one thread": 1.5, "another runtime": 1.0, "its fixed shapes": 1.0, "basic": 1.52}
    before = {name: value * float(draw.uniform(0.7, 1.4)) for name, value in ways.items()}

    def entries() -> list[MeasuredCandidate]:
        return [_entry(name, "float32", value / before[UNTUNED]) for name, value in before.items()]

    idle = {name: list(value * draw.normal(1, 0.01, 60)) for name, value in ways.items()}

    def busy() -> dict[str, list[float]]:
        return {
            name: list(value * np.where(draw.random(24) < 0.5, draw.uniform(1, 8, 24), draw.normal(1, 0.01, 24)))
            for name, value in ways.items()
        }

    chosen = contest(entries(), *[idle] * 5)[0], contest(entries(), *(busy() for _ in range(5)))[0]
    assert chosen == ("another runtime", "another runtime")


def test_who_is_beaten_takes_no_part_in_what_follows(contest):
    entries = [*_three(), _entry("slow", "float32", 0.9)]
    passes = [_noisy("int8") | {"slow": [1.9] * 6}, STEADY]  # no times of it in the second pass
    assert contest(entries, *passes) == ("int8", 2)


def test_one_that_the_finalists_turn_out_to_be_slower_than_is_looked_at_too(contest):
    """Three look fastest by luck; the one left out is twice as fast as what they are."""
    lucky = [_entry(f"lucky {index}", "int8", 0.1 + 0.1 * index) for index in range(3)]
    entries = [*lucky, _entry("steady", "int8", 0.45), _entry(UNTUNED, "float32", 1.0)]
    first = {UNTUNED: [2.0] * 40} | {entry.candidate.name: [1.9, 2.2] * 20 for entry in lucky}
    second = {**first, "steady": [0.9] * 40}
    assert contest(entries, first, second) == ("steady", 2)
    assert entries[3].ratio["value"] == pytest.approx(0.45)
    assert len(lucky[0].latency.samples) in (40, 80)  # of the passes it took part in


def test_one_that_may_be_as_fast_is_a_finalist(contest):
    entries = [_entry(f"int8 {index}", "int8", 0.4 + 0.01 * index) for index in range(4)]
    entries.append(_entry(UNTUNED, "float32", 1.0))
    times = {UNTUNED: [2.0] * 40} | {f"int8 {index}": [0.9 - 0.1 * index] * 40 for index in range(4)}
    assert contest(entries, times)[0] == "int8 2"  # the fourth is clearly slower so far
    entries[3].ratio = {"value": 0.43, "low": 0.3, "high": 0.6}
    assert contest(entries, times)[0] == "int8 3"


def test_the_fastest_by_the_clock_is_a_finalist(contest):
    """Its round was one in which the untuned model was fast too, so that its ratio says little for it."""
    entries = [_entry(f"int8 {index}", "int8", 0.4 + 0.01 * index) for index in range(5)]
    entries.append(_entry(UNTUNED, "float32", 1.0))
    for index, entry in enumerate(entries):
        entry.latency = Latency(entry.candidate.name, (0.5 if index == 4 else 1.0,) * 5)
    times = {UNTUNED: [2.0] * 40} | {f"int8 {index}": [0.9 - 0.1 * index] * 40 for index in range(5)}
    assert contest(entries, times)[0] == "int8 4"


def test_a_gain_that_noise_hides_is_called_unclear_and_not_slower():
    base, fast, slow = _entry(UNTUNED, "float32", 1.0), _entry("int8", "int8", 0.5), _entry("float16", "float16", 1.1)
    fast.ratio = {"value": 0.5, "low": 0.2, "high": 1.3}
    trial = fast.to_trial(base, Path("net.onnx"), Path("net.onnx"))
    assert (trial.status, trial.reason) == (
        "accepted",
        "unclear: 0.20 to 1.30 of the untuned model's time; tune again when the machine is less busy",
    )
    beside = _entry("float32", "float32", 0.98).to_trial(base, Path("net.onnx"), Path("net.onnx"))
    assert beside.reason == "as fast, as far as the noise tells"
    assert slow.to_trial(base, Path("net.onnx"), Path("net.onnx")).reason == "slower"
    assert base.to_trial(base, Path("net.onnx"), Path("net.onnx")).status == "chosen"
