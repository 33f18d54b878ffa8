"""What an operator's torch implementation sees of its node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

Inputs = list[Tensor | None]
Result = Tensor | Sequence[Tensor]


class Stored(Enum):
    """What an operator that quantizes its own result makes of x / step + zero."""

    WHOLE = "rounded, and cut to the range of its type"
    CUT = "cut, not rounded"
    FREE = "neither, but for signs that its type leaves out"


@dataclass(frozen=True)
class Call:
    """One evaluation of one node.

    Args:
        node: the node.
        opset: version of the node's domain.
        dtype: the dtype that stands for every float.
        stored: what becomes of a result that is quantized: integers, unless told otherwise.
        gates: what becomes of the results of a recurrent operator's functions, given each one's name in lower case.
    """

    node: ir.Node
    opset: int
    dtype: torch.dtype
    stored: Stored = Stored.WHOLE
    gates: Callable[[str, Tensor], Tensor] | None = None

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value, or ``default`` where it is absent."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def ints(self, name: str, inputs: Inputs, index: int) -> list[int] | None:
        """Return integers given as an attribute (older opsets) or as input ``index`` (newer ones)."""
        given = self.attr(name)
        if given is not None:
            return [int(given)] if isinstance(given, int) else [int(item) for item in given]
        if index < len(inputs):
            tensor = inputs[index]
            if tensor is not None:
                return [int(item) for item in tensor.reshape(-1).tolist()]
        return None


Implementation = Callable[[Call, Inputs], Result]


def need(inputs: Inputs, index: int) -> Tensor:
    """Return a required input."""
    value = inputs[index] if index < len(inputs) else None
    if value is None:
        raise ValueError(f"input {index} is absent; the operator requires it")
    return value


def optional(inputs: Inputs, index: int) -> Tensor | None:
    """Return an optional input, or None."""
    return inputs[index] if index < len(inputs) else None


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front.

    Raises:
        ValueError: a value of this rank has no such axis; runtimes refuse it, and another axis would be a guess.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a value of {rank} axes; expected one from {-rank} to {rank - 1}")
    return axis % rank


def counted(call: Call, places: Tensor, sizes: Tensor | int) -> Tensor:
    """Return indices counted from the front.

    Args:
        call: whose they are. places: int64. sizes: of the axes that they name; they broadcast.

    Raises:
        IndexError: one lies outside.
    """
    if places.numel() and bool(((places < -sizes) | (places >= sizes)).any()):
        known = sizes if isinstance(sizes, int) else sizes.tolist()
        raise IndexError(f"{call.node.op_type} index outside of {known}")
    return torch.where(places < 0, places + sizes, places)
