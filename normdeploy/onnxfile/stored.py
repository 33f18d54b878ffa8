"""Every tensor that a model stores, and how much data it takes; of onnx's messages, and of those of `schema`."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from normdeploy.errors import GraphError
from normdeploy.onnxfile.schema import ELEMENTS

if TYPE_CHECKING:
    import onnx

LONG = "ai.onnx"
STANDARD = ("", LONG)
"""The two spellings of the standard operators' domain."""


def graphs(proto: onnx.ModelProto) -> Iterator[Any]:
    """Yield the graph, the functions, and the bodies in all of them, however deep; what has initializers is a graph."""
    training = [part for info in proto.training_info for part in (info.initialization, info.algorithm)]
    return with_bodies(proto.graph, *proto.functions, *training)


def with_bodies(*parts: Any) -> Iterator[Any]:
    """Yield graphs and functions, and the bodies in all of them, however deep."""
    waiting = list(parts)
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append(attribute.g)
                waiting += attribute.graphs


def forget_unknown_sizes(proto: onnx.ModelProto) -> None:
    """Take what names no size from dimensions, in place.

    The empty word (onnx.proto, TensorShapeProto.Dimension), and a negative number, which some exporters write for a
    size that is not known and onnxruntime reads so.
    """
    for graph in graphs(proto):
        if hasattr(graph, "initializer"):
            for value in (*graph.input, *graph.output, *graph.value_info):
                for dimension in value.type.tensor_type.shape.dim:
                    if (dimension.HasField("dim_param") and not dimension.dim_param) or dimension.dim_value < 0:
                        dimension.Clear()


def spell_domains(proto: onnx.ModelProto, name: str) -> None:
    """Write the standard operators' domain as "" wherever a model spells it "ai.onnx", in place.

    Args:
        proto: the model. name: what messages call it.

    Raises:
        GraphError: it imports the domain twice, in versions that differ.
    """
    for owner in (proto, *proto.functions):
        versions = {entry.version for entry in owner.opset_import if entry.domain in STANDARD}
        if len(versions) > 1:
            raise GraphError(
                f"{name} imports the standard operators in versions {', '.join(map(str, sorted(versions)))}; expected "
                "one: write it again with one operator set"
            )
        if any(entry.domain == LONG for entry in owner.opset_import):
            others = [(e.domain, e.version) for e in owner.opset_import if e.domain not in STANDARD]
            del owner.opset_import[:]
            for domain, version in [("", *versions), *others]:
                owner.opset_import.add(domain=domain, version=version)
    for graph in graphs(proto):
        for node in graph.node:
            if node.domain == LONG:
                node.domain = ""


def tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor that a model stores, wherever it does."""
    for graph in graphs(proto):
        if hasattr(graph, "initializer"):
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                for sparse in (
                    *attribute.sparse_tensors,
                    *([attribute.sparse_tensor] * attribute.HasField("sparse_tensor")),
                ):
                    yield from (sparse.values, sparse.indices)


def element_bits(data_type: int) -> int:
    """Return the bits of one element in ONNX's raw form; 0 for strings and for what is not known."""
    return ELEMENTS.get(data_type, ("", 0))[1]


def element_count(tensor: onnx.TensorProto) -> int:
    """Return the number of elements that a tensor declares.

    Raises:
        GraphError: a size is negative.
    """
    if any(size < 0 for size in tensor.dims):
        raise GraphError(
            f"tensor {tensor.name!r} declares the shape {list(tensor.dims)}; expected sizes of at least 0: the file is "
            "damaged, write it again"
        )
    return prod(tensor.dims)


def stored_bytes(tensor: onnx.TensorProto) -> int:
    """Return how many bytes a tensor of numbers takes by its declared type and shape, in ONNX's raw form.

    Raises:
        GraphError: a size is negative.
    """
    return -(-element_count(tensor) * element_bits(tensor.data_type) // 8)
