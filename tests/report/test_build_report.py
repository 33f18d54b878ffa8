"""The build report: from plain data to console and page."""

from __future__ import annotations

import copy
import re

import pytest
from build_report_data import REPORT

from normdeploy.report.build_report import build_page, print_build
from normdeploy.report.latency_sections import ratio_words
from normdeploy.report.page import render_page


def test_console_shows_every_line_of_the_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    print_build(REPORT)
    shown = capsys.readouterr().out
    for words in (
        "features.1", "into features.0", "ReLU stands between", "as LayerNormalization; biased", "12", "1,500",
        "eager torch", "plain export", "1,000 µs", "2.00x faster (1.67x to 2.50x)", "359 samples", "0.9889", "0.9861",
        "verdict: PASS",
    ):  # fmt: skip
        assert words in shown


def test_page_shows_the_same() -> None:
    html = render_page(build_page(REPORT))
    for words in (
        "tiny_net", "2 of 3", "into features.0", "ReLU stands between", "14 → 9", "plain export: 12",
        "98.61%", "eager torch: 98.89%",
        "0.9889",
        "redundant bias", "shift dropped: harmless here", "GPU providers", "ab" * 32,
    ):  # fmt: skip
        assert words in html


def test_the_chain_behind_a_reason_is_on_the_page_only(capsys: pytest.CaptureFixture[str]) -> None:
    report = copy.deepcopy(REPORT)
    kept = next(row for row in report["ledger"]["rows"] if row["action"] == "kept")
    kept["chain"] = ["Conv 'one' has <no> weights", "Relu 'two'"]
    html = render_page(build_page(report))
    details = html[html.index("ReLU stands between") :].split("</td>")[0]
    assert "<details>" in details
    assert details.count("<li>") == 2
    assert "has &lt;no&gt; weights" in details
    print_build(report)
    assert "Relu 'two'" not in capsys.readouterr().out


def test_a_failed_build_has_a_page_without_measurements() -> None:
    report = copy.deepcopy(REPORT) | {"status": "fail", "onnx_sha256": None, "ledger": None}
    for key in ("graph", "latency", "quality", "machine"):
        del report[key]
    report["verdict"]["reasons"] = ["logits differ by 3 % at features.1"]
    html = render_page(build_page(report))
    assert "logits differ by 3 % at features.1" in html
    assert 'class="badge large bad"' in html


@pytest.mark.parametrize(
    ("value", "low", "high", "words"),
    [
        (0.25, 0.2, 0.26, "4.00x faster (3.85x to 5.00x)"),
        (0.05, 0.04, 0.0625, "20x faster (16x to 25x)"),
        (1.0, 0.9, 1.08, "about as fast (0.90x to 1.08x the time)"),
        (0.97, 0.93, 1.0, "about as fast (0.93x to 1.00x the time)"),
        (0.7, 0.09, 4.72, "not clear (0.09x to 4.72x the time)"),
        (1.0, 0.81, 1.26, "not clear (0.81x to 1.26x the time)"),
        (1.5, 1.25, 2.0, "1.50x slower (1.25x to 2.00x)"),
    ],
)
def test_ratios_are_said_as_people_say_them(value: float, low: float, high: float, words: str) -> None:
    assert ratio_words({"value": value, "low": low, "high": high}) == words
    assert ratio_words(None) == ""


def test_words_are_explained_before_they_are_used() -> None:
    html = render_page(build_page(REPORT))
    for word in ("affine map", "folded", "fused", "merged", "kept", "site", "mutant"):
        explained = html.index(f"<dt>{word}</dt>")
        assert explained < html.index("<h2>What became of each normalization")


def test_one_colour_means_one_thing() -> None:
    """Grey is eager torch and what it ran, orange is plain export, blue is ours."""
    html = render_page(build_page(REPORT))
    latency, counts = re.findall("<svg.*?</svg>", html, re.DOTALL)
    assert [name in latency for name in ("--eager", "--plain", "--ours")] == [True, True, True]
    assert [name in counts for name in ("--eager", "--plain", "--ours")] == [True, False, True]
