"""Beside a GPU that leaves the processor far behind, no int8 is calibrated on the processor; the plan says why."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from normdeploy.ort.settings import CPU, CUDA
from normdeploy.runtime import Settings
from normdeploy.runtime.latency import Latency
from normdeploy.runtime.tuning.candidates import Candidate, named
from normdeploy.runtime.tuning.judge import Outcome
from normdeploy.runtime.tuning.measured_candidate import MeasuredCandidate
from normdeploy.runtime.tuning.trials import Tried
from normdeploy.runtime.tuning.variants import INT8_REACH, Int8Variants


def _variants(tmp_path: Path, seen: list[MeasuredCandidate]) -> tuple[Tried, list[str]]:
    told: list[str] = []
    base = Candidate("untuned", "float32", tmp_path / "net.onnx", Settings(CUDA))
    judge = SimpleNamespace(calibration={})
    tried = Tried(base, judge, {}, time.monotonic() + 60, 0, told.append, opened=seen)
    list(Int8Variants(base.file, tried, tmp_path, 1, {CPU, CUDA}).first(Settings(CPU, threads=1)))
    return tried, told


def _timed(provider: str, ratio: float) -> MeasuredCandidate:
    return MeasuredCandidate(
        named(Settings(provider, threads=1 if provider == CPU else 0), Path("net.onnx")),
        outcome=Outcome(True, "float32"),
        ratio={"value": ratio, "low": ratio, "high": ratio},
    )


def _hopeless(ratio: float) -> MeasuredCandidate:
    glances = Latency("cpu", (ratio * 1e-3, ratio * 1e-3)), Latency("untuned", (1e-3, 1e-3))
    return MeasuredCandidate(
        named(Settings(CPU, threads=1), Path("net.onnx")), outcome=Outcome(True, "float32"), hopeless=glances
    )


def test_a_processor_far_behind_is_not_calibrated_on(tmp_path):
    tried, told = _variants(tmp_path, [_timed(CUDA, 0.5), _hopeless(200.0), _hopeless(30.0)])
    assert told == []
    (skipped,) = tried.skipped
    assert (skipped.precision, skipped.status) == ("int8", "skipped")
    assert "float32 takes 60 times as long" in skipped.reason
    assert "CUDA" in skipped.reason


@pytest.mark.parametrize(
    "seen",
    [
        [_timed(CUDA, 1.0), _hopeless(INT8_REACH - 1)],
        [_timed(CUDA, 1.0), _timed(CPU, 3.0), _hopeless(100.0)],
        [_timed(CPU, 1.0), _timed(CPU, 0.5)],
        [_timed(CUDA, 1.0)],
    ],
    ids=["hopeless but within reach", "one way within reach", "no GPU", "processor not timed"],
)
def test_within_reach_it_is_tried(tmp_path, seen):
    tried, told = _variants(tmp_path, seen)
    assert told[0] == "taking the ranges of activations"
    assert [trial.status for trial in tried.skipped] == ["failed"]  # there is no file here to quantize
