"""The command group: errors become one message and an exit code.

Exit codes: 0 pass, 1 verification failed, 2 usage, 3 weak or not exercised, 4 the model or an input is unusable,
130 stopped by Ctrl-C, 143 ended by a signal, 141 where nobody reads what is printed any more.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from normdeploy.cli.interrupts import TerminatedError, stop_code, stopped
from normdeploy.cli.unread import is_unread, quiet_when_unread
from normdeploy.errors import NormdeployError, StorageError

UNUSABLE = NormdeployError.exit_code
# Typer's own errors (wrong options and the like); found by name because typer moved the class between releases
_UsageErrors: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class CommandGroup(TyperGroup):
    """Runs a command; an error raised on purpose ends in one message and its exit code.

    ``--debug`` anywhere on the line shows tracebacks instead.
    """

    debug = False

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Take ``--debug`` from wherever it stands, then run as usual."""
        given = list(sys.argv[1:] if args is None else args)
        cut = given.index("--") if "--" in given else len(given)
        options = [word for word in given[:cut] if word != "--debug"]
        self.debug = len(options) < cut
        try:
            with quiet_when_unread():
                return super().main(options + given[cut:], *rest, **extra)
        except OSError as error:  # of a text that is printed before any command runs
            complain(_unwritten(error))
            raise SystemExit(UNUSABLE) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command and turn errors into messages."""
        try:
            with own_warnings_in_words():
                _require_working_folder()
                return super().invoke(ctx)
        except (_UsageErrors, typer.Exit, typer.Abort):
            raise
        except (KeyboardInterrupt, TerminatedError) as stop:
            self._trace()
            complain(stopped(stop), "stopped: ", "bold yellow")
            raise typer.Exit(stop_code(stop)) from None
        except NormdeployError as error:
            self._trace()
            complain(str(error))
            raise typer.Exit(error.exit_code) from None
        except MemoryError:
            complain("not enough memory for this model and these inputs; use smaller inputs or a larger machine")
            raise typer.Exit(UNUSABLE) from None
        except OSError as error:
            if is_unread(error):
                raise
            self._trace()
            complain(_unwritten(error))
            raise typer.Exit(UNUSABLE) from None
        except SystemExit as end:
            if is_unread(end):
                raise
            self._trace()
            complain(_left(end))
            raise typer.Exit(UNUSABLE) from None
        except Exception as error:
            self._trace()
            complain(
                f"unexpected {type(error).__name__}: {str(error).strip() or 'no message'}\n"
                "This is a bug, in normdeploy or in the model: --debug shows where."
            )
            raise typer.Exit(UNUSABLE) from None

    def _trace(self) -> None:
        """Print the traceback of the error at hand, where ``--debug`` asks for it; the exit code stays the error's."""
        if self.debug:
            traceback.print_exc()


def _require_working_folder() -> None:
    """Refuse to work in a folder that was deleted: torch's own libraries end the process there."""
    try:
        Path.cwd()
    except OSError as error:
        raise StorageError(
            f"the working folder cannot be used: {error.strerror}; expected one that is there: change to another "
            "folder (cd) and run the command again"
        ) from error


def _unwritten(error: OSError) -> str:
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}; expected files that can be read and written: check disk and path"


def _left(end: SystemExit) -> str:
    return (
        f"the model's code called sys.exit({end.code!r}) before the work was done; expected code that returns: leave "
        "the call out, or guard it with if __name__ == '__main__'"
    )


@contextmanager
def own_warnings_in_words() -> Iterator[None]:
    """Print this package's warnings as one message each, without the line of code that raised them."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **extra: Any) -> None:
        if category.__module__.partition(".")[0] == __name__.partition(".")[0]:
            complain(str(message), "warning: ", "bold yellow")
        else:
            usual(message, category, *rest, **extra)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


def complain(message: str, label: str = "error: ", style: str = "bold red") -> None:
    """Print a message to standard error; where that cannot be written, the exit code alone says it."""
    from rich.console import Console

    from normdeploy.report.text import Text

    shown = Text(label, style=style).append(message, style="not bold default")
    with suppress(OSError, SystemExit):  # rich ends the process where nobody reads
        Console(stderr=True).print(shown, soft_wrap=True)
