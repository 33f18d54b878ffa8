"""Float, post-training and trained int8 beside each other: on the page and in the console, with intervals."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from build_report_data import LATENCY, REPORT

from normdeploy.report.build_report import build_page, print_build
from normdeploy.report.page import render_page

NAMES = ("float32", "int8, post-training", "int8, trained (QAT)")
QUALITY = {"value": 0.9777, "low": 0.9567, "high": 0.9887}
LOST = {"value": 0.0028, "low": -0.0049, "high": 0.0104}
QUANTIZED: dict[str, Any] = {
    "status": "pass",
    "measure": "accuracy",
    "count": 359,
    "rows": [
        {"name": NAMES[0], "quality": QUALITY},
        {"name": NAMES[1], "quality": QUALITY, "lost": LOST, "error": {"value": 0.023, "low": 0.021, "high": 0.026}},
        {"name": NAMES[2], "quality": QUALITY, "lost": LOST},
    ],
    "bytes": dict(zip(NAMES, (180861, 58744, 77376), strict=True)),
    "latency": {"contenders": [LATENCY | {"name": name} for name in NAMES]},
    "verdict": {
        "status": "pass",
        "reasons": [],
        "checks": [{"name": "quantization", "status": "note", "detail": "moves the outputs by 3.1%", "measured": {}}],
    },
}
SHOWN = (*NAMES, "0.9777 (0.9567 to 0.9887)", "0.0028 (-0.0049 to 0.0104)", "2.30% (2.10% to 2.60%)", "58,744", "1,000")


def report(**changed: Any) -> dict[str, Any]:
    return copy.deepcopy(REPORT) | {"quantized": QUANTIZED | changed}


def test_the_page_shows_each_file_with_intervals_and_the_verdict() -> None:
    html = render_page(build_page(report()))
    for text in (*SHOWN, "moves the outputs by 3.1%", "359"):
        assert text in html, text
    assert "Quantized" not in render_page(build_page(REPORT))


def test_the_console_shows_them_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    print_build(report())
    shown = capsys.readouterr().out
    for text in SHOWN:
        assert text in shown, text


def test_one_that_failed_says_why_without_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    failed = QUANTIZED["verdict"] | {"status": "fail", "reasons": ["rounding: 12 times the bound"]}
    found = copy.deepcopy(REPORT) | {"quantized": {"status": "fail", "verdict": failed}}
    assert "rounding: 12 times the bound" in render_page(build_page(found))
    print_build(found)
    assert "post-training" not in capsys.readouterr().out
