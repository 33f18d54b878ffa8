"""From which way the next round of a tuning starts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from normdeploy.runtime import Settings
from normdeploy.runtime.tuning.candidates import UNTUNED, Candidate
from normdeploy.runtime.tuning.judge import Outcome
from normdeploy.runtime.tuning.measured_candidate import MeasuredCandidate
from normdeploy.runtime.tuning.trials import Tried

FILE = Path("net.onnx")


def _tried(base_accepted: bool = True, **ways: tuple[float, float, float] | tuple[float, float, float, str]) -> Tried:
    """Return a search that tried the untuned model and then these ways: value, low, high and, if given, a precision."""
    base = Candidate(UNTUNED, "float32", FILE, Settings())
    tried = Tried(base, None, {}, time.monotonic() + 60, 0, lambda _: None)  # type: ignore[arg-type]  # judges nothing
    opened = [MeasuredCandidate(base, Outcome(base_accepted, "float32"), ratio={"value": 1.0, "low": 1.0, "high": 1.0})]
    for name, (value, low, high, *rest) in ways.items():
        precision = str(rest[0]) if rest else "float32"
        candidate = Candidate(name, precision, FILE, Settings())
        ratio = {"value": value, "low": low, "high": high}
        opened.append(MeasuredCandidate(candidate, Outcome(True, precision), ratio=ratio))
    tried.opened += opened
    return tried


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        ({"one": (0.97, 0.90, 1.04), "two": (0.95, 0.90, 1.02)}, UNTUNED),
        ({"one": (0.80, 0.75, 0.85), "two": (0.78, 0.74, 0.83)}, "one"),
        ({"one": (0.80, 0.78, 0.85), "two": (0.70, 0.65, 0.77)}, "two"),
        ({"one": (0.52, 0.50, 0.54, "int8"), "two": (0.55, 0.53, 0.58)}, "two"),
        ({"one": (0.52, 0.50, 0.54, "int8"), "two": (0.58, 0.56, 0.60)}, "one"),
        ({}, UNTUNED),
    ],
)
def test_the_simplest_that_none_beats_beyond_the_noise(ways, expected) -> None:
    assert _tried(**ways).best().name == expected


def test_only_what_is_asked_for_counts() -> None:
    tried = _tried(one=(0.8, 0.75, 0.85), two=(0.5, 0.45, 0.55))
    assert tried.best(lambda way: way.name != "two").name == "one"
    assert tried.best(lambda _: False).name == UNTUNED


def test_an_untuned_model_outside_the_budget_is_no_way() -> None:
    assert _tried(base_accepted=False, one=(1.3, 1.2, 1.4)).best().name == "one"
    assert _tried(base_accepted=False).best().name == UNTUNED
