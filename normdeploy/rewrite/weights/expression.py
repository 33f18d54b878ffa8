"""Constant expressions remembered after their nodes have left the graph, so that a big result need not be held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Array
from normdeploy.graph import Parts, evaluate_node, parts64, tensor64


@dataclass(frozen=True)
class Step:
    """One node of an expression, and the values it read and made in the graph.

    Args:
        node: a copy that belongs to no graph (a node loses its inputs when it leaves its graph).
        inputs: the graph's operands.
        outputs: the graph's results.
    """

    node: ir.Node
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]

    @staticmethod
    def of(node: ir.Node, opset_imports: Mapping[str, int]) -> Step:
        """Copy a node out of its graph, with the operator set version that gives it its meaning."""
        copy = ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else ir.Value(name=f"in_{index}") for index, value in enumerate(node.inputs)],
            attributes=list(node.attributes.values()),
            outputs=[ir.Value(name=f"out_{index}" if value.name else "") for index, value in enumerate(node.outputs)],
            version=node.version or opset_imports.get(node.domain),
            name=node.name,
        )
        return Step(copy, tuple(node.inputs), tuple(node.outputs))

    def evaluate(self, operands: list[torch.Tensor | None], dtype: torch.dtype) -> dict[ir.Value, torch.Tensor]:
        """Return the results by the graph's values."""
        results = evaluate_node(self.node, operands, dtype=dtype)
        return dict(zip(self.outputs, results, strict=False))


@dataclass
class Expressions:
    """Every evaluated node and every leaf of one graph.

    Args:
        steps: the step that makes each evaluated value.
        leaves: the constants the steps read, as the tensors they were when first read (a later fold may replace the
            tensor of an initializer, and the expression must not see that).
    """

    steps: dict[ir.Value, Step] = field(default_factory=dict)
    leaves: dict[ir.Value, ir.TensorProtocol] = field(default_factory=dict)

    def leaf(self, value: ir.Value, dtype: torch.dtype) -> torch.Tensor:
        """Return a leaf as a torch tensor; floats in ``dtype``."""
        return as_torch(tensor64(self.leaves[value]), dtype)

    def order(self, value: ir.Value) -> list[Step]:
        """Return the steps that lead to ``value``, operands first."""
        order: list[Step] = []
        seen: set[ir.Node] = set()
        stack: list[tuple[ir.Value, bool]] = [(value, False)]
        while stack:
            current, expanded = stack.pop()
            step = self.steps.get(current)
            if step is None:
                continue
            if expanded:
                if step.node not in seen:
                    seen.add(step.node)
                    order.append(step)
            elif step.node not in seen:
                stack.append((current, True))
                stack.extend((operand, False) for operand in step.inputs if operand is not None)
        return order

    def run(self, value: ir.Value, dtype: torch.dtype) -> torch.Tensor:
        """Evaluate ``value`` with all floats in ``dtype``, freeing intermediate results as it goes."""
        order = self.order(value)
        pending = Counter(operand for step in order for operand in step.inputs if operand is not None)
        known: dict[ir.Value, torch.Tensor] = {}
        for step in order:
            operands: list[torch.Tensor | None] = []
            for operand in step.inputs:
                if operand is not None and operand not in known:
                    known[operand] = self.leaf(operand, dtype)
                operands.append(None if operand is None else known[operand])
            for operand in step.inputs:
                if operand is not None:
                    pending[operand] -= 1
                    if not pending[operand] and operand is not value:
                        known.pop(operand, None)
            known.update(step.evaluate(operands, dtype))
        return known[value]

    def parts(self, value: ir.Value) -> Parts | None:
        """Return a leaf that is merely transposed (the weight of a torch Linear) in pieces; None for all else."""
        step = self.steps.get(value)
        if step is None:
            leaf = self.leaves.get(value)
            return None if leaf is None else parts64(leaf)
        source = step.inputs[0]
        inner = self.parts(source) if source is not None and step.node.op_type == "Transpose" else None
        if inner is None:
            return None
        rank = len(step.outputs[0].shape or ())
        perm = step.node.attributes.get_ints("perm", range(rank)[::-1])
        return inner.transposed(perm) if len(perm) == rank else None


def as_torch(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """Return a numpy array as a torch tensor; floats in ``dtype``. It may share memory: no operator writes to it."""
    # torch warns of memory that must not be written
    tensor = torch.from_numpy(array if array.flags.writeable else np.array(array, order="C"))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
