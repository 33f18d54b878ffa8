"""Dimensions that a trace calls dynamic though the graph holds the example's size: the file runs at no other one.

``for row in x`` and ``x.unbind(0)`` leave one part for each row, and torch's trace keeps their number. ``len(x)`` is a
number to it; what it then says of the dimension is that it lies between 5 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Node

_AXIS = {torch.ops.aten.unbind.int: 1, torch.ops.aten.split.Tensor: 2}
"""Operators that take apart, and the place of the axis among their arguments."""


def holds_the_examples_sizes(program: Any) -> bool:
    """Tell whether a ``torch.export.ExportedProgram`` runs at one size of a dimension that it calls dynamic."""
    return _takes_counted_parts(program) or any(map(_is_one_number, _sizes(program)))


def _sizes(program: Any) -> Iterator[Any]:
    """Yield the sizes of a program's inputs that it calls dynamic."""
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            sizes: Sequence[Any] = value.shape  # typed as numbers
            yield from (size for size in sizes if isinstance(size, torch.SymInt))


def _is_one_number(size: Any) -> bool:
    """Whether the trace has found that a size can be no other than the example's."""
    environment = size.node.shape_env
    return bool(environment.bound_sympy(environment.replace(size.node.expr)).is_singleton())


def _takes_counted_parts(program: Any) -> bool:
    """Whether a program takes a dynamic size into parts of a fixed one."""
    return any(node.op == "call_function" and node.target in _AXIS and _counts(node) for node in program.graph.nodes)


def _counts(node: Node) -> bool:
    place = _AXIS[node.target]  # type: ignore[index] # asked before
    if not all(isinstance(argument, int) for argument in node.args[1:]):
        return False  # parts whose size follows the dimension
    axis = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)
    operand = node.args[0]
    value = operand.meta.get("val") if isinstance(operand, Node) else None
    return isinstance(value, torch.Tensor) and isinstance(axis, int) and not isinstance(value.shape[axis], int)
