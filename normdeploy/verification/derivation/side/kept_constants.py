"""Constants in float64 that are kept: laws ask for the same ones, and all of a network would be twice its file."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.array_types import Array

_SMALL = 1 << 16
"""Elements up to which a constant is kept."""

_LAST, _LARGE = 2, 1 << 22
"""Of larger ones, up to so many elements, the last few are: those of the operator that is looked at."""


class KeptConstants:
    """Constants of a graph, by their values."""

    def __init__(self) -> None:
        self._small: dict[ir.Value, Array] = {}
        self._last: dict[ir.Value, Array] = {}

    def get(self, value: ir.Value) -> Array | None:
        """Return a constant that is kept."""
        found = self._small.get(value)
        return self._last.get(value) if found is None else found

    def keep(self, value: ir.Value, array: Array) -> None:
        """Keep a constant, as long as its size allows."""
        if array.size <= _SMALL:
            self._small[value] = array
        elif array.size <= _LARGE:
            self._last[value] = array
            if len(self._last) > _LAST:
                del self._last[next(iter(self._last))]
