"""What decides on shapes beside the sizes that a graph is followed at: what is fed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.size_bounds import least

if TYPE_CHECKING:
    from normdeploy.verification.derivation.side.checked_side import Side

_FOUND = frozenset({"NonZero", "Unique", "NonMaxSuppression", "StringSplit"})
"""Operators whose result is as large as what they find."""

_SHAPED = {
    "Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "Slice": (1, 2, 3, 4), "Tile": (1,),
    "Pad": (1, 3), "Resize": (2, 3), "Upsample": (1,), "TopK": (1,), "OneHot": (1,), "Split": (1,), "Squeeze": (1,),
    "Compress": (1,), "SplitToSequence": (1,), "SequenceAt": (1,), "Unsqueeze": (1,), "CenterCropPad": (1,),
    "MaxUnpool": (2,),
    "Col2Im": (1, 2), "AffineGrid": (1,), "DFT": (1, 2), "STFT": (1, 3), "MelWeightMatrix": (0, 1), "Loop": (0, 1),
    "Scan": (),
    **{f"Reduce{name}": (1,) for name in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")},
    **{f"{name}Window": (0,) for name in ("Hann", "Hamming", "Blackman")},
}  # fmt: skip
"""Operators the shape of whose result depends on the numbers of some operands, by their places."""


def shaping(node: ir.Node) -> list[ir.Value | None]:
    """Return the operands of an operator whose numbers decide the shape of its result."""
    inputs = inputs_of(node)
    places = range(len(inputs)) if kind(node) in _FOUND else _SHAPED.get(kind(node), ())
    return [inputs[place] for place in places if place < len(inputs)]


def is_open(side: Side, node: ir.Node) -> bool:
    """Tell whether the shapes of an operator's results depend on what is fed.

    Args:
        side: its graph, of which all that stands in front of the operator is known. node: the operator.
    """
    if any(value is not None and not side.follows(value) for value in shaping(node)):
        return True
    if any(value in side.opened for value in inputs_of(node) if value is not None):
        if kind(node) == "Reshape" and least(side, node.inputs[1]) >= 1:
            return False  # it names each size; what does not fit them is an error
        whole = _cut_up(node, side.constant)
        return whole is None or whole in side.opened
    return False


def _cut_up(node: ir.Node, constant: Callable[[ir.Value | None], Array | None]) -> ir.Value | None:
    """Return what the parts are of that a Concat joins again, in order and all of them; None where it does no such.

    However it is cut, it is as long as it was. Each part may be multiplied by matrices: its rows stay what they are.
    """
    if kind(node) != "Concat":
        return None
    parts = [_rows_of(value, constant) for value in inputs_of(node)]
    split = parts[0].producer() if parts and parts[0] is not None else None
    if split is None or kind(split) != "Split" or tuple(parts) != tuple(split.outputs):
        return None
    axes = node.attributes.get_int("axis", 0), split.attributes.get_int("axis", 0)
    return split.inputs[0] if axes == (0, 0) else None


def _rows_of(value: ir.Value | None, constant: Callable[[ir.Value | None], Array | None]) -> ir.Value | None:
    """Return the rows that a value has one row each for, through products with constant matrices."""
    node = None if value is None else value.producer()
    while node is not None and kind(node) == "MatMul":
        matrix = constant(node.inputs[1])
        if matrix is None or matrix.ndim != 2:  # of more axes some would be put in front
            return value
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return value
