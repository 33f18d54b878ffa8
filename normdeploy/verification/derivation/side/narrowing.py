"""What floats of fewer than 32 bits keep of a number: an evaluation in float64 promotes them all, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph.traits import Trait, has

Operands = list[Tensor | None]


def as_stored(node: ir.Node, operands: Operands, type_of: Callable[[ir.Value], ir.DataType | None]) -> Operands:
    """Return an operator's operands, a Cast's number as it is stored in front of it.

    Args:
        node: the operator. operands: in float64, or sizes alone. type_of: what a value is stored in.
    """
    read = node.inputs[0] if has(node, Trait.CONVERTS) else None
    dtype, number = (None if read is None else type_of(read)), operands[0] if operands else None
    if dtype is None or not dtype.is_floating_point() or dtype.bitwidth >= ir.DataType.FLOAT.bitwidth:
        return operands
    if number is None or number.is_meta or not number.is_floating_point():
        return operands
    return [torch.from_numpy(number.numpy().astype(dtype.numpy()).astype(number.numpy().dtype)), *operands[1:]]
