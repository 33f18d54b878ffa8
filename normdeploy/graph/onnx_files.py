"""Read and write ONNX files: what is read is checked first, what is written stands on its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx.external_data_helper import uses_external_data

from normdeploy.array_types import Array
from normdeploy.errors import GraphError, InputError
from normdeploy.files import storage, written_together
from normdeploy.graph.model_check import check_model, check_proto, dense
from normdeploy.onnxfile.data_places import point_to, pointed, put_inside
from normdeploy.onnxfile.model import ModelFile, read_model
from normdeploy.onnxfile.named_bytes import Content
from normdeploy.onnxfile.raw_data import raw_places
from normdeploy.onnxfile.stored import forget_unknown_sizes, graphs, spell_domains
from normdeploy.ort.specs import TensorSpec

ONE_FILE_LIMIT = 2 * 1024**3 - 64 * 1024**2
"""Weights above this many bytes go to ``<name>.data`` beside the file: protobuf stops at 2 GiB, structure included."""

_STAYS = 1024
"""Bytes up to which a tensor stays in the graph whatever its size: shapes and the like, which runtimes read there."""

_CHOSEN = 4
"""The IR version from which on an initializer is an input only where its author wants it to be."""

_SHIPPED_METADATA_PREFIXES = ("pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node")


def load_graph(
    path: str | os.PathLike[str], *, called: str | os.PathLike[str] | None = None, read: ModelFile | None = None
) -> ir.Model:
    """Read and check an ONNX file; weights that lie beside it are mapped, not copied.

    Args:
        path: the file. read: the same file, where the caller has read it and needs it no more; weights are then taken
            from its bytes as they lie, so that numbers may begin at any byte.
        called: what messages call it, where ``path`` is a copy that its user does not know.

    Raises:
        GraphError: the file is missing or not a valid ONNX model, or its weights may not be read, are missing or short.
    """
    file = read_model(path) if read is None else read
    proto, name = file.proto, os.fspath(called or path)
    spell_domains(proto, name)  # onnx's checker does not find operators by the long spelling inside bodies
    forget_unknown_sizes(proto)
    places = dict[str, tuple[int, int]]()
    if read is not None:
        with suppress(ValueError, IndexError):  # names that are refused below, fields that protobuf skips
            places = raw_places(read.content)
    _without_maps(proto, name)
    check_model(proto, name, lengths={stored: length for stored, (_, length) in places.items()})
    for tensor, place in file.external:
        point_to(tensor, place, str(place.file))  # checked: no folder to be joined with, and no check to come
    _without_sparse(proto, name)
    _unlist(proto)
    try:
        model = ir.serde.deserialize_model(proto)
        if read is not None:
            _view_weights(model, read.content, places)
        for stored, replace in stored_tensors(model):
            if isinstance(stored, ir.TensorProtoTensor) and stored.dtype != ir.DataType.STRING:
                replace(_taken_out(stored))
    except Exception as error:  # onnx_ir raises many types for what it does not know
        raise GraphError(
            f"{name} cannot be read as ONNX ({error}); expected a valid .onnx file: write it again"
        ) from error
    for stored, replace in stored_tensors(model):
        if isinstance(stored, ir.ExternalTensor):
            replace(_mapped(stored))
    return model


def _unlist(proto: onnx.ModelProto) -> None:
    """Take initializers from the inputs where the format demanded them there: runtimes let no caller override them.

    Up to IR version 3 each was listed; from 4 on an input with a number of its own is a choice of the author's.
    """
    if proto.ir_version < _CHOSEN:
        stored = {tensor.name for tensor in proto.graph.initializer}
        kept = [value for value in proto.graph.input if value.name not in stored]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
        proto.ir_version = _CHOSEN


def _without_maps(proto: onnx.ModelProto, name: str) -> None:
    """Refuse a graph whose inputs or outputs are maps, as classifiers of scikit-learn are written by default.

    Raises:
        GraphError: one is; the message names it and the remedy.
    """
    for value in (*proto.graph.input, *proto.graph.output):
        kind = value.type
        while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
            kind = getattr(kind, str(kind.WhichOneof("value"))).elem_type
        if kind.WhichOneof("value") == "map_type":
            raise GraphError(
                f"{value.name!r} of {name} is a map or a sequence of maps; expected a tensor: leave the ZipMap out "
                "(skl2onnx and onnxmltools do with options={'zipmap': False})"
            )


def _mapped(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    """Return a tensor of the same numbers that does not say where they lie: written, they are written whole."""
    with storage(tensor.path, "read"):
        return ir.Tensor(
            tensor.numpy(), dtype=tensor.dtype, shape=tensor.shape, name=tensor.name, doc_string=tensor.doc_string
        )


def _view_weights(model: ir.Model, content: Content, places: Mapping[str, tuple[int, int]]) -> None:
    """Take the initializers of the main graph from their places in a model's bytes, without a copy."""
    for name, value in model.graph.initializers.items():
        tensor, (start, length) = value.const_value, places.get(name, (0, 0))
        if not length or not isinstance(tensor, ir.TensorProtoTensor) or tensor.dtype.bitwidth < 8:
            continue
        kind = tensor.dtype.numpy().newbyteorder("<")
        if length == tensor.size * kind.itemsize:
            array = np.frombuffer(content, kind, tensor.size, start)
            value.const_value = _held_in(tensor, array.reshape(tensor.shape.numpy()))


