"""One session for calls of certain shapes, and one for all others.

A runtime that knows every shape plans its memory and its kernels ahead: OpenVINO takes 4 to 14 % less time on small
networks (``python benchmarks/fixed_shapes.py``). Such a session takes these shapes only, so another stands beside it.
Each is made at its first call: who always calls with the same shapes pays for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from normdeploy.array_types import Array
from normdeploy.ort.settings import Settings
from normdeploy.runtime.made_once import Lazy

if TYPE_CHECKING:
    from normdeploy.ort.specs import TensorSpec
    from normdeploy.runtime.backend import Backend


def made_for(settings: Settings, feeds: Mapping[str, Array]) -> Settings:
    """Return the settings with the shapes of ``feeds`` fixed."""
    return replace(settings, fixed_shapes=tuple(sorted((name, array.shape) for name, array in feeds.items())))


class FixedShapesBackend:
    """A Backend that picks one of two by the shapes of a call.

    Args:
        inputs, outputs: as the file declares them, sizes open.
        provider: of both.
        shapes: input name to the shape for which the fixed session is made.
        fixed: opens it.
        free: opens the one for other shapes.
    """

    def __init__(
        self,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        provider: str,
        shapes: Mapping[str, tuple[int, ...]],
        fixed: Callable[[], Backend],
        free: Callable[[], Backend],
    ) -> None:
        self.inputs, self.outputs, self.provider = inputs, outputs, provider
        self._shapes = dict(shapes)
        self._fixed, self._free = Lazy(fixed), Lazy(free)

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs in order."""
        shapes = self._shapes
        for name, array in feeds.items():  # a loop: on a network of 50 us a generator shows
            if shapes.get(name) != array.shape:
                return self._free.get().run(feeds)
        return self._fixed.get().run(feeds)
