"""Results as Markdown: for pull requests and the summaries of CI runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normdeploy.report.build_report import VERDICT_WORDS
from normdeploy.report.console import row_words
from normdeploy.report.difference_tables import headline, tables
from normdeploy.report.latency_sections import MICRO, ratio_words, threads_words
from normdeploy.report.text import printable

# what Markdown or HTML inside it would take for markup
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#~])")
_MARKS = {"pass": "✅", "weak": "⚠️", "not-exercised": "⚠️", "fail": "❌", "error": "❌"}


def plain(text: object) -> str:
    """Return text in which nothing is markup, on one line: names come from whoever wrote the model."""
    return _MARKUP.sub(r"\\\1", printable(" ".join(str(text).split())))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = ()) -> str:
    """Return a table; ``right`` numbers the columns aligned right."""
    aligned = set(right)
    rule = ["---:" if place in aligned else "---" for place in range(len(columns))]
    lines = [[plain(column) or " " for column in columns], rule, *([plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ledger(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what became of every normalization, from `LedgerRow.to_dict` rows."""
    if not rows:
        return "No normalization or channel-wise affine map was found."
    shown = [(row["where"], row["kind"], row["action"], row_words(row)) for row in rows]
    return table(["where", "what", "became", "of it"], shown)


def verdict(data: Mapping[str, Any]) -> str:
    """Return a verdict, from `Verdict.to_dict`: status, reasons, checks, what was not checked."""
    status = data["status"]
    lines = [f"{_MARKS[status]} **{plain(status.upper())}** {plain(VERDICT_WORDS[status])}"]
    if data["reasons"]:
        lines.append("\n".join(f"- {plain(reason)}" for reason in data["reasons"]))
    rows = [(check["name"], check["status"], check["detail"]) for check in data["checks"]]
    lines.append(_behind("Checks", table(["check", "answer", "what was found"], rows)))
    if data["not_checked"]:
        lines.append(_behind("Not checked", "\n".join(f"- {plain(text)}" for text in data["not_checked"])))
    return "\n\n".join(lines)


def export(path: str, rows: Sequence[Mapping[str, Any]], judged: Mapping[str, Any] | None) -> str:
    """Return what an export or a fold wrote: the ledger and the verdict."""
    proof = "Not verified." if judged is None else verdict(judged)
    return f"### {plain(path)}\n\n{proof}\n\n{ledger(rows)}\n"


def build(report: Mapping[str, Any]) -> str:
    """Return a build's report, from its plain data."""
    parts = [f"### {plain(report['name'])}", verdict(report["verdict"])]
    if report.get("ledger"):
        parts.append(ledger(report["ledger"]["rows"]))
    if "latency" in report:
        latency = report["latency"]
        rows = [
            (item["name"], f"{item['median_s'] * MICRO:,.0f} µs", ratio_words(latency["ratios"].get(item["name"])))
            for item in latency["contenders"]
        ]
        head = f"latency, batch {latency['batch_size']}, {threads_words(latency['threads'])}"
        parts.append(table([head, "median", "normdeploy is"], rows, right=(1,)))
    if report.get("quality"):
        quality = report["quality"]
        rows = [
            (name, f"{quality[key]['accuracy']:.4f}", f"{quality[key]['loss']:.6f}")
            for name, key in (("eager torch", "eager"), ("onnxruntime", "onnxruntime"))
        ]
        parts.append(table([f"test split, {quality['count']} samples", quality["measure"], "loss"], rows, right=(1, 2)))
    return "\n\n".join(parts) + "\n"


def difference(found: Mapping[str, Any]) -> str:
    """Return how two files differ, from `normdeploy.compare.Difference.to_dict`."""
    parts = [f"### {plain(headline(found))}"]
    for title, columns, rows, right in tables(found):
        parts.append(f"**{plain(title)}**\n\n{table(columns, rows, right=right)}")
    return "\n\n".join(parts) + "\n"


def _behind(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"
