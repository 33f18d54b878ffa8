"""Which exchanges of operands change nothing: what is no damage, told without the code under test."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, NodeProto, helper


def _results(model: ModelProto) -> list[np.ndarray] | None:
    """Run a model on random inputs, each dynamic dimension of a size of its own; None where it does not run."""
    dims: dict[str, int] = {}
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value or dims.setdefault(d.dim_param, 5 + 2 * len(dims)) for d in tensor.shape.dim]
        feeds[value.name] = (rng.random(shape) * 8).astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, feeds))
    except Exception:  # onnxruntime raises its own classes
        return None


def undone(model: ModelProto, node: NodeProto) -> bool:
    """Tell whether exchanged sizes change no bit: one size twice, or a Reshape that the next one undoes."""
    before = _results(model)
    node.input[0], node.input[1] = node.input[1], node.input[0]
    after = _results(model)
    node.input[0], node.input[1] = node.input[1], node.input[0]
    if before is None or after is None:
        return False
    return all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def squared(model: ModelProto, name: str) -> bool:
    """Tell whether a value is read by products with itself alone."""
    readers = [node for node in model.graph.node if name in node.input]
    named = {output.name for output in model.graph.output}
    return name not in named and all(n.op_type == "Mul" and set(n.input) == {name} for n in readers)