def _taken_out(tensor: ir.TensorProtoTensor) -> ir.TensorProtocol:
    """Return a tensor of the same numbers that holds them as an array: a message copies them each time it is asked."""
    return _held_in(tensor, tensor.numpy())


def _held_in(tensor: ir.TensorProtoTensor, array: Array) -> ir.TensorProtocol:
    """Return a tensor that holds its numbers in an array."""
    return ir.Tensor(
        array,
        dtype=tensor.dtype,
        shape=tensor.shape,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _without_sparse(proto: onnx.ModelProto, name: str) -> None:
    """Write sparse tensors, which onnx_ir does not know, with their zeros."""

    def written_out(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
        for tensor in (sparse.values, sparse.indices):
            if uses_external_data(tensor):
                put_inside(tensor, pointed(tensor))
        return dense(sparse, ONE_FILE_LIMIT, name)

    for graph in graphs(proto):
        if isinstance(graph, onnx.GraphProto) and graph.sparse_initializer:
            graph.initializer.extend(written_out(sparse) for sparse in graph.sparse_initializer)
            del graph.sparse_initializer[:]
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                    attribute.CopyFrom(onnx.helper.make_attribute("value", written_out(attribute.sparse_tensor)))


def stored_tensors(model: ir.Model) -> Iterator[tuple[ir.TensorProtocol, Callable[[ir.TensorProtocol], None]]]:
    """Yield every tensor that a model stores, in graphs, bodies, functions and attributes, and what replaces it."""
    functions = list(model.functions.values())
    inner = [body for function in functions for body in function.subgraphs()]
    for graph in [*model.graphs(), *inner]:
        for value in list(graph.initializers.values()):
            if value.const_value is not None:
                yield value.const_value, partial(setattr, value, "const_value")
    for graph_or_function in [*model.graphs(), *inner, *functions]:
        for node in graph_or_function:
            for name, attribute in list(node.attributes.items()):
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    yield attribute.as_tensor(), partial(_set_attribute, node, name)
                elif attribute.type == ir.AttributeType.TENSORS:
                    for at, tensor in enumerate(attribute.as_tensors()):
                        yield tensor, partial(_set_attribute, node, name, at=at)


def _set_attribute(node: ir.Node, name: str, tensor: ir.TensorProtocol, at: int | None = None) -> None:
    old = node.attributes[name]
    value = tensor if at is None else [tensor if i == at else kept for i, kept in enumerate(old.as_tensors())]
    node.attributes[name] = ir.Attr(name, old.type, value, doc_string=old.doc_string)


def weight_bytes(model: ir.Model) -> int:
    """Return the total size in bytes of all tensors that the model stores."""
    return sum(tensor.nbytes for tensor, _ in stored_tensors(model) if tensor.dtype != ir.DataType.STRING)


def strip_traces(model: ir.Model) -> None:
    """Remove the exporter's stack traces and fx nodes: they hold the author's file paths and outweigh the graph."""
    for node in model.graph.all_nodes():
        for key in [key for key in node.metadata_props if key.startswith(_SHIPPED_METADATA_PREFIXES)]:
            del node.metadata_props[key]
        node.doc_string = None


def bare_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the model without the types and shapes of values inside it, which every reader infers for itself.

    With them onnxruntime's CPU provider computes a sum and the LayerNormalization behind it as one operator, slower
    than the two, and a Softmax in place, slower than beside; and it plans twice the memory for a transformer
    (``python benchmarks/inner_shapes.py``).
    """
    proto = ir.to_proto(model)
    strip_inner_shapes(proto)
    return proto


def strip_inner_shapes(proto: onnx.ModelProto) -> None:
    """Remove types and shapes of values inside the graph and the bodies in it; inputs and outputs keep theirs."""
    graphs = [proto.graph]
    while graphs:
        graph = graphs.pop()
        del graph.value_info[:]
        graphs += [body for node in graph.node for at in node.attribute for body in (at.g, *at.graphs) if body.node]


def save_graph(model: ir.Model, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write ``model`` so that it stands on its own: one file, with its weights beside it above 2 GB; checked.

    Shapes of values inside the graph are left out: see :func:`bare_proto`.

    Args:
        model: the graph; stack traces are removed from it.
        path: target file; appears whole or not at all.
        overwrite: allow replacing an existing file.

    Raises:
        OutputExistsError: ``path`` exists and ``overwrite`` is false.
        GraphError: the graph is not valid ONNX.
        StorageError: it cannot be written.
    """
    target = Path(path)
    strip_traces(model)
    with written_together(target, overwrite=overwrite) as folder:
        outside = weight_bytes(model) > ONE_FILE_LIMIT
        with storage(target), _weights_in(model, folder / data_name(target)) if outside else nullcontext():
            proto = bare_proto(model)
            check_proto(proto)
            (folder / target.name).write_bytes(proto.SerializeToString())
    return target


def data_name(path: str | os.PathLike[str]) -> str:
    """Return the name of the file that holds a model's weights where they do not fit in: ``<name>.data``."""
    return f"{Path(path).name}.data"


@contextmanager
def _weights_in(model: ir.Model, data: Path) -> Iterator[None]:
    """Write the large tensors to ``data``; in the block the model refers to them there, and afterwards it is as before.

    Indices and shapes of a few elements stay in the graph, as does text: onnxruntime reads them nowhere else.
    """
    least = min(_STAYS, max(ONE_FILE_LIMIT, 0) // 16)
    moved = [
        (tensor, replace)
        for tensor, replace in stored_tensors(model)
        if tensor.dtype != ir.DataType.STRING
        and tensor.nbytes > (least if tensor.dtype.is_floating_point() else _STAYS)
    ]
    tensors = [tensor for tensor, _ in moved]
    written = ir.external_data.convert_tensors_to_external(tensors, data.parent, data.name) if tensors else []
    for (_, replace), outside in zip(moved, written, strict=True):
        replace(outside)
    try:
        yield
    finally:
        for tensor, replace in moved:
            replace(tensor)


def input_names(model: ir.Model) -> list[str]:
    """Return the names of the inputs a caller must feed (initializers with defaults left out)."""
    names = []
    for value in model.graph.inputs:
        if value.name is None:
            raise InputError("the graph has an input without a name; expected every input to be named")
        if value.name not in model.graph.initializers:
            names.append(value.name)
    return names


def declared(value: ir.Value) -> TensorSpec:
    """Return what a graph declares of a value; float32 and no dimensions where it declares nothing."""
    dims = [] if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    return TensorSpec(str(value.name), (value.dtype or ir.DataType.FLOAT).numpy().name, tuple(dims))
