"""The table: a row per case, a column per adapter; in Markdown, and as cells for a console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from normdeploy.conformance.case import RESULTS, Case, Outcome

SHORT = {
    "right": "right",
    "left": "left",
    "wrong": "WRONG",
    "refused": "refused",
    "crashed": "CRASHED",
    "does not apply": "",
}


def cell(outcome: Outcome) -> str:
    """Return an outcome in a few characters: a wrong one with its error."""
    text = SHORT[outcome.result]
    if outcome.result == "wrong" and outcome.error is not None:
        text += f" {outcome.error:.2g}"
    return text


def rows(outcomes: Sequence[Outcome], cases: Sequence[Case], adapters: Sequence[str]) -> list[list[str]]:
    """Return the table's cells: the case's name, then each adapter's; cases that no adapter takes are left out."""
    by_place = {(outcome.case, outcome.adapter): outcome for outcome in outcomes}
    found = []
    for case in cases:
        cells = [cell(by_place[case.name, adapter]) if (case.name, adapter) in by_place else "" for adapter in adapters]
        if any(cells):
            found.append([case.name, *cells])
    return found


def totals(outcomes: Sequence[Outcome], adapter: str) -> str:
    """Return how often an adapter did what, in words."""
    counts = Counter(outcome.result for outcome in outcomes if outcome.adapter == adapter)
    return ", ".join(f"{counts[result]} {result}" for result in RESULTS[:-1] if counts[result]) or "nothing to do"


def markdown(outcomes: Sequence[Outcome], cases: Sequence[Case], adapters: Sequence[str]) -> str:
    """Return one table per group of cases, and one of the totals."""
    parts = []
    for group in dict.fromkeys(case.group for case in cases):
        own = [case for case in cases if case.group == group]
        names = [
            name
            for name in adapters
            if any(
                o.adapter == name and o.result != "does not apply" and o.case.startswith(f"{group}/") for o in outcomes
            )
        ]
        if names:
            body = [[row[0].partition("/")[2], *row[1:]] for row in rows(outcomes, own, names)]
            parts.append(_table([group, *names], body))
    parts.append(_table(["adapter", "in all"], [[name, totals(outcomes, name)] for name in adapters]))
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
