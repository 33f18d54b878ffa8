"""A file against one that was written again: the same operators, wired alike, with the same stored numbers.

For mutants of files on integers (:mod:`normdeploy.verification.mutation.same_file`): one whose own file is this one
cannot be told from it by any input.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.graph.traits import kind_of


def alike(made: ir.Model, file: ir.Model) -> bool:
    """Tell whether two graphs have the same operators, wired alike, with the same stored numbers."""
    if len(made.graph.outputs) != len(file.graph.outputs):
        return False
    seen: set[tuple[ir.Value, ir.Value]] = set()
    pending = list(zip(made.graph.outputs, file.graph.outputs, strict=True))
    while pending:
        pair = pending.pop()
        if pair in seen:
            continue
        seen.add(pair)
        tensors = [constant_tensor(value) for value in pair]
        if tensors[0] is not None and tensors[1] is not None:
            a, b = tensors[0].numpy(), tensors[1].numpy()
            if a.dtype != b.dtype or not np.array_equal(a, b):
                return False
            continue
        nodes = [value.producer() for value in pair]
        if nodes[0] is None or nodes[1] is None:
            if nodes[0] is not nodes[1] or tensors[0] is not tensors[1] or pair[0].name != pair[1].name:
                return False
            continue
        if _described(nodes[0]) != _described(nodes[1]) or pair[0].index() != pair[1].index():
            return False
        for one, other in zip(nodes[0].inputs, nodes[1].inputs, strict=True):
            if one is not None and other is not None:
                pending.append((one, other))
            elif one is not other:
                return False
    return True


def _described(node: ir.Node) -> tuple[object, ...]:
    attributes = {
        name: str(np.float32(attribute.value)) if attribute.type == ir.AttributeType.FLOAT else str(attribute.value)
        for name, attribute in node.attributes.items()
    }
    return (*kind_of(node), len(node.inputs), attributes)
