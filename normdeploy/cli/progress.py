"""What a command is at, on standard error: standard output stays for results."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

Tell = Callable[[str], None]

_SILENT = 2.0
"""Seconds without a line, where there is no terminal, after which the step at hand is named."""
_AGAIN = 60.0
"""Seconds after which a step that is still at hand is named again."""


@contextmanager
def working(title: str, first: str = "", *, every_step: bool = False) -> Iterator[Tell]:
    """Show what a command is at; yields what it reports to.

    On a terminal one line that changes, with the time since the start. Elsewhere (a log file, CI) lines with that time:
    a step is named where two seconds went by without one, so that what is quick stays quiet.

    Args:
        title: of the command.
        first: the first step.
        every_step: name every step at once where there is no terminal.
    """
    from rich.console import Console

    console = Console(stderr=True)
    shown = _Line(title, console) if console.is_terminal else _Lines(title, every_step=every_step)
    shown.tell(first)
    shown.start()
    try:
        yield shown.tell
    finally:
        shown.stop()


def verifying(tell: Tell) -> Callable[[str, float], None]:
    """Return what the verifier and `normdeploy.api` report to: a stage and the share of it that is done."""
    return lambda stage, share: tell(f"{stage} ({share:.0%})" if share else stage)


class _Line:
    """One line on a terminal; it moves by itself while the work goes on."""

    def __init__(self, title: str, console: Console) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        columns = (SpinnerColumn(), TimeElapsedColumn(), text)
        self._title = title
        # what the model's own code prints goes above the line, unless it goes elsewhere
        mixed = sys.stdout.isatty()
        self._bar = Progress(*columns, console=console, transient=True, redirect_stdout=mixed)
        self._task = self._bar.add_task(title, total=None)

    def start(self) -> None:
        self._bar.start()

    def stop(self) -> None:
        self._bar.stop()

    def tell(self, step: str) -> None:
        from normdeploy.report.text import printable

        self._bar.update(self._task, description=printable(f"{self._title}: {step}" if step else self._title))


class _Lines:
    """Lines in a log, written by a thread: the work itself may be one long call."""

    def __init__(self, title: str, *, every_step: bool) -> None:
        self._title, self._every_step = title, every_step
        self._step, self._told = "", True
        self._started = self._last = time.monotonic()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def tell(self, step: str) -> None:
        with self._lock:
            self._step, self._told = step, not step
            if step and self._every_step:
                self._write()

    def _watch(self) -> None:
        while not self._ended.wait(_SILENT / 8):
            with self._lock:
                quiet = time.monotonic() - self._last
                if quiet >= (_AGAIN if self._told else _SILENT):
                    self._write()

    def _write(self) -> None:
        from normdeploy.report.text import printable

        self._told, self._last = True, time.monotonic()
        minutes, rest = divmod(int(self._last - self._started), 60)
        typer.echo(printable(f"{self._title} [{minutes}:{rest:02}] {self._step}"), err=True)
