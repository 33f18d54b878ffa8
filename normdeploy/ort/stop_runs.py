"""One flag for every run of onnxruntime in this process: set, they end at their next node, inside loops too.

A run holds the thread that called it, and Python raises nothing there until it is back: without the flag, neither
Ctrl-C nor SIGTERM ends a command whose network does not end.
"""

from __future__ import annotations

import onnxruntime as ort

EVERY_RUN = ort.RunOptions()
"""What every run is given."""

EVERY_RUN.log_severity_level = 4  # what fails raises; its text would stand on the console a second time


def stop_runs() -> None:
    """End all runs of this process, and those that begin later: the process is about to end."""
    EVERY_RUN.terminate = True
