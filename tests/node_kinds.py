"""What the operators of a model's main graph are, in their order."""

from __future__ import annotations

import onnx
import onnx_ir as ir


def kinds(model: ir.Model | onnx.ModelProto) -> list[str]:
    return [node.op_type for node in (model.graph.node if isinstance(model, onnx.ModelProto) else model.graph)]
