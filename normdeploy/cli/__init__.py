"""The command line: one file per command.

Nothing heavy is imported here or at the top of a command's file, so that ``normdeploy --help`` answers at once.
"""

from __future__ import annotations

import gc
import os


def main() -> None:
    """Run the ``normdeploy`` command; exits with the command's code."""
    # Idle OpenMP threads sleep instead of spinning: on a machine that others use too, training a small network was ten
    # times slower with spinning. Read when torch is imported, so set before that; the user's own setting wins.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # While libraries are imported the heap grows from nothing, and each time by a quarter all of it is looked through
    # for garbage: an eighth of a small network's export. Later it hardly grows.
    gc.set_threshold(2_000, 10, 100)

    from normdeploy.cli.group import complain
    from normdeploy.cli.interrupts import TerminatedError, listen, stop_code, stopped

    listen()
    try:
        from normdeploy.cli.app import app

        app()
    except (KeyboardInterrupt, TerminatedError) as stop:  # outside a command: while it is imported
        complain(stopped(stop), "stopped: ", "bold yellow")
        raise SystemExit(stop_code(stop)) from None
