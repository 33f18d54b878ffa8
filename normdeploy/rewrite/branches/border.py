"""A shift in front of a zero-padded convolution becomes a constant map behind it, where that costs less.

conv(s x + t, W) = conv(x, W s) + K, with K = conv(t spread over x's positions, W): inside, K is the familiar
b[o] + sum W[o, i] t[i]; along the border fewer taps see t, and K says exactly how many. The same for ConvTranspose,
where each output position is reached by its own set of taps. W's channel i is multiplied by s[i].

Done where

1. every reader of the map is a Conv or ConvTranspose with constant weights, which reads it as its input;
2. the map varies along the channels only, and x has static spatial dimensions (K is a constant [1, O, spatial...]);
3. the weights and the map fit their dtype;
4. adding the maps to the (smaller) results costs less than the pass over x that it saves;
5. the map's inputs are not far from zero (:mod:`normdeploy.rewrite.affine.far_from_zero`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Floats
from normdeploy.errors import GraphError
from normdeploy.graph import compress, evaluate_node, is_constant, module_path
from normdeploy.graph.linear_view import linear_of
from normdeploy.graph.operator_inputs import array_of, dtype_of, optional, required, shape_of
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.affine import AffineMap, affine_map, bytes_moved, is_affine, settle
from normdeploy.rewrite.affine.constant import along, copy_cost, derive, storable
from normdeploy.rewrite.affine.far_from_zero import is_far
from normdeploy.rewrite.affine.replacement import Region
from normdeploy.rewrite.rewrite_context import RewriteContext

RULE = "shift in front of a border"


def fold_border(context: RewriteContext, graph: ir.Graph, node: ir.Node) -> bool:
    """Fold the Affine ``node`` into the convolutions behind it; return whether the graph changed."""
    if not is_affine(node):
        return False
    source, result = required(node, 0), node.outputs[0]
    mapping = affine_map(node)
    readers = list(dict.fromkeys(usage.node for usage in result.uses()))
    if result.is_graph_output() or not readers or not mapping.axes <= {1} or not _is_static(source):
        return False
    if is_far(node):
        return False
    if any(not _takes(reader, result, graph) for reader in readers):
        return False
    if sum(_price(reader) for reader in readers) >= bytes_moved.pass_bytes(result):
        return False
    if not all(storable(dtype_of(required(reader, 1)), _scaled(reader, mapping)) for reader in readers):
        return False
    maps = {} if mapping.no_shift else {reader: _map(reader, source, mapping) for reader in readers}
    if not all(storable(dtype_of(required(reader, 1)), array) for reader, array in maps.items()):
        return False
    region = Region(graph)
    region.before = [node, *readers]
    for reader in readers:
        _build(region, reader, source, mapping, maps.get(reader))
    into = ", ".join(dict.fromkeys(module_path(reader) for reader in readers))
    feeds = {source: torch.from_numpy(context.rng.standard_normal([2, *_static_dims(source)]))}
    try:
        region.commit(context, RULE, module_path(node), feeds)
    except GraphError:
        region.discard()
        return False
    settle(context.ledger, node, "folded", into, "the shift became a constant map that knows the border")
    return True


def _is_static(value: ir.Value) -> bool:
    shape = value.shape
    return shape is not None and shape.rank() > 2 and all(isinstance(shape[axis], int) for axis in range(1, len(shape)))


def _static_dims(value: ir.Value) -> list[int]:
    """Return the dimensions behind the batch."""
    assert value.shape is not None
    return [int(dim) for dim in value.shape.dims[1:] if isinstance(dim, int)]


def _takes(reader: ir.Node, value: ir.Value, graph: ir.Graph) -> bool:
    if reader.graph is not graph or not is_standard(reader, "Conv", "ConvTranspose"):
        return False
    if sum(operand is value for operand in reader.inputs) != 1:
        return False
    bias, shape = optional(reader, 2), reader.outputs[0].shape
    if reader.inputs[0] is not value or not is_constant(required(reader, 1)):
        return False
    return (bias is None or is_constant(bias)) and shape is not None and shape.rank() > 2


def _price(reader: ir.Node) -> float:
    """Return what the map costs behind one convolution: one more pass over its result, and the map to read."""
    result = reader.outputs[0]
    per_sample = bytes_moved.copy_bytes(result) / max(_batch(result), 1)
    return bytes_moved.pass_bytes(result) + per_sample + copy_cost(required(reader, 1), reader)


def _batch(value: ir.Value) -> int:
    assert value.shape is not None
    first = value.shape[0]
    return first if isinstance(first, int) else bytes_moved.ASSUMED_DIM


def _scaled(reader: ir.Node, mapping: AffineMap) -> Floats:
    """Return W with input channel i multiplied by s[i]."""
    return _scaling(reader, mapping)(array_of(required(reader, 1)))


def _scaling(reader: ir.Node, mapping: AffineMap) -> Callable[[Floats], Floats]:
    linear = linear_of(reader)
    assert linear is not None
    channels = linear.channels(shape_of(required(reader, 1)))
    factor = along(mapping.scale, 1, channels.ins)[channels.read]
    return lambda array: array * factor


def _build(region: Region, reader: ir.Node, source: ir.Value, mapping: AffineMap, border: Floats | None) -> None:
    weight, bias, result = required(reader, 1), optional(reader, 2), reader.outputs[0]
    scaled = weight if mapping.no_scale else derive(region, weight, _scaling(reader, mapping))
    stem = str(weight.name).removesuffix(".weight")
    if border is not None and border.shape[2:].count(1) == border.ndim - 2:  # every position is at the same border
        total = border.reshape(-1) + (0.0 if bias is None else array_of(bias))
        bias, border = region.constant(lambda: total, total.shape, dtype_of(weight), name=f"{stem}.bias"), None
    new = region.replace(reader, [source, scaled, *([] if bias is None else [bias])])
    if border is None:
        region.same(result, new.outputs[0])
        return
    array: Floats = border
    constant = region.constant(lambda: array, array.shape, dtype_of(weight), name=f"{stem}.border")
    region.same(result, region.insert("Add", [new.outputs[0], constant], after=new, like=result).outputs[0])


def _map(reader: ir.Node, source: ir.Value, mapping: AffineMap) -> Floats:
    """Return K [1, O, spatial...], 1 where it does not vary: what the convolution without its bias makes of t."""
    shift = torch.from_numpy(np.array(np.broadcast_to(mapping.shift, [1, *_static_dims(source)])))
    graph = reader.graph
    alone = ir.Node(
        "",
        reader.op_type,
        [ir.Value(name="t"), ir.Value(name="w")],
        attributes=list(reader.attributes.values()),
        outputs=[ir.Value(name="k")],
        version=None if graph is None else graph.opset_imports.get(""),
    )
    weight = torch.from_numpy(np.array(array_of(required(reader, 1))))
    found = np.asarray(evaluate_node(alone, [shift, weight])[0].numpy(), dtype=np.float64)
    whole = compress(found)
    return np.broadcast_to(whole, (1, found.shape[1], *whole.shape[2:]))
