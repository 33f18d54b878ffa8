"""What is needed to change a protobuf graph in place: who reads what, which shapes and names there are."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


class ProtoGraph:
    """Who makes and reads what, and the shapes that are known.

    Attributes:
        constants: the initializers, by name. readers: the nodes that read a value. outputs: the graph's.
        shapes: sizes by value, None where dynamic. names: what is taken. added: initializers of ours.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        inputs = {value.name for value in graph.input}  # a caller may give another value for an initializer among them
        self.constants = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in inputs}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in reads(node):
                self.readers.setdefault(name, []).append(node)
        self.names = {name for node in graph.node for name in (*node.input, *node.output)} | set(self.constants)
        self.added: set[str] = set()
        self.outputs = {value.name for value in graph.output}
        self.shapes: dict[str, list[int | None]] = {}
        for value in (*graph.input, *graph.value_info):
            if value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                self.shapes[value.name] = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]

    def name(self, wanted: str) -> str:
        """Return a name for a new value, free and like the one wanted."""
        while wanted in self.names:
            wanted += "_"
        self.names.add(wanted)
        return wanted

    def only_reader(self, name: str, kind: str) -> onnx.NodeProto | None:
        """Return the node of that kind which alone reads a value; None where there is none."""
        readers = self.readers.get(name, [])
        alone = len(readers) == 1 and name not in self.outputs and readers[0].op_type == kind
        return readers[0] if alone else None


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield what a node reads, and what the bodies in it capture."""
    yield from node.input
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                yield from reads(inner)
