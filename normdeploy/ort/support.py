"""What the onnxruntime in use can read."""

from __future__ import annotations

import functools

import onnxruntime
from onnx import parser

NEWEST = 23
"""The newest operator set that folding writes of its own accord (for RMSNormalization)."""

_PROBE = """
    <ir_version: 11, opset_import: ["" : 23]>
    probe (float[n, 1] x) => (float[n, 1] y) <float[1] g = {1}> { y = RMSNormalization (x, g) }
"""


@functools.cache
def highest_opset() -> int | None:
    """Return the operator set that a file for the onnxruntime in use may not exceed; None if it reads all we write.

    onnxruntime 1.22 refuses operator set 23 and the file format that came with it.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = parser.parse_model(_PROBE).SerializeToString()
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # it raises classes of its own, none of them public
        return NEWEST - 1
    return None
