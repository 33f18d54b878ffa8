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

Ends = tuple[Array, Array]
"""The real numbers at both ends, each one or one per channel."""

_SAME = 1e-5
"""Relative distance within which ends are one: a step is stored in float32, or computed there."""


def own_ends(nodes: Iterable[ir.Node], source: Iterable[ir.Node]) -> dict[str, tuple[int, int]]:
    """Return the quantizers whose ends no quantizer of the source has: the name of the result, and its integers' ends.

    Args:
        nodes: of the file. source: the source's.
    """
    theirs = [cuts[1] for node in source if (cuts := _cuts(node)) is not None]
    found: dict[str, tuple[int, int]] = {}
    for node in nodes:
        cuts = _cuts(node)
        if cuts is not None and not any(_alike(cuts[1], other) for other in theirs):
            found[str(node.outputs[0].name)] = cuts[0]
    return found


def _cuts(node: ir.Node) -> tuple[tuple[int, int], Ends] | None:
    """Return the ends of the integers that an operator makes of its result, and the real numbers there.

    None where it quantizes nothing, or where the numbers are not constant.
    """
    place = 2 if is_quantizer(node) else RESULT_ZERO.get(kind_of(node))
    if place is None:
        return None
    given = node.inputs[place] if place < len(node.inputs) else None
    if is_quantizer(node):
        dtype = quantized_type(node)
    else:
        tensor = constant_tensor(given)
        dtype = None if tensor is None else tensor.dtype
    whole = None if dtype is None else ENDS.get(dtype)
    step = constant64(node.inputs[place - 1])
    zero = np.zeros(()) if given is None else constant64(given)
    if whole is None or step is None or zero is None:
        return None
    low, high = (((end - zero.astype(np.float64)) * step).reshape(-1) for end in whole)  # in its own bits it wraps
    return whole, (low, high)


def _alike(one: Ends, other: Ends) -> bool:
    size = max(one[0].size, other[0].size)
    if {one[0].size, other[0].size} - {1, size}:
        return False
    widths = np.abs(one[1] - one[0])
    return all(bool((np.abs(a - b) <= _SAME * widths).all()) for a, b in zip(one, other, strict=True))
