"""The smallest of numbers written as the negative of the largest of their negatives, as runtimes without it have it.

Engines that know the largest alone (TensorRT's TopK until lately, tools that lower operators) take it of -x and negate
the result; places are the same.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.exact import FLOATS
from normdeploy.verification.derivation.side.competing_constants import takes_smallest
from normdeploy.verification.derivation.side.spelled_operator import Writer

LARGEST = {"ReduceMin": "ReduceMax", "ArgMin": "ArgMax", "TopK": "TopK"}
"""The operator of the largest in each one's place; TopK where it takes the smallest."""


def _of_floats(node: ir.Node) -> bool:
    """Tell whether an operator takes the smallest of floats: the negative of an integer may be none of its type."""
    read = node.inputs[0] if node.inputs else None
    return takes_smallest(node) and node.op_type in LARGEST and read is not None and read.dtype in FLOATS


def write_largest(writer: Writer) -> bool:
    """Write an operator of the smallest by that of the largest; tell whether it is one."""
    node, read = writer.node, writer.read(0)
    if read is None or not _of_floats(node):
        return False
    negative = writer.add("Neg", read)
    negative.shape, negative.type = read.shape, read.type
    attributes = [attribute for attribute in node.attributes.values() if attribute.name != "largest"]
    made = writer.add(LARGEST[node.op_type], negative, *node.inputs[1:])
    operator = writer.nodes[-1]
    operator.attributes.update({attribute.name: attribute for attribute in attributes})
    if node.op_type == "TopK":
        operator.resize_outputs(2)
        places = operator.outputs[1]
        places.name, places.shape, places.type = f"{made.name}.places", node.outputs[1].shape, node.outputs[1].type
        writer.shown[1] = places
    if node.op_type != "ArgMin":
        writer.add("Neg", made)
    return True
