"""What onnxruntime makes of a file: whether two files end as the same graph, and which operators they end as."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime as ort

_NO_TIME = ("allowzero", "epsilon")  # what a zero in a Reshape's shape means, and a number: nothing that takes time


def _takes_time(attribute: onnx.AttributeProto) -> bool:
    written_default = attribute.name == "stash_type" and attribute.i == 1
    return attribute.name not in _NO_TIME and not written_default


def optimized(path: Path) -> onnx.GraphProto:
    """Return the graph that a session at the level "all" runs."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4  # it warns that the file it writes is for this processor only
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath, load_external_data=False).graph  # it may name another's data


def operators(path: Path) -> Counter[str]:
    """Return how often each operator is run."""
    return Counter(node.op_type for node in optimized(path).node)


def fingerprint(path: Path) -> str:
    """Return a digest of the optimized graph that does not depend on names, order or the weights' values.

    Two files of one digest run the same operators on the same shapes: a difference in their times is not theirs.
    """
    graph = optimized(path)
    known: dict[str, str] = {"": "-"}
    for tensor in graph.initializer:
        known[tensor.name] = _digest("weight", str(tensor.data_type), str(list(tensor.dims)))
    for index, value in enumerate(graph.input):
        known.setdefault(value.name, _digest("input", str(index)))
    pending = list(graph.node)
    while pending:
        waiting = []
        for node in pending:
            if not all(name in known for name in node.input):
                waiting.append(node)
                continue
            attributes = sorted(
                attribute.SerializeToString().hex() for attribute in node.attribute if _takes_time(attribute)
            )
            digest = _digest(node.domain, node.op_type, *attributes, *(known[name] for name in node.input))
            known.update({name: _digest(digest, str(index)) for index, name in enumerate(node.output)})
        if len(waiting) == len(pending):
            raise AssertionError(f"{path}: a cycle, or a value that a body takes from outside")
        pending = waiting
    nodes = sorted(known[name] for node in graph.node for name in node.output if name)
    return _digest(*nodes, *(known[value.name] for value in graph.output))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
