"""Standard output that nobody reads any more, as behind ``| head -1``: the command ends without a word.

Whoever reads has read enough; there is nobody to tell, and nothing went wrong. The exit code is the one that shells see
of a program that the signal ends: neither a pass (the rest was not said) nor a verdict.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

UNREAD = 141
"""128 and SIGPIPE's number, as shells count."""


@contextmanager
def quiet_when_unread() -> Iterator[None]:
    """End with `UNREAD` where the block wrote to a pipe that nobody reads.

    Raises:
        SystemExit: with that code.
    """
    try:
        yield
    except (OSError, SystemExit) as error:
        if not is_unread(error):
            raise
        raise SystemExit(UNREAD) from None
    finally:
        _silence_unread()


def is_unread(error: BaseException) -> bool:
    """Tell whether an error is that of a write which found nobody to read it.

    Rich and click end the process where they meet one, so that only what they were handling tells.
    """
    found = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(found, BrokenPipeError) and found.filename is None


def _silence_unread() -> None:
    """Lead the streams that nobody reads to nowhere: Python writes what is left in them at its end, and complains."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # closed by the caller
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):  # a stream of a test's, which has no number
                os.dup2(nowhere := os.open(os.devnull, os.O_WRONLY), stream.fileno())
                os.close(nowhere)
