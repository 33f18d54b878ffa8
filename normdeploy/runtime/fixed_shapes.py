"""One session for calls of certain shapes, and one for all others.

A runtime that knows every shape plans its memory and its kernels ahead: OpenVINO takes 4 to 14 % less time on small
networks (``python benchmarks/fixed_shapes.py``). Such a session takes these shapes only, so another stands beside it.
Each is made at its first call: who always calls with the same shapes pays for one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normdeploy.runtime.backend import Array, Backend, TensorSpec

Shapes = Mapping[str, tuple[int, ...]]


class FixedShapesBackend:
    """A Backend that picks one of two by the shapes of a call.

    Args:
        like: names, types and (dynamic) shapes of inputs and outputs, and the provider.
        shapes: input name to the shape for which the fixed session is made.
        fixed: opens it.
        free: opens the one for other shapes.
    """

    def __init__(
        self,
        like: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], str],
        shapes: Shapes,
        fixed: Callable[[], Backend],
        free: Callable[[], Backend],
    ) -> None:
        self.inputs, self.outputs, self.provider = like
        self._shapes = dict(shapes)
        self._fixed, self._free = _Lazy(fixed), _Lazy(free)

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs in order."""
        shapes = self._shapes
        for name, array in feeds.items():  # a loop: on a network of 50 us a generator shows
            if shapes.get(name) != array.shape:
                return self._free.get().run(feeds)
        return self._fixed.get().run(feeds)


class _Lazy:
    """A session that is made once, by whichever thread needs it first."""

    def __init__(self, opened: Callable[[], Backend]) -> None:
        self._opened, self._lock = opened, threading.Lock()
        self._backend: Backend | None = None

    def get(self) -> Backend:
        backend = self._backend  # once it is there no call has to wait for another's turn
        if backend is not None:
            return backend
        with self._lock:
            if self._backend is None:
                self._backend = self._opened()
            return self._backend
