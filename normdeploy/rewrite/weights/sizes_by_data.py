"""Which sizes are numbers that are fed, and no sizes of inputs: ``arange(int(lengths.max()))``, ``nonzero``."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.graph.dynamic_dims import names_of
from normdeploy.graph.traits import Trait, has, is_standard

_FOUND = ("NonZero", "Unique", "Compress", "NonMaxSuppression")
"""Operators whose result is as large as what they find."""

_BY_ALL = ("Range", "ConstantOfShape")
_BY_OTHERS = ("Reshape", "Expand", "Slice", "Tile", "Pad", "Resize", "Split", "TopK")
"""Operators the sizes of whose result are numbers of their operands: of all, and of all but the first."""


def sized_by_data(value: ir.Value) -> bool:
    """Tell whether a size of a value is certainly a number that is fed: what a graph states of it is no promise.

    Args:
        value: a value of a graph. Each name of its shape is followed to the operator that made it; what that cannot
            tell, as where shapes are unknown, is taken for a size of the inputs.
    """
    return any(_made_of_data(value, name) for name in _names(value))


def _names(value: ir.Value) -> set[str]:
    dims = () if value.shape is None else value.shape
    return {name for dim in dims if not isinstance(dim, int) for name in names_of(dim)}


def _made_of_data(value: ir.Value, name: str) -> bool:
    node = value.producer()
    while node is not None:
        carrier = next((read for read in node.inputs if read is not None and name in _names(read)), None)
        if carrier is None:
            break
        node = carrier.producer()
    if node is None or not is_standard(node, *_FOUND, *_BY_ALL, *_BY_OTHERS):
        return False
    if is_standard(node, *_FOUND):
        return True
    return not _of_sizes(node.inputs if is_standard(node, *_BY_ALL) else node.inputs[1:])


def _of_sizes(values: Sequence[ir.Value | None]) -> bool:
    """Tell whether numbers are computed of sizes and constants alone."""
    seen = set[ir.Value]()
    queue = [value for value in values if value is not None]
    while queue:
        value = queue.pop()
        if value in seen or constant_tensor(value) is not None:
            continue
        seen.add(value)
        node = value.producer()
        if node is None:
            return False
        if not has(node, Trait.SIZES):
            queue += [read for read in node.inputs if read is not None]
    return True
