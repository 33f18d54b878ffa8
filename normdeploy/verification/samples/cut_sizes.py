"""How large inputs have to be for what a graph computes of them to lie near a number that it cuts at.

A norm of rows is bounded by 1e-12, a picture is filled up with -10000 before its maxima are taken: among numbers near 1
either does nothing, and what another graph does there instead shows near these sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.computed_constants import computed_constant
from normdeploy.graph.fixed_values import fixed_nodes
from normdeploy.graph.linear_view import linear_of
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.verification.derivation.side.competing_constants import fills

Fill = Callable[[np.random.Generator, tuple[int, ...]], Any]

_PLAIN = 64.0
"""Numbers between one over this and this are met where inputs are near 1."""

_SMALLEST, _LARGEST = 1e-30, 1e30
"""Sizes within which float32 holds squares of inputs, and normal numbers."""

_MOST_SCALES = 3
"""Families that inputs of such sizes make, at most."""


def compared_scales(value: ir.Value) -> list[float]:
    """Return how large an input has to be for what is computed of it to be near a number that it is cut off at.

    Its size is followed through what is homogeneous (Abs, a norm, a product with itself), and through layers with
    weights, where numbers near 1 leave it as large as it is. Numbers near 1 need no inputs of their own.

    Args:
        value: the input.
    """
    degrees, found = {value: 1.0}, dict[float, None]()
    queue, at = [value], dict[ir.Node, list[float]]()
    graph = value.graph
    fixed = set[ir.Node]() if graph is None else fixed_nodes(graph).by_constants
    for current in queue:
        for node, _ in current.uses():
            if node not in at:  # it may read what is computed twice
                at[node] = [*_cut_at(node, lambda made: made.graph is not graph or made in fixed), *fills(node)]
            for number in at[node]:
                size = abs(number) ** (1 / degrees[current]) if number else 0.0
                if _SMALLEST <= size <= _LARGEST and not 1 / _PLAIN <= size <= _PLAIN:
                    found[size] = None
            factor = _degree(node, current)
            for output in node.outputs if factor is not None else ():
                if output not in degrees:
                    degrees[output] = degrees[current] * (factor or 1.0)
                    queue.append(output)
    apart = list[float]()
    for size in sorted(found):
        if not apart or size > _PLAIN * apart[-1]:
            apart.append(size)
    return apart[:_MOST_SCALES]


def _cut_at(node: ir.Node, may_be_fixed: Callable[[ir.Node], bool]) -> list[float]:
    """Return the numbers that an operator cuts at, compares with, or adds where they may keep a sum from 0.

    Args:
        node: the operator. may_be_fixed: whether an operator's result may follow from constants: others are not asked.
    """
    if not (has(node, Trait.COMPARES) or is_standard(node, "Clip", "Min", "Max", "Add")):
        return []
    read = [value for value in node.inputs if value is not None]
    asked = [value for value in read if (made := value.producer()) is None or may_be_fixed(made)]
    known = [array for value in asked if (array := computed_constant(value)) is not None and array.size == 1]
    numbers = [float(array.item()) for array in known if array.dtype.kind == "f"]
    return [n for n in numbers if np.isfinite(n) and (node.op_type != "Add" or 0 < n < 1 / _PLAIN)]


def _degree(node: ir.Node, read: ir.Value) -> float | None:
    """Return by which power of an operand's size that of a result goes; None where it does not."""
    if has(node, Trait.SIZES) or not node.outputs:
        return None
    if is_standard(node, "Mul", "MatMul") and all(one is read for one in node.inputs):
        return 2.0
    if is_standard(node, "ReduceSumSquare"):
        return 2.0
    if is_standard(node, "Sqrt"):
        return 0.5
    if is_standard(node, "Pow"):
        power = constant64(node.inputs[1])
        return float(power.item()) if power is not None and power.size == 1 and power.item() > 0 else None
    goes_on = Trait.HOMOGENEOUS | Trait.MOVES | Trait.CONVERTS | Trait.JOINS | Trait.SUMS
    layer = linear_of(node) is not None or is_standard(node, "BatchNormalization", "Add", "Sub", "Clip", "Max", "Min")
    return 1.0 if layer or has(node, goes_on) else None


def _rows_beyond(size: float) -> Fill:
    """Draw rows, or pictures, that lie beyond a size as a whole: one below 0, one above, by turns."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        rows = tuple(
            n if axis < max(len(shape) - 2, 2) and axis + 1 < len(shape) else 1 for axis, n in enumerate(shape)
        )
        signs = np.resize([-1.0, 1.0], int(np.prod(rows))).reshape(rows)
        return size * signs * rng.uniform(2.0, 8.0, rows) * rng.uniform(0.8, 1.2, shape)

    return fill


def _around(size: float) -> Fill:
    """Draw numbers of either sign, from a tenth of a size to ten times it."""
    return lambda rng, shape: size * rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-1.0, 1.0, shape)


CUT_AT: Mapping[str, Callable[[float], Fill]] = {"numbers around": _around, "rows beyond": _rows_beyond}
"""What is drawn for each size that something is cut at."""
