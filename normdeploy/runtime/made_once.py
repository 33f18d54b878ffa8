"""What is made once, at its first use, by whichever thread needs it first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Lazy(Generic[Made]):
    """A value that is made at its first use; what fails is tried again at the next.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._made: Made | None = None

    def get(self) -> Made:
        """Return it."""
        made = self._made  # once it is there no call has to wait for another's turn
        if made is not None:
            return made
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made
