"""How two files differ: its tables, for the console and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normdeploy.report import console

_MOST_ROWS = 30

Block = tuple[str, Sequence[str], Sequence[tuple[str, ...]], tuple[int, ...]]
"""A title, columns, rows, and which columns are numbers."""


def tables(found: Mapping[str, Any]) -> list[Block]:
    """Return the tables of `normdeploy.compare.Difference.to_dict`; those without rows are left out."""
    operators = [
        (name, f"{before:,}", f"{after:,}", f"{after - before:+,}")
        for name, (before, after) in found["operators"].items()
    ]
    weights = [
        (
            _names(row),
            _types(row),
            "another shape" if row["shape"] != row["other_shape"] else f"{row['changed']:,} of {row['count']:,}",
            number(row["largest"]) if row["shape"] == row["other_shape"] else "",
            ulps(row["ulps"]),
        )
        for row in found["weights"]
    ]
    outputs = [
        (
            _names(row),
            str(row["shape"]) if row["shape"] == row["other_shape"] else f"{row['shape']} and {row['other_shape']}",
            number(row["largest"]),
            number(row["rms"]),
            ulps(row["ulps"]),
            "" if row["decisions"] is None else f"{row['decisions']:.1%}",
        )
        for row in found["outputs"]
    ]
    nodes = "{:,} and {:,} nodes".format(*found["nodes"])
    alone = [(name, "the first") for name in found["only_first"]] + [
        (name, "the second") for name in found["only_second"]
    ]
    given = f"; fed {', '.join(found['inputs'])}" if found["inputs"] else ""
    blocks: list[Block] = [
        (f"Operators ({nodes})", ("operator", "first", "second", "change"), operators, (1, 2, 3)),
        (
            f"Weights that differ ({found['same_weights']} are equal bit by bit)",
            ("tensor", "type", "elements", "largest difference", "last places"),
            weights,
            (2, 3, 4),
        ),
        ("Weights of one file alone", ("tensor", "in"), alone, ()),
        (
            f"Outputs{given}",
            ("output", "shape", "largest difference", "RMS, relative", "last places", "same decisions"),
            outputs,
            (2, 3, 4, 5),
        ),
    ]
    return [(title, columns, shortened(rows, len(columns)), right) for title, columns, rows, right in blocks if rows]


def headline(found: Mapping[str, Any]) -> str:
    """Say in one line whether the files differ, and in what."""
    if found["same"]:
        return f"{found['first']} and {found['second']}: no difference" + (
            f" ({found['not_run']})" if found["not_run"] else ""
        )
    parts = [
        f"{len(found[key])} {words}"
        for key, words in (
            ("operators", "operators in another number"),
            ("weights", "weights with other values"),
            ("only_first", "weights of the first alone"),
            ("only_second", "weights of the second alone"),
        )
        if found[key]
    ]
    worst = max((row["rms"] for row in found["outputs"] if isinstance(row["rms"], float)), default=None)
    if worst is not None:
        parts.append(f"outputs up to {number(worst)} of their RMS apart" if worst else "equal outputs")
    return f"{found['first']} and {found['second']}: {', '.join(parts)}"


def shortened(rows: Sequence[tuple[str, ...]], columns: int) -> Sequence[tuple[str, ...]]:
    """Return the first rows, and one that counts the rest."""
    rest = len(rows) - _MOST_ROWS
    if rest <= 0:
        return rows
    return [*rows[:_MOST_ROWS], (f"... and {rest} more (all in --json)", *[""] * (columns - 1))]


def number(value: float | str) -> str:
    """Write a difference shortly."""
    return value if isinstance(value, str) else f"{value:.3g}"


def ulps(value: float | str | None) -> str:
    """Write units of the last place: whole numbers; nothing where there are none."""
    return "" if value is None else value if isinstance(value, str) else f"{value:,.0f}"


def print_difference(found: Mapping[str, Any]) -> None:
    """Print how two files differ."""
    console.print_plain(headline(found))
    for title, columns, rows, right in tables(found):
        console.print_rows(title, columns, rows, right=right)


def _names(row: Mapping[str, Any]) -> str:
    return row["name"] if row["name"] == row["other"] else f"{row['name']} and {row['other']}"


def _types(row: Mapping[str, Any]) -> str:
    one, two = (f"{row[key]}{row[shape]}" for key, shape in (("dtype", "shape"), ("other_dtype", "other_shape")))
    return one if one == two else f"{one} and {two}"
