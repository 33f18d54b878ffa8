"""Files as onnxruntime's own optimizers save them."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime as ort

LEVELS = {
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def optimized(source: Path, target: Path, level: str) -> onnx.ModelProto:
    """Save what a level of onnxruntime makes of a file, and return it."""
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return onnx.load(str(target))


def operators(proto: onnx.ModelProto, domain: str) -> set[str]:
    """Return the kinds of operators of a domain."""
    return {node.op_type for node in proto.graph.node if node.domain == domain}
