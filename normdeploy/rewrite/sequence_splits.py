"""Splits that take the way over a sequence become plain Splits.

torch's exporter writes ``x.split(sizes)`` as SplitToSequence and one SequenceAt per part. Nothing can follow a channel
through a sequence, and few runtimes are quick with one.

Rewritten where

1. the sequence is read by SequenceAt with constant positions only, and is no graph output;
2. the part sizes are constant: a vector, or one number that divides a static dimension;
3. the parts keep the axis (``keepdims`` 1, or sizes given).

Sequences that are made of single values: :mod:`.sequence_lists`.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.edit import edit_each, free_name, put_constant, take_place
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.sequence_lists import resolve_list


def resolve_sequences(model: ir.Model) -> bool:
    """Replace each sequence of known elements, and each SplitToSequence of known sizes; tell whether there was one."""
    listed = edit_each(model, resolve_list).modified
    return edit_each(model, _resolve).modified or listed


def _resolve(graph: ir.Graph, node: ir.Node) -> bool:
    if not is_standard(node, "SplitToSequence"):
        return False
    source, sequence = node.inputs[0], node.outputs[0]
    sizes = _sizes(node)
    if source is None or sizes is None or sequence.is_graph_output():
        return False
    readers = [usage.node for usage in sequence.uses()]
    positions = [_position(reader, len(sizes)) for reader in readers]
    if not readers or any(position is None for position in positions):
        return False
    axis = node.attributes.get_int("axis", 0)
    value = put_constant(graph, sizes, f"{sequence.name}_sizes")
    split = ir.Node(
        "",
        "Split",
        [source, value],
        attributes=[ir.AttrInt64("axis", axis)],
        outputs=[
            ir.Value(
                name=free_name(graph, f"{sequence.name}_{index}"), type=source.type, shape=_part(source, axis, size)
            )
            for index, size in enumerate(sizes)
        ],
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    graph.insert_after(node, split)
    for reader, position in zip(readers, positions, strict=True):
        assert position is not None
        old, new = reader.outputs[0], split.outputs[position]
        named = not new.uses() and not old.is_graph_output()  # a part is called as whoever reads it first calls it
        if old.is_graph_output():
            # two names may stand for one part; an Identity keeps the output's own
            keeper = ir.Node("", "Identity", [new], outputs=[ir.Value(type=old.type, shape=old.shape)])
            graph.insert_after(reader, keeper)
            new = keeper.outputs[0]
        take_place(new, old, named=named)
        graph.remove(reader, safe=True)
    graph.remove(node, safe=True)
    return True


def _part(source: ir.Value, axis: int, size: int) -> ir.Shape | None:
    """Return the shape of a part, whose size along the axis the inference of a sequence's elements does not tell."""
    if source.shape is None:
        return None
    dims = list(source.shape)
    dims[axis] = size
    return ir.Shape(dims)


def _sizes(node: ir.Node) -> list[int] | None:
    source = node.inputs[0]
    axis = node.attributes.get_int("axis", 0)
    given = constant64(optional(node, 1))
    if given is not None and given.ndim == 1:
        return [int(size) for size in given]
    if given is None or source is None or source.shape is None:
        return None
    dim = source.shape[axis]
    each = int(given)
    if not isinstance(dim, int) or each <= 0:
        return None
    whole, rest = divmod(dim, each)
    return [each] * whole + ([rest] if rest else [])


def _position(node: ir.Node, count: int) -> int | None:
    """Return which part a SequenceAt reads; None for any other reader or a computed position."""
    if not is_standard(node, "SequenceAt"):
        return None
    index = constant64(node.inputs[1])
    if index is None or index.size != 1 or not -count <= int(index.reshape(-1)[0]) < count:
        return None
    return int(index.reshape(-1)[0]) % count
