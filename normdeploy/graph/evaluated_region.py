"""Evaluate some nodes of a graph from values to values: what the check of a rewrite does, before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph.exact import constant_tensor
from normdeploy.graph.operator_evaluation import (
    OPERATOR_ERRORS,
    as_constant,
    evaluate_node,
    failed,
    imports_of,
    opset_of,
    promote,
)
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.operators import Call
from normdeploy.graph.operators.pieces import WEIGHT, Ahead, alike, large_weight, products_in_pieces


def evaluate_region(
    nodes: Iterable[ir.Node],
    feeds: Mapping[ir.Value, Tensor],
    outputs: Sequence[ir.Value],
    *,
    dtype: torch.dtype = torch.float64,
    opset_imports: Mapping[str, int] | None = None,
    ahead: Ahead | None = None,
) -> list[Tensor]:
    """Evaluate some nodes, given in topological order, from values to values.

    Args:
        nodes: the region; other nodes are not run. Constants are found by themselves.
        feeds: value per region input; a node whose results are all fed is not run either.
        outputs: what to return.
        dtype: stands for every float.
        opset_imports: versions by domain; each node's own graph's by default.
        ahead: what large weights are multiplied by as well, for the next evaluation.
    """
    known: dict[ir.Value, Tensor] = {value: promote(tensor, dtype) for value, tensor in feeds.items()}

    def look_up(value: ir.Value) -> Tensor:
        if value not in known:
            tensor = constant_tensor(value)
            if tensor is None:
                raise GraphError(f"value {value.name!r} is not fed, not constant and not computed in the region")
            return as_constant(tensor, dtype)
        return known[value]

    for node in nodes:
        if node.outputs and all(output in feeds for output in node.outputs):
            continue
        pieces = dtype == torch.float64 and large_weight(node) is not None and node.inputs[WEIGHT] not in known
        inputs = [
            None if value is None or value.name == "" or (pieces and index == WEIGHT) else look_up(value)
            for index, value in enumerate(node.inputs)
        ]
        if pieces and inputs[0] is not None:
            results = _in_pieces([node], inputs[0], [inputs[2] if len(inputs) > 2 else None], opset_imports, ahead)
        else:
            results = evaluate_node(node, inputs, dtype=dtype, opset_imports=opset_imports)
        known |= {value: item for value, item in zip(node.outputs, results, strict=False) if value not in feeds}
    return [look_up(value) for value in outputs]


def evaluate_alike(
    before: Sequence[ir.Node], after: Sequence[ir.Node], feeds: Mapping[ir.Value, Tensor]
) -> dict[ir.Value, Tensor]:
    """Evaluate products of two regions that read one fed value with two versions of one large weight.

    Args:
        before: a region.
        after: another, whose weights were made of the first's.
        feeds: value per input of both.

    Returns:
        the products' results, float64, of those that can be read together; feed them to :func:`evaluate_region`.
    """
    results: dict[ir.Value, Tensor] = {}
    for old in before:
        x = None if not old.inputs or old.inputs[0] is None else feeds.get(old.inputs[0])
        if x is None or large_weight(old) is None:
            continue
        new = next((node for node in after if node.outputs[0] not in results and alike(old, node)), None)
        if new is None or not (_is_closed(old, feeds) and _is_closed(new, feeds)):
            continue
        addends = [_addend(old), _addend(new)]
        values = _in_pieces([old, new], promote(x, torch.float64), addends, None)
        results |= {old.outputs[0]: values[0], new.outputs[0]: values[1]}
    return results


def _is_closed(node: ir.Node, feeds: Mapping[ir.Value, Tensor]) -> bool:
    """Tell whether a product reads constants only, besides its first input."""
    present = [value for value in node.inputs[WEIGHT:] if value is not None and value.name]
    return all(value not in feeds and constant_tensor(value) is not None for value in present)


def _addend(node: ir.Node) -> Tensor | None:
    value = optional(node, 2)
    if value is None:
        return None
    tensor = constant_tensor(value)
    if tensor is None:
        raise GraphError(f"the bias of {node.op_type} ({node.name}) is computed; expected a constant beside its weight")
    return as_constant(tensor, torch.float64)


def _in_pieces(
    nodes: Sequence[ir.Node],
    x: Tensor,
    addends: Sequence[Tensor | None],
    opset_imports: Mapping[str, int] | None,
    ahead: Ahead | None = None,
) -> list[Tensor]:
    """Evaluate, in float64, products with large weights that are alike."""
    calls = [
        Call(node, opset_of(node, opset_imports if opset_imports is not None else imports_of(node)), torch.float64)
        for node in nodes
    ]
    try:
        return products_in_pieces(calls, x, addends, ahead)
    except OPERATOR_ERRORS as error:
        raise failed(nodes[0], [x, *addends], error) from error
