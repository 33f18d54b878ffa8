"""A progress bar with loss, accuracy and the time left."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from normdeploy.train.history import Epoch

_SILENT = 2.0
"""Seconds between the lines of a log."""


class TrainingProgress:
    """Shows steps of a training as they happen; a context manager.

    Args:
        name: what is trained.
        steps: how many steps there are at most.
        done: steps an interrupted run had done already.
        shown: false keeps silent (tests, and all processes but the first).
    """

    def __init__(self, name: str, steps: int, *, done: int = 0, shown: bool = True) -> None:
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=14),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  valid {task.fields[valid]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),  # standard output stays for results
            disable=not shown,
        )
        self._told = time.monotonic()
        self._task = self._bar.add_task(name, total=steps, completed=done, loss="-", valid="-")

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def step(self, loss: float) -> None:
        """Advance by one step whose training loss was ``loss``."""
        self._bar.update(self._task, advance=1, loss=f"{loss:.4f}")

    def epoch(self, epoch: Epoch) -> None:
        """Show the validation result of an epoch; in a log, where a bar does not move, a line every two seconds."""
        self._bar.update(self._task, valid=f"{epoch.valid_accuracy:.2%}")
        console = self._bar.console
        if not self._bar.disable and not console.is_terminal and time.monotonic() - self._told >= _SILENT:
            self._told = time.monotonic()
            words = f"epoch {epoch.number}: loss {epoch.train_loss:.4f}, valid {epoch.valid_accuracy:.2%}"
            console.print(words, highlight=False, markup=False)

    def note(self, text: str) -> None:
        """Say something that a reader of the result should know."""
        if not self._bar.disable:
            self._bar.console.print(f"note: {text}", style="yellow", highlight=False, markup=False)
