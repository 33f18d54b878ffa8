"""What a traced graph computes between what a site reads and what it makes, where that is more than a norm and its map.

A group norm of one group is traced as a norm of one channel between two Reshapes, then a scale and a shift, and is one
LayerNormalization of all axes to whoever recognises it; a LayerNorm between two Transposes is one, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import constant64, constant_tensor, evaluate_node
from normdeploy.graph.fixed_values import Fixed
from normdeploy.graph.traits import is_standard
from normdeploy.verification.mutation.mutants import is_norm, opsets

_ARRANGES = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")
"""What keeps all elements, each once."""

_MOST = 64
"""Operators of a region, those that compute sizes among them."""


@dataclass(frozen=True)
class Step:
    """A scale, or a shift.

    Args:
        node: the operator. place: which operand is the constant. scales: it is multiplied by; otherwise added.
        number: by what.
    """

    node: ir.Node
    place: int
    scales: bool
    number: Tensor


@dataclass(frozen=True)
class Region:
    """One norm, scales, shifts and other arrangements.

    Args:
        norm: the norm. maps: what scales and shifts. nodes: all operators in order, those that compute sizes too.
    """

    norm: ir.Node
    maps: list[Step]
    nodes: list[ir.Node]


def region_of(value: ir.Value, start: str, constants: Mapping[str, Tensor], fixed: Fixed) -> Region | None:
    """Return what computes a value from another one, if that is one norm and what arranges, scales and shifts.

    Args:
        start: name of what the region reads. constants: numbers of the graph that follow from constants, by name.
        fixed: operators that no input changes.
    """
    found: list[ir.Node] = []
    maps: list[Step] = []
    visited: set[ir.Node] = set()

    def visit(at: ir.Value) -> bool:
        if at.name == start or at.name in constants or constant_tensor(at) is not None:
            return True
        node = at.producer()
        if node is None or len(visited) > _MOST:
            return False
        if node in visited:
            return True
        visited.add(node)
        known = node in fixed.by_sizes or is_norm(node) or is_standard(node, *_ARRANGES)
        step = None if known else step_of(node, constants)
        if not (known or step) or not all(visit(one) for one in node.inputs if one is not None):
            return False
        found.append(node)
        maps.extend([] if step is None else [step])
        return True

    if value.name == start or not visit(value):
        return None
    norms = [node for node in found if is_norm(node)]
    return Region(norms[0], maps, found) if len(norms) == 1 else None


def step_of(node: ir.Node, constants: Mapping[str, Tensor]) -> Step | None:
    """Return what an operator scales or shifts by; None where it does neither by a constant."""
    if not is_standard(node, "Mul", "Add", "Div", "Sub"):
        return None
    names = ["" if read is None else str(read.name) for read in node.inputs]
    place = next((i for i in (1, 0) if names[i] in constants), None)
    if place is None or (place == 0 and node.op_type in ("Div", "Sub")):
        return None
    number = constants[names[place]]
    scales = node.op_type in ("Mul", "Div")
    return Step(
        node, place, scales, 1 / number if node.op_type == "Div" else -number if node.op_type == "Sub" else number
    )


def evaluated(region: Region, start: str, drawn: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
    """Return what a region makes of what it reads.

    Raises:
        GraphError: an operator cannot be evaluated on it.
    """
    known: dict[str, Tensor] = {**constants, start: drawn}
    for node in region.nodes:
        read = [None if one is None else _value(one, known) for one in node.inputs]
        with torch.no_grad():
            results = evaluate_node(node, read, opset_imports=opsets(node))
        known.update(zip((str(one.name) for one in node.outputs), results, strict=False))
    return known[str(region.nodes[-1].outputs[0].name)]


def _value(value: ir.Value, known: Mapping[str, Tensor]) -> Tensor:
    name = str(value.name)
    if name in known:
        return known[name]
    held = constant64(value)
    assert held is not None
    return torch.from_numpy(held)
