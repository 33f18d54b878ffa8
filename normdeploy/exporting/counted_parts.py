"""A tensor that is taken apart along a dynamic dimension: a graph holds as many parts as the example had.

``for row in x`` and ``x.unbind(0)`` leave one part for each row. torch's trace keeps their number; where it calls the
dimension dynamic all the same, the file runs at no other size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

_AXIS = {torch.ops.aten.unbind.int: 1, torch.ops.aten.split.Tensor: 2}
"""Operators that take apart, and the place of the axis among their arguments."""


def takes_counted_parts(program: Any) -> bool:
    """Tell whether a ``torch.export.ExportedProgram`` takes a dynamic size into parts of a fixed one."""
    return any(node.op == "call_function" and node.target in _AXIS and _counts(node) for node in program.graph.nodes)


def _counts(node: Node) -> bool:
    place = _AXIS[node.target]  # type: ignore[index] # asked before
    if not all(isinstance(argument, int) for argument in node.args[1:]):
        return False  # parts whose size follows the dimension
    axis = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)
    operand = node.args[0]
    value = operand.meta.get("val") if isinstance(operand, Node) else None
    return isinstance(value, torch.Tensor) and isinstance(axis, int) and not isinstance(value.shape[axis], int)
