"""Read and write ONNX files."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx_ir as ir

from normdeploy.errors import GraphError, InputError
from normdeploy.files import written_whole

ONE_FILE_LIMIT = 2 * 1024**3 - 64 * 1024**2
"""Weights above this many bytes go to ``<name>.data`` beside the file: protobuf stops at 2 GiB, structure included."""

_SHIPPED_METADATA_PREFIXES = ("pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node")


def load_graph(path: str | os.PathLike[str]) -> ir.Model:
    """Read an ONNX file into onnx_ir; weights are mapped, not copied, where they are external.

    Raises:
        GraphError: the file is missing or not a valid ONNX model.
    """
    file = Path(path)
    if not file.is_file():
        raise GraphError(f"{file} does not exist; expected an ONNX file: check the path")
    try:
        model = ir.load(file)
    except Exception as error:  # protobuf and onnx_ir raise many types for a broken file
        raise GraphError(f"{file} cannot be read as ONNX ({error}); expected a valid .onnx file") from error
    if not model.graph.outputs:
        raise GraphError(f"{file} holds no graph outputs; expected an ONNX model with at least one output")
    return model


def weight_bytes(model: ir.Model) -> int:
    """Return the total size of the model's initializers in bytes."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


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
    """Write ``model`` as one file, with its weights beside it above 2 GB; check it with onnx.checker.

    Shapes of values inside the graph are left out: see :func:`bare_proto`.

    Args:
        model: the graph; stack traces are removed from it.
        path: target file; appears whole or not at all.
        overwrite: allow replacing an existing file.

    Raises:
        OutputExistsError: ``path`` exists and ``overwrite`` is false.
        GraphError: the graph is not valid ONNX.
    """
    target = Path(path)
    strip_traces(model)
    if weight_bytes(model) > ONE_FILE_LIMIT:
        return _save_external(model, target, overwrite=overwrite)
    proto = bare_proto(model)
    check_proto(proto)
    with written_whole(target, overwrite=overwrite) as temporary:
        temporary.write_bytes(proto.SerializeToString())
    return target


def _save_external(model: ir.Model, target: Path, *, overwrite: bool) -> Path:
    data = target.with_name(target.name + ".data")
    with written_whole(data, overwrite=overwrite) as weights, written_whole(target, overwrite=overwrite) as temporary:
        weights.unlink()
        external = ir.external_data.unload_from_model(model, target.parent, weights.name)
        proto = bare_proto(external)
        for initializer in proto.graph.initializer:
            for entry in initializer.external_data:
                if entry.key == "location":
                    entry.value = data.name
        temporary.write_bytes(proto.SerializeToString())
    try:
        onnx.checker.check_model(str(target))
    except onnx.checker.ValidationError as error:
        target.unlink()
        data.unlink()
        raise GraphError(f"the graph is not valid ONNX: {error}") from error
    return target


def check_proto(proto: onnx.ModelProto) -> None:
    """Check a model with onnx.checker.

    Raises:
        GraphError: it is not valid ONNX.
    """
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise GraphError(f"the graph is not valid ONNX: {error}") from error


def input_names(model: ir.Model) -> list[str]:
    """Return the names of the inputs a caller must feed (initializers with defaults left out)."""
    names = []
    for value in model.graph.inputs:
        if value.name is None:
            raise InputError("the graph has an input without a name; expected every input to be named")
        if value.name not in model.graph.initializers:
            names.append(value.name)
    return names
