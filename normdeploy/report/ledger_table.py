"""The ledger on a terminal: rows that differ in numbers of modules alone are one; a narrow terminal gets no cells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.padding import Padding

from normdeploy.report.console import ACTION_STYLES, console, row_words, table
from normdeploy.report.text import Text

_FEW = 16
"""Rows of a ledger that is shown as it is."""

_MOST = 40
"""Rows, or groups of them, that are shown at all."""

_READABLE = 24
"""The least width of the last column: below, its words stand one under the other."""

_PATH = re.compile(r"(?:\d+\.)*[A-Za-z_]\w*(?:\.\w+)+")
_NUMBER = re.compile(r"(\d+)")


def print_ledger(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what became of every normalization and affine map, from `LedgerRow.to_dict` rows."""
    if not rows:
        console().print("no normalization or channel-wise affine map was found")
        return
    groups = grouped(rows) if len(rows) > _FEW else [(1, row["where"], row, row_words(row)) for row in rows]
    lines = [
        (f"{where} ({count})" if count > 1 else where, row["kind"], row["action"], words)
        for count, where, row, words in groups[:_MOST]
    ]
    taken = sum(max(len(line[column]) for line in lines) + 2 for column in range(3))
    print_lines = _as_table if console().width - taken >= _READABLE else _as_lines
    print_lines(lines)
    left = sum(count for count, *_ in groups[_MOST:])
    if left:
        console().print(f"... and {left} more rows")
    if left or len(groups) < len(rows):
        said = "* stands for the numbers of several modules, and how many follows; " if len(groups) < len(rows) else ""
        console().print(Text(f"{said}all {len(rows)} rows: --json, or the report of a build", style="dim"))


def grouped(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, str, Mapping[str, Any], str]]:
    """Group rows that say the same of modules whose paths differ in numbers alone.

    Returns:
        for each group, in the order of its first row: how many, the path and the words, with ``*`` where numbers
        differ, and the first row.
    """
    alike: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        key = _pattern(str(row["where"])), row["kind"], row["action"], _pattern(row_words(row))
        alike.setdefault(key, []).append(row)
    return [
        (len(same), _merged([str(row["where"]) for row in same]), same[0], _merged([row_words(row) for row in same]))
        for same in alike.values()
    ]


def _pattern(text: str) -> str:
    """Put ``*`` for the numbers that end a part of a path, as in ``stages.*.blocks.*.norm*``."""
    return _PATH.sub(lambda path: re.sub(r"\d+(?![^.])", "*", path.group()), text)


def _merged(texts: Sequence[str]) -> str:
    """Put ``*`` for the numbers in which texts differ that are the same otherwise."""
    pieces = [_NUMBER.split(text) for text in texts]
    if len({len(parts) for parts in pieces}) > 1:  # a name has a star of its own where others have a number
        return _pattern(texts[0])
    return "".join(parts[0] if len(set(parts)) == 1 else "*" for parts in zip(*pieces, strict=True))


def _as_table(lines: Sequence[tuple[str, str, str, str]]) -> None:
    shown = table("Normalizations and affine maps", ["where", "what", "became", "of it"])
    for where, kind, action, words in lines:
        shown.add_row(Text(where), Text(kind), Text(action, style=ACTION_STYLES[action]), Text(words))
    console().print(shown)


def _as_lines(lines: Sequence[tuple[str, str, str, str]]) -> None:
    """Print a row as one or two lines: what became of what, and under it the words that do not fit beside it."""
    out = console()
    out.print(Text("Normalizations and affine maps", style="bold"))
    for where, kind, action, words in lines:
        line = Text(f"{action:<7}", style=ACTION_STYLES[action])
        room = out.width - len(action.ljust(7)) - len(kind) - 3
        line.append(f" {kind}  ", style="default").append(_shortened(where, room), style="bold default")
        if len(line) + 2 + len(words) <= out.width:
            out.print(line.append(f"  {words}", style="not bold default"))
        else:
            out.print(line)
            out.print(Padding(Text(words), (0, 0, 0, 8)))


def _shortened(path: str, room: int) -> str:
    """Cut a path from the left, where it says least."""
    return path if len(path) <= max(room, 8) else "…" + path[1 - max(room, 8) :]
