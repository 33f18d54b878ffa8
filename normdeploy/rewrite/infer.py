"""Types and shapes of values that their maker left untyped, by onnx's shape inference."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common_passes


def infer_missing_types(model: ir.Model) -> bool:
    """Run shape inference where any value that is read lacks a type or a shape; return whether it ran.

    A flaw in the graph does not stop it: a value without a type only means that no rule applies to it.
    """
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    if not any(_untyped(output) for node in nodes for output in node.outputs):
        return False
    common_passes.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    return True


def _untyped(value: ir.Value) -> bool:
    if value.shape is not None and value.dtype is not None:
        return False
    return bool(value.uses()) or value.is_graph_output()
