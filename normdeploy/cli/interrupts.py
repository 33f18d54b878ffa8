"""Ctrl-C and SIGTERM end a command, wherever they arrive."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN = 0.05
"""Seconds until a stop that Python dropped is sent again: the destructor that dropped it is over by then."""


class TerminatedError(BaseException):
    """Somebody asked the command to end: unfinished files are taken away on the way out, as after an error."""


def stop_code(stop: BaseException) -> int:
    """Return the exit code of a command that was stopped, as shells count: 128 and the signal's number."""
    return 128 + _number(stop)


def stopped(stop: BaseException) -> str:
    """Say what a command that was stopped leaves (`normdeploy.errors.kept_when_stopped`)."""
    return "; ".join(getattr(stop, "__notes__", [])) or "nothing was written"


def listen() -> None:
    """Raise ``TerminatedError`` on SIGTERM, and send a stop again that Python could not raise.

    An exception that arrives in a destructor or in a callback from C cannot leave it: Python gives it to
    ``sys.unraisablehook`` and goes on as if nobody had asked.
    """
    signal.signal(signal.SIGTERM, _terminate)
    usual = sys.unraisablehook

    def unraisable(dropped: UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, (KeyboardInterrupt, TerminatedError)):
            again = threading.Timer(_AGAIN, _send, [_number(dropped.exc_value)])
            again.daemon = True
            again.start()
        else:
            usual(dropped)

    sys.unraisablehook = unraisable


def _send(number: int) -> None:
    if sys.platform == "win32":
        signal.raise_signal(number)
    else:  # to the main thread itself, so that it wakes where it sleeps
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def _terminate(_number: int, _frame: object) -> None:
    raise TerminatedError


def _number(stop: BaseException) -> int:
    return signal.SIGTERM if isinstance(stop, TerminatedError) else signal.SIGINT
