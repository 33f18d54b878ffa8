"""How an operator is written as several others: what stands in its place, and the names of what comes in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from normdeploy.graph.edit import free_name, put_constant, take_place


class Writer:
    """What stands in the place of one operator: nodes, the last of which made its result."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.model, self.node = model, node
        self.opset = model.opset_imports.get("", 1)
        self.nodes: list[ir.Node] = []
        self.shown: dict[int, ir.Value] = {}  # other results, by place

    def read(self, place: int) -> ir.Value | None:
        """Return an operand, None where it is absent."""
        return self.node.inputs[place] if place < len(self.node.inputs) else None

    def asks(self, *places: int) -> bool:
        """Tell whether one of these results is read."""
        outputs = self.node.outputs
        return any(p < len(outputs) and (outputs[p].uses() or outputs[p].is_graph_output()) for p in places)

    def add(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write an operator; return its result."""
        result = self.node.outputs[0]
        name = free_name(self.model.graph, f"{result.name}.{op_type}{len(self.nodes)}")
        value = ir.Value(name=name, shape=result.shape, type=result.type)
        operator = ir.node(op_type, list(inputs), attributes, outputs=[value], name=self.node.name)
        operator.metadata_props.update(self.node.metadata_props)
        self.nodes.append(operator)
        return value

    def number(self, number: float) -> ir.Value:
        """Return a constant of the result's type."""
        result = self.node.outputs[0]
        return put_constant(self.model.graph, number, f"{result.name}.number", result.dtype or ir.DataType.FLOAT)

    def turned(self, value: ir.Value | None, side: str) -> ir.Value | None:
        """Return an operand of a FusedMatMul, its last two axes exchanged if that is asked for; None if unknown."""
        attributes = self.node.attributes
        if value is None or attributes.get_int(f"transBatch{side}", False):
            return None
        if not attributes.get_int(f"trans{side}", False):
            return value
        if value.shape is None or len(value.shape) < 2:
            return None
        rank = len(value.shape)
        made = self.add("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])
        made.shape = ir.Shape([*value.shape[: rank - 2], value.shape[rank - 1], value.shape[rank - 2]])
        return made

    def put(self) -> set[str]:
        """Put the nodes in the operator's place; return the names of the values that came in between."""
        graph, node = self.model.graph, self.node
        graph.insert_before(node, self.nodes)
        kept: set[str | None] = set()
        for place, value in {**self.shown, 0: self.nodes[-1].outputs[0]}.items():
            if place < len(node.outputs) and node.outputs[place].name:
                take_place(value, node.outputs[place])
                kept.add(value.name)
        graph.remove(node, safe=True)
        return {str(n.outputs[0].name) for n in self.nodes} - kept


Spelling = Callable[[Writer], bool]
"""Writes what an operator computes; tells whether it could."""
