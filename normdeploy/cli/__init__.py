"""The command line: one file per command.

Nothing heavy is imported here or at the top of a command's file, so that ``normdeploy --help`` answers at once.
"""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the ``normdeploy`` command; exits with the command's code."""
    # Idle OpenMP threads sleep instead of spinning: on a machine that others use too, training a small network was ten
    # times slower with spinning. Read when torch is imported, so set before that; the user's own setting wins.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    signal.signal(signal.SIGTERM, _terminate)

    from normdeploy.cli.app import app

    try:
        app()
    except _TerminatedError:
        raise SystemExit(128 + signal.SIGTERM) from None


class _TerminatedError(BaseException):
    """Somebody asked the command to end: unfinished files are taken away on the way out, as after an error."""


def _terminate(_number: int, _frame: object) -> None:
    raise _TerminatedError
