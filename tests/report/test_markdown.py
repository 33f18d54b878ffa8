"""Results as Markdown: what people need in a pull request, and nothing of it is markup of somebody else's."""

from __future__ import annotations

import copy
import re

from build_report_data import REPORT

from normdeploy.report import fragments, markdown
from normdeploy.rewrite.ledger import Ledger, LedgerRow
from normdeploy.verification.record.answers import Check
from normdeploy.verification.record.verdict import Verdict

HOSTILE = "a|b <script>x</script> `c` [d](e)\n| --- |\n\x1b[31m"


def cells(text: str) -> list[list[str]]:
    """The tables' rows: a line in | |, cut at bars that are not escaped."""
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_a_table_keeps_its_columns_whatever_is_in_it() -> None:
    text = markdown.table(["a", HOSTILE], [[HOSTILE, 1], ["", HOSTILE]], right=[1])
    assert [len(row) for row in cells(text)] == [2, 2, 2, 2]
    assert len(text.splitlines()) == 4
    assert "---:" in text
    assert "<script>" not in text.replace("\\<", "")
    assert "\x1b" not in text


def test_a_build_in_markdown() -> None:
    text = markdown.build(REPORT)
    for words in (
        "### tiny\\_net",
        "✅ **PASS**",
        "features.1",
        "into features.0",
        "2.00x faster",
        "359 samples",
        "0.9861",
    ):
        assert words in text
    assert "| eager torch | 1,000 µs | 2.00x faster (1.67x to 2.50x) |" in text
    failed = copy.deepcopy(REPORT)
    failed["verdict"] |= {"status": "fail", "reasons": ["logits differ at <features>"]}
    for key in ("ledger", "latency", "quality"):
        del failed[key]
    text = markdown.build(failed)
    assert "❌ **FAIL**" in text
    assert "- logits differ at \\<features\\>" in text


def test_notebooks_show_verdicts_and_ledgers() -> None:
    rows = [
        LedgerRow("a<b>", "BatchNormalization", "folded", "conv"),
        LedgerRow("c", "affine map", "kept", reason="x & y"),
    ]
    shown = Ledger(rows)._repr_html_()
    for words in ("a&lt;b&gt;", "into conv", "x &amp; y", ">folded<", ">kept<"):
        assert words in shown
    assert "no normalization" in Ledger()._repr_html_()
    many = Ledger([LedgerRow(str(n), "affine map", "folded", "conv") for n in range(50)])
    assert "... and 10 more" in many._repr_html_()
    verdict = Verdict("fail", ["<reason>"], [Check("logic", "fail", "5 & 6")])
    shown = verdict._repr_html_()
    for words in (">fail<", "&lt;reason&gt;", "5 &amp; 6"):
        assert words in shown
    assert fragments.verdict(verdict.to_dict()) == shown
