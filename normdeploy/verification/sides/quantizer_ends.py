"""Where quantizers cut: the numbers that the ends of their integers stand for, and which a file has of its own.

A zero point that is one off, in a quantizer and in what reads its integers, changes nothing but where values are cut.
Samples say something of that only where they reach the ends; where the reference has a quantizer of the same ends, they
need not.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph import constant64, constant_tensor
from normdeploy.graph.operators.narrow_types import ENDS, quantized_type
from normdeploy.graph.traits import is_quantizer, kind_of
from normdeploy.verification.sides.grids import RESULT_ZERO

_SAME = 1e-5
"""Relative distance within which ends are one: a step is stored in float32, or computed there."""


def own_ends(nodes: Iterable[ir.Node], source: Iterable[ir.Node]) -> dict[str, tuple[int, int]]:
    """Return the quantizers whose ends no quantizer of the source has: the name of the result, and its integers' ends.

    Args:
        nodes: of the file. source: the source's.
    """
    theirs = [ends for node in source if (ends := _ends(node)) is not None]
    found: dict[str, tuple[int, int]] = {}
    for node in nodes:
        ends, whole = _ends(node), _integers(node)
        if ends is not None and whole is not None and not any(_alike(ends, other) for other in theirs):
            found[str(node.outputs[0].name)] = whole
    return found


def _zero_place(node: ir.Node) -> int | None:
    return 2 if is_quantizer(node) else RESULT_ZERO.get(kind_of(node))


def _integers(node: ir.Node) -> tuple[int, int] | None:
    """Return the ends of the integers that an operator makes of its result; None where it quantizes nothing."""
    place = _zero_place(node)
    if place is None:
        return None
    if is_quantizer(node):
        dtype = quantized_type(node)
    else:
        tensor = constant_tensor(node.inputs[place]) if place < len(node.inputs) else None
        dtype = None if tensor is None else tensor.dtype
    return None if dtype is None else ENDS.get(dtype)


def _ends(node: ir.Node) -> tuple[Array, Array] | None:
    """Return the real numbers at both ends, one or one per channel; None where they are not constant."""
    place, whole = _zero_place(node), _integers(node)
    if place is None or whole is None:
        return None
    step = constant64(node.inputs[place - 1])
    given = node.inputs[place] if place < len(node.inputs) else None
    zero = np.zeros(()) if given is None else constant64(given)
    if step is None or zero is None:
        return None
    low, high = (((end - zero) * step).reshape(-1) for end in whole)
    return low, high


def _alike(one: tuple[Array, Array], other: tuple[Array, Array]) -> bool:
    size = max(one[0].size, other[0].size)
    if {one[0].size, other[0].size} - {1, size}:
        return False
    widths = np.abs(one[1] - one[0])
    return all(bool((np.abs(a - b) <= _SAME * widths).all()) for a, b in zip(one, other, strict=True))
