"""Fewer rounds of Python's garbage collector where many small objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_YOUNG, _OLD = 50_000, 100
"""New containers after which the youngest are looked at, and rounds of the next generation before all are."""


class _Rounds:
    """The thresholds to give back, and how many ask for fewer rounds."""

    def __init__(self) -> None:
        self.lock, self.inside, self.before = Lock(), 0, gc.get_threshold()


_ROUNDS = _Rounds()


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Let Python look for garbage more rarely meanwhile, and give the caller's thresholds back.

    Tracing, rewriting and following graphs make objects that refer to each other and stay. By default each 700 of them
    start a round, and where torch is loaded each full one walks a million objects: a twelfth of an export's time. What
    is garbage waits a little; what nothing refers to is freed at once as ever.
    """
    with _ROUNDS.lock:
        _ROUNDS.inside += 1
        if _ROUNDS.inside == 1:
            _ROUNDS.before = gc.get_threshold()
            young, middle, old = _ROUNDS.before
            if young:  # 0 is off
                gc.set_threshold(max(young, _YOUNG), middle, max(old, _OLD))
    try:
        yield
    finally:
        with _ROUNDS.lock:
            _ROUNDS.inside -= 1
            if _ROUNDS.inside == 0:
                gc.set_threshold(*_ROUNDS.before)
