"""Made-up inputs of operators that read or write places of a value: the places lie in it."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import constant64
from normdeploy.graph.operator_inputs import optional, required
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.rewrite_context import RewriteContext

_FEW = 3
"""Size of dynamic dimensions."""


def gathered_feeds(context: RewriteContext, nodes: list[ir.Node], inputs: list[ir.Value]) -> dict[ir.Value, Tensor]:
    """Draw what a GatherElements reads at computed places: the places lie in it, and are no more along other axes."""
    node = nodes[0]
    if len(nodes) > 1 or not is_standard(node, "GatherElements") or len(inputs) != 2:
        return {}
    data, places = (dims_of(required(node, index)) for index in (0, 1))
    if data is None or places is None or len(data) != len(places):
        return {}
    axis, pairs = node.attributes.get_int("axis", 0) % len(data), list(zip(data, places, strict=True))
    wide = [
        next((dim for dim in pair[: 1 if at == axis else 2] if isinstance(dim, int)), _FEW)
        for at, pair in enumerate(pairs)
    ]
    narrow = [dim if isinstance(dim, int) else _FEW if at == axis else wide[at] for at, dim in enumerate(places)]
    chosen = torch.from_numpy(context.rng.integers(0, wide[axis], narrow))
    return {required(node, 0): context.normal(wide), required(node, 1): chosen}


def scattered_feeds(context: RewriteContext, nodes: list[ir.Node], inputs: list[ir.Value]) -> dict[ir.Value, Tensor]:
    """Draw the operands of a ScatterElements or ScatterND: the value, places in it, updates."""
    node = nodes[0]
    if len(nodes) > 1 or not is_standard(node, "ScatterElements", "ScatterND"):
        return {}
    shapes = [dims_of(required(node, index)) for index in range(3)]
    if any(shape is None for shape in shapes):
        return {}
    whole, places, new = ([dim if isinstance(dim, int) else None for dim in shape or ()] for shape in shapes)
    if is_standard(node, "ScatterND"):
        depth, leading = places[-1], len(places) - 1
        if depth is None:
            return {}
        row = [mine or other or _FEW for mine, other in zip(whole[depth:], new[leading:], strict=True)]
        data = [*(dim or _FEW for dim in whole[:depth]), *row]
        rows = [first or second or _FEW for first, second in zip(places[:-1], new[:leading], strict=True)]
        drawn = [context.rng.integers(0, size, rows) for size in data[:depth]]
        at = torch.stack([torch.from_numpy(one) for one in drawn], -1)
        updates = [*rows, *row]
    else:
        axis = node.attributes.get_int("axis", 0) % len(whole)
        rows = [first or second or _FEW for first, second in zip(places, new, strict=True)]
        data = [mine or (_FEW if index == axis else rows[index]) for index, mine in enumerate(whole)]
        at = torch.from_numpy(context.rng.integers(0, data[axis], rows))
        updates = rows
    if not math.prod(data):
        return {}
    drawn_for = {
        required(node, 0): context.normal(data),
        required(node, 1): at,
        required(node, 2): context.normal(updates),
    }
    return {value: tensor for value, tensor in drawn_for.items() if value in inputs}


def places_read(node: ir.Node, rank: int) -> dict[int, int]:
    """Return how long the axes of what a Gather or GatherND reads have to be: as far as its constant indices reach.

    Args:
        node: any operator.
        rank: axes of what it reads.
    """
    indices = constant64(optional(node, 1)) if is_standard(node, "Gather", "GatherND") else None
    if indices is None or not indices.size:
        return {}
    if is_standard(node, "Gather"):
        return {node.attributes.get_int("axis", 0) % rank: _length_for(indices)}
    first = node.attributes.get_int("batch_dims", 0)
    return {first + at: _length_for(indices[..., at]) for at in range(indices.shape[-1])}


def _length_for(indices: np.ndarray) -> int:
    return int(max(indices.max() + 1, -indices.min()))
