"""Console output: plain data in, rich tables out. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from normdeploy.report.text import Text

#: How a verdict's status looks on a terminal.
STATUS_STYLES = {
    "pass": "bold green",
    "weak": "bold yellow",
    "not-exercised": "bold yellow",
    "fail": "bold red",
    "error": "bold red",
}
#: How an action of the ledger looks.
ACTION_STYLES = {"folded": "green", "fused": "green", "merged": "green", "kept": "yellow"}
_SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan", "info": "cyan"}


_ASIDE: ContextVar[bool] = ContextVar("standard output is kept for something else", default=False)


def console() -> Console:
    """Return a console on the present standard output, or on standard error inside `on_stderr`."""
    return Console(soft_wrap=False, highlight=False, stderr=_ASIDE.get())


@contextmanager
def on_stderr() -> Iterator[None]:
    """Print to standard error: standard output is kept for the one result."""
    token = _ASIDE.set(True)
    try:
        yield
    finally:
        _ASIDE.reset(token)


def print_plain(text: str) -> None:
    """Print text as it is, escapes written out, lines of any length."""
    console().print(Text(text), soft_wrap=True)


def table(title: str, columns: Sequence[str], *, right: Iterable[int] = ()) -> Table:
    """Return an empty table in the one style; ``right`` numbers the columns aligned right."""
    made = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    aligned = set(right)
    for place, column in enumerate(columns):
        made.add_column(column, justify="right" if place in aligned else "left", overflow="fold")
    return made


def print_notes(notes: Iterable[str]) -> None:
    """Print sentences the user should know."""
    for note in notes:
        console().print(Text("note: ", style="cyan").append(note, style="default"), soft_wrap=True)


def print_step(name: str, text: str, *, fresh: bool = False) -> None:
    """Print one line of a build: the step, and what happened; dim where nothing had to be done."""
    console().print(
        Text(f"{name:<9} ", style="bold").append(text, style="dim not bold" if fresh else "not bold"), soft_wrap=True
    )


def row_words(row: Mapping[str, Any]) -> str:
    """Say in a few words where a normalization went, or why it stayed."""
    if row["action"] == "kept" or not row["into"]:
        return str(row["reason"])
    words = f"{'as' if row['action'] == 'fused' else 'into'} {row['into']}"
    return f"{words}; {row['reason']}" if row["reason"] else words


def print_verdict(verdict: Any) -> None:
    """Print a verdict's status and summary; None says that nothing was verified."""
    if verdict is None:
        console().print(Text("not verified", style="bold yellow"))
        return
    lines = verdict.summary().splitlines()
    console().print(Text(lines[0], style=STATUS_STYLES[verdict.status]), soft_wrap=True)
    for line in lines[1:]:
        console().print(Text(line), soft_wrap=True)


def print_findings(rows: Sequence[Mapping[str, str]]) -> None:
    """Print findings: severity and place, what, and the remedy."""
    for row in rows:
        head = Text(f"{row['severity']:<8}", style=_SEVERITY_STYLES.get(row["severity"], "bold"))
        console().print(head.append(f" {row['where'] or '(model)'}", style="bold default"), soft_wrap=True)
        console().print(Text(f"         {row['what']}"), soft_wrap=True)
        console().print(Text(f"         remedy: {row['remedy']}", style="dim"), soft_wrap=True)


def print_training(facts: Mapping[str, str]) -> None:
    """Print how a training ended, from its metadata."""
    words = (
        f"trained: test accuracy {facts['test_accuracy']} on {facts['test_count']} samples, "
        f"{facts['epochs']} epochs in {facts['seconds']} s on {facts['device']} (epoch {facts['kept_epoch']} kept)"
    )
    console().print(Text(words), soft_wrap=True)


def print_arrays(arrays: Mapping[str, Any]) -> None:
    """Print named arrays, shortened in the middle."""
    import numpy as np

    for name, value in arrays.items():
        array = np.asarray(value)
        console().print(Text(f"{name} {array.dtype}{list(array.shape)}", style="bold"))
        console().print(Text(np.array2string(array, threshold=60, precision=6, suppress_small=False)), soft_wrap=True)


def print_facts(title: str, facts: Mapping[str, Any]) -> None:
    """Print names and values."""
    shown = Table(title=title, box=None, show_header=False, title_justify="left", title_style="bold", pad_edge=False)
    shown.add_column(style="dim")
    shown.add_column(overflow="fold")
    for name, value in facts.items():
        shown.add_row(Text(name), Text(str(value)))
    console().print(shown)


def print_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Iterable[int] = ()) -> None:
    """Print a plain table."""
    shown = table(title, columns, right=right)
    for row in rows:
        shown.add_row(*(Text(str(cell)) for cell in row))
    console().print(shown)


_RESULT_STYLES = {"right": "green", "left": "yellow", "refused": "cyan", "WRONG": "bold red", "CRASHED": "bold red"}


def print_conformance(rows: Sequence[Sequence[str]], adapters: Sequence[str]) -> None:
    """Print what adapters did with cases: the case's name, then a cell for each adapter."""
    shown = table("", ["case", *adapters])
    for name, *cells in rows:
        shown.add_row(Text(name), *(Text(cell, style=_RESULT_STYLES.get(cell.split(" ")[0], "")) for cell in cells))
    console().print(shown)


def print_written(paths: Iterable[Path]) -> None:
    """Print the files that were written."""
    for path in paths:
        console().print(Text("wrote ", style="dim").append(str(path), style="default not dim"), soft_wrap=True)
