"""InstanceNorm with running statistics, as torch's exporter writes it, becomes the BatchNormalization that it is.

With running statistics an instance is normalized by constants, as in a BatchNorm. The exporter writes: view (N, C, ...)
as (1, N C, ...), repeat the four vectors N times, BatchNormalization over N C channels, view back. Channel n C + c of
the view has the statistics of c, so it is BatchNormalization over C channels of the input itself.

Rewritten where

1. the four vectors are Tiles of constants of C elements, all by the first dimension of x;
2. x [N, C, ...] is viewed as [1, N C, ...] and the result is viewed back to x's own shape, trailing dimensions alike;
3. nothing else reads what stands between, and BatchNormalization is in evaluation mode.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.graph.edit import edit_each, is_read, only_reader, standing_for, take_out, take_out_unread, take_place
from normdeploy.graph.traits import is_standard


class UntileStatistics(ir.passes.InPlacePass):
    """Replace each Reshape, BatchNormalization with tiled statistics, Reshape by one BatchNormalization."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        return edit_each(model, _untile)


def _untile(graph: ir.Graph, norm: ir.Node) -> bool:
    if not is_standard(norm, "BatchNormalization"):
        return False
    view, result = norm.inputs[0], norm.outputs[0]
    if view is None or len(norm.inputs) != 5 or is_read(*norm.outputs[1:]):
        return False
    if norm.attributes.get_int("training_mode", 0):
        return False
    before, back = view.producer(), only_reader(result)
    if before is None or back is None or before.op_type != "Reshape" or back.op_type != "Reshape":
        return False
    x, y = before.inputs[0], back.outputs[0]
    if x is None or not only_reader(view) or not _is_view(x, view, y) or back.inputs[0] is not result:
        return False
    vectors = [_tiled(value, x) for value in norm.inputs[1:]]
    if any(vector is None for vector in vectors):
        return False
    plain = standing_for(norm, norm.op_type, [x, *vectors], list(norm.attributes.values()), like=y)
    graph.insert_after(back, plain)
    take_place(plain.outputs[0], y)
    tiles = list(norm.inputs[1:])
    take_out([before, norm, back])
    take_out_unread(tiles)
    return True


def _is_view(x: ir.Value, view: ir.Value, y: ir.Value) -> bool:
    """Tell whether x [N, C, ...] is seen as [1, N C, ...] and back, by the dimensions behind the channels."""
    if x.shape is None or view.shape is None or y.shape is None or not x.shape.rank() == view.shape.rank() >= 3:
        return False
    trailing = x.shape[2:]
    same = y.shape[2:] == trailing == view.shape[2:] and all(isinstance(dim, int) for dim in trailing)
    return same and y.shape == x.shape and view.shape[0] == 1 and isinstance(x.shape[1], int)


def _tiled(value: ir.Value | None, x: ir.Value) -> ir.Value | None:
    """Return the constant of C elements that ``value`` repeats once per sample of ``x``, or None."""
    tile = None if value is None else value.producer()
    if tile is None or tile.op_type != "Tile" or tile.inputs[0] is None or tile.inputs[1] is None:
        return None
    counted = tile.inputs[1].producer()
    if counted is None or counted.op_type != "Shape" or counted.inputs[0] is not x:
        return None
    start = counted.attributes.get_int("start", 0)
    end = counted.attributes.get_int("end", None)
    tensor = constant_tensor(tile.inputs[0])
    if (start, end) != (0, 1) or tensor is None or x.shape is None:
        return None
    return tile.inputs[0] if tuple(tensor.shape.numpy()) == (x.shape[1],) else None
