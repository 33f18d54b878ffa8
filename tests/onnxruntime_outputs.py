"""What onnxruntime itself makes of a graph on the CPU: the judge that shares no code with ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort


def run_onnxruntime(
    model: ir.Model | onnx.ModelProto | bytes | str | os.PathLike[str],
    feeds: Mapping[str, Any],
    *,
    plainly: bool = False,
) -> list[np.ndarray]:
    """Return the outputs of one run.

    Args:
        model: in memory, or a file's path or bytes.
        feeds: arrays by the inputs' names.
        plainly: run the graph as it is written, nothing optimized.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what fails raises
    if plainly:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    source = proto.SerializeToString() if isinstance(proto, onnx.ModelProto) else proto
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    found: list[np.ndarray] = ort.InferenceSession(source, options, ["CPUExecutionProvider"]).run(None, dict(feeds))
    return found
