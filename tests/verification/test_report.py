"""The verdict's own words: console lines, HTML page, pytest helper."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from normdeploy.verification import Check, MutantReport, SiteReport, Verdict
from normdeploy.verification.record.measured import Ratios


@pytest.fixture(scope="module")
def verdict(small) -> Verdict:
    return small.verdict(small.folded)


def test_the_summary_names_checks_and_mutants(verdict: Verdict):
    text = verdict.summary()
    assert text.startswith("verdict: PASS")
    for name in ("structure", "derivation", "logic", "traced", "rounding", "companions", "dynamic", "sensitivity"):
        assert name in text
    assert "mutants killed" in text


def test_the_page_is_self_contained_and_holds_the_story(verdict: Verdict):
    page = verdict.to_html()
    assert page.lower().startswith("<!doctype html>")
    for word in ("Rounding", "Error by depth", "Normalization sites", "epsilon x10", "worst input family", "eager"):
        assert word in page
    assert "<script src" not in page
    assert "<link" not in page
    assert page.count("<svg") >= 3


def test_the_error_by_depth_covers_every_operator_of_a_file_that_declares_no_inner_types(small, verdict: Verdict):
    graph = onnx.load(small.folded).graph
    assert not graph.value_info
    found = {point.value: point for point in verdict.depth}
    assert set(found) == {node.output[0] for node in graph.node if node.op_type != "Constant"}
    assert all(0 <= point.relative_error < 1e-5 for point in found.values())
    assert any(point.relative_error > 1e-9 for point in found.values())


def test_the_environment_records_what_ran(verdict: Verdict):
    facts = verdict.environment
    assert {"torch", "onnx", "onnxruntime", "numpy"} <= set(facts["versions"])
    assert len(facts["weights_sha256"]) == 64
    assert facts["settings"] == ["CPU level=all threads=1"]
    assert facts["inputs"]["x"]["shape"] == [2, 3, 8, 8]
    assert len(facts["content"]["content"]) == 64


def test_a_site_with_a_survivor_is_not_exercised():
    dead, harmless = MutantReport("a", True, 9.0, "f"), MutantReport("b", False, 0.1, "f", harmless=True)
    alive = MutantReport("c", False, 1.0, "f", "no input family moves the outputs")
    assert SiteReport("w", "LayerNormalization", (dead, harmless)).exercised
    site = SiteReport("w", "LayerNormalization", (dead, alive))
    assert not site.exercised
    assert site.survivors == (alive,)


def test_a_status_outside_the_five_is_refused():
    with pytest.raises(ValueError, match="expected one of"):
        Verdict("ok")  # type: ignore[arg-type]


def test_nonfinite_numbers_become_strings():
    import json

    data = json.loads(Verdict("fail", checks=[Check("logic", "fail", "x", Ratios(float("inf")))]).to_json())
    assert data["checks"][0]["measured"] == {"worst_ratio": "inf"}


def test_a_verdict_shows_itself_in_a_line(small: Any):
    verdict = small.verdict(small.folded, level="quick")
    assert len(repr(verdict)) < 100
    assert "'pass'" in repr(verdict)
