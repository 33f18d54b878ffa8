"""Results as fragments of HTML, as notebooks show them: colours of their own for a light and a dark page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from normdeploy.report.console import row_words
from normdeploy.report.text import printable

_MOST_ROWS = 40
# read on white and on black alike
_COLOURS = {
    "pass": "#1a8a5a", "folded": "#1a8a5a", "fused": "#1a8a5a", "merged": "#1a8a5a",
    "weak": "#b07a10", "not-exercised": "#b07a10", "kept": "#b07a10",
    "fail": "#d2453c", "error": "#d2453c",
}  # fmt: skip


def verdict(data: Mapping[str, Any]) -> str:
    """Return a verdict, from `Verdict.to_dict`."""
    reasons = "".join(f"<li>{_text(reason)}</li>" for reason in data["reasons"])
    rows = ((_text(check["name"]), _word(check["status"]), _text(check["detail"])) for check in data["checks"])
    checks = _table(("check", "answer", "what was found"), rows)
    return f"<div><p>{_word(data['status'])}</p><ul>{reasons}</ul>{checks}</div>"


def ledger(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what became of every normalization, from `LedgerRow.to_dict` rows."""
    if not rows:
        return "<p>no normalization or channel-wise affine map was found</p>"
    shown = (
        (_text(row["where"]), _text(row["kind"]), _word(row["action"]), _text(row_words(row)))
        for row in rows[:_MOST_ROWS]
    )
    rest = len(rows) - _MOST_ROWS
    more = f"<p>... and {rest} more</p>" if rest > 0 else ""
    return f"<div>{_table(('where', 'what', 'became', 'of it'), shown)}{more}</div>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th style="text-align: left">{column}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align: left; vertical-align: top">{cell}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    return escape(printable(str(value)))


def _word(word: str) -> str:
    return f'<b style="color: {_COLOURS.get(word, "inherit")}">{_text(word)}</b>'
