"""The tables of the zoo, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
TIMES = ("export_s", "rewrite_s", "verify_s")


def _number(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"


def verdict_cell(row: Row) -> str:
    """Return the verdict with the checks that are no passes, or what ended the run and where."""
    if "ended" in row:
        return f"{row['ended']} in {row['stage']}"
    return ", ".join([row["verdict"], *row["not_passes"]])


def proven_cell(row: Row) -> str:
    """Return how many operators hold for every input."""
    count = row.get("operators")
    return "" if count is None else f"{count - len(row['by_samples_only'])} of {count}"


def _mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def verdicts(rows: Sequence[Row]) -> str:
    """Return the table of verdicts: what was judged, what is proven for every input, what it cost."""
    heads = ("network", "kind", "verdict", "for every input", "export, s", "rewrite, s", "verify, s", "peak, MB")
    lines = _head(heads)
    for row in rows:
        peak = _number(row["peak"] / 1e6, 0) if "peak" in row else ""
        times = [_number(row.get(key), 1) for key in TIMES]
        times[0] = "fails" if "export_failed" in row else times[0]
        lines.append(_line([row["name"], row["kind"], verdict_cell(row), proven_cell(row), *times, peak]))
    done = [row for row in rows if "verdict" in row]
    passed = sum(row["verdict"] == "pass" for row in done)
    proven = sum(bool(row["operators"]) and not row["by_samples_only"] for row in done)
    cost = _mean((row["rewrite_s"] + row["verify_s"]) / row["export_s"] for row in done if "export_s" in row)
    return "\n".join(
        [
            *lines,
            "",
            f"{len(rows)} networks: {passed} passed; of {proven} each operator is proven for every input; "
            f"rewriting and verifying took {cost:.2f} times torch's export (geometric mean).",
        ]
    )


def folds(rows: Sequence[Row]) -> str:
    """Return the table of what was folded: norms and maps, nodes, rewrite time, error."""
    heads = ("network", "norms and maps", "one operator", "kept", "nodes as traced", "nodes", "rewrite, s")
    lines = _head((*heads, "error over eager's", "torch's file"))
    done = [row for row in rows if "nodes" in row]
    for row in done:
        counts = [str(row[key]) for key in ("maps", "fused", "kept", "nodes_traced", "nodes")]
        errors = [_number(row.get(key), 2) for key in ("error", "error_torch")]
        errors[1] = "fails" if "export_failed" in row else errors[1]
        lines.append(_line([row["name"], *counts, _number(row["rewrite_s"], 2), *errors]))
    sums = [str(sum(row[key] for row in done)) for key in ("maps", "fused", "kept", "nodes_traced", "nodes")]
    means = [_number(_mean(row[key] for row in done if row.get(key)), 2) for key in ("error", "error_torch")]
    total = _number(sum(row["rewrite_s"] for row in done), 0)
    return "\n".join([*lines, _line(["all: sums, geometric means", *sums, total, *means])])


def kept(rows: Sequence[Row]) -> str:
    """Return what stays in each network, and why."""
    return "\n".join(f"{row['name']}: {reason}" for row in rows for reason in row.get("reasons", []))


def _head(names: Sequence[str]) -> list[str]:
    return [_line(names), "|---" * len(names) + "|"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
