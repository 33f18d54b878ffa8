"""Commands that a test stops."""

from __future__ import annotations

MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from normdeploy.cli import main; main()"
)
"""Runs ``normdeploy`` so that Ctrl-C reaches it.

What a shell starts in the background ignores SIGINT, and so does all that it starts: the tests as well.
"""
