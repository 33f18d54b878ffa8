"""Ctrl-C and SIGTERM end a command, wherever they arrive."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN = 0.05
"""Seconds until a stop that Python dropped is sent again: the destructor that dropped it is over by then."""

_RUNS = "normdeploy.ort.stop_runs"


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
    ``sys.unraisablehook`` and goes on as if nobody had asked. Nor can one leave a run of onnxruntime, which a thread of
    its own ends (:mod:`normdeploy.ort.stop_runs`).
    """
    signal.signal(signal.SIGTERM, _terminate)
    _watch()
    usual = sys.unraisablehook

    def unraisable(dropped: UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, (KeyboardInterrupt, TerminatedError)):
            again = threading.Timer(_AGAIN, _send, [_number(dropped.exc_value)])
            again.daemon = True
            again.start()
        else:
            usual(dropped)

    sys.unraisablehook = unraisable


def _watch() -> None:
    """End runs of onnxruntime when a stop arrives: the number is written where a thread that no run holds reads it."""
    reads, writes = socket.socketpair()
    writes.setblocking(False)
    signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
    if hasattr(os, "register_at_fork"):  # a child that is stopped does not stop its parent's runs
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_end_runs, args=(reads, writes), name="normdeploy-stop", daemon=True).start()


def _end_runs(reads: socket.socket, _kept: socket.socket) -> None:
    while arrived := reads.recv(1):
        stop = getattr(sys.modules.get(_RUNS), "stop_runs", None)  # absent: nothing of onnxruntime runs yet
        if arrived[0] in (signal.SIGINT, signal.SIGTERM) and stop is not None:
            stop()


def _send(number: int) -> None:
    if sys.platform == "win32":
        signal.raise_signal(number)
    else:  # to the main thread itself, so that it wakes where it sleeps
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def _terminate(_number: int, _frame: object) -> None:
    raise TerminatedError


def _number(stop: BaseException) -> int:
    return signal.SIGTERM if isinstance(stop, TerminatedError) else signal.SIGINT
