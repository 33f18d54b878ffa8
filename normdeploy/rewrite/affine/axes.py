"""Dimensions, and which of them a change of shape puts together: by equal products, never by equal sizes.

A Reshape keeps the row-major order, so its input and output dimensions fall into consecutive groups with equal
products: (N, 6, 6) -> (N, 36) groups as (N)-(N), (6, 6)-(36).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

Dims = Sequence[int | str | None]
"""Dimensions: static, named, or unknown."""


def dims_of(value: ir.Value) -> Dims | None:
    """Return a value's dimensions; None if the rank is unknown."""
    if value.shape is None:
        return None
    return [dim if isinstance(dim, int) else dim.value for dim in value.shape]


def groups(source: Dims, target: Dims) -> list[tuple[range, range]]:
    """Split a reshape into the finest groups of consecutive dimensions with certainly equal products.

    Groups are closed from both ends; what cannot be told apart in the middle is one group.
    """
    front = _from_front(list(source), list(target))
    used_in, used_out = (front[-1][0].stop, front[-1][1].stop) if front else (0, 0)
    rest_in, rest_out = list(source)[used_in:], list(target)[used_out:]
    back = _from_front(rest_in[::-1], rest_out[::-1])
    middle_in, middle_out = len(source), len(target)
    mirrored: list[tuple[range, range]] = []
    for inner, outer in back:
        mirrored.append(
            (
                range(len(source) - inner.stop, len(source) - inner.start),
                range(len(target) - outer.stop, len(target) - outer.start),
            )
        )
        middle_in, middle_out = mirrored[-1][0].start, mirrored[-1][1].start
    middle = [(range(used_in, middle_in), range(used_out, middle_out))]
    if not middle[0][0] and not middle[0][1]:
        middle = []
    return front + middle + mirrored[::-1]


def _from_front(source: list[int | str | None], target: list[int | str | None]) -> list[tuple[range, range]]:
    closed: list[tuple[range, range]] = []
    i = j = 0
    while i < len(source) and j < len(target):
        start_i, start_j = i, j
        left, right = _Product(), _Product()
        left.times(source[i])
        right.times(target[j])
        i, j = i + 1, j + 1
        while not left.equals(right):
            if left.unknown or right.unknown:
                return closed
            if left.divides(right) and i < len(source):
                left.times(source[i])
                i += 1
            elif right.divides(left) and j < len(target):
                right.times(target[j])
                j += 1
            else:
                return closed
        closed.append((range(start_i, i), range(start_j, j)))
    if closed:  # sizes of 1 at the end belong to the last group
        last_in, last_out = closed[-1]
        if all(dim == 1 for dim in source[i:]) and all(dim == 1 for dim in target[j:]):
            closed[-1] = (range(last_in.start, len(source)), range(last_out.start, len(target)))
    return closed


class _Product:
    """A product of static and named dimensions."""

    def __init__(self) -> None:
        self.number = 1
        self.names: list[str] = []
        self.unknown = False

    def times(self, dim: int | str | None) -> None:
        if dim is None or dim == 0:
            self.unknown = True
        elif isinstance(dim, int):
            self.number *= dim
        else:
            self.names.append(dim)

    def equals(self, other: _Product) -> bool:
        known = not self.unknown and not other.unknown
        return known and self.number == other.number and sorted(self.names) == sorted(other.names)

    def divides(self, other: _Product) -> bool:
        """Tell whether more dimensions may be multiplied in to reach ``other``."""
        return other.number % self.number == 0 and set(self.names) <= set(other.names)
