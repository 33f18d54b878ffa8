"""Is it a model at all? Asked of every file before anything is built from it, and of every graph before it is written.

onnx.checker judges the nodes (are they in order, do they exist, are their inputs and attributes those of their
operator) on an outline of the model without its tensors' data: a model may be larger than the checker reads. What the
checker does not ask is asked here: whether each tensor's data is all there, whether functions end (`calls`) and have
names of their own, groups cut their weights, constants say one value, and the operator set is one that is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data

from normdeploy.errors import GraphError
from normdeploy.graph.traits import MICROSOFT
from normdeploy.onnxfile.calls import check_calls
from normdeploy.onnxfile.stored import STANDARD, element_bits, element_count, graphs, stored_bytes, tensors

_OUTLINED = 64  # bytes of a tensor that an outline keeps
_VALUES = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_LISTED = 3  # the last IR version whose initializers the checker wants among the inputs; no runtime does
_OF_ONNXRUNTIME = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""Operators that onnxruntime has in ONNX's own domain at every operator set; its transformer optimizer writes them."""
_RUN_ALL_THE_SAME = ("GroupNormalization",)  # which onnx's checker refuses where it was first defined, 18 to 20
_MOST_AXES = 64  # NumPy's
_TWO_EACH = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)


def check_model(proto: onnx.ModelProto, name: str, *, lengths: Mapping[str, int] | None = None) -> None:
    """Check that a model is whole and valid; where its external data lies is not asked.

    Args:
        proto: the model. name: for the messages.
        lengths: bytes of raw data of the main graph's initializers, where they are known: protobuf copies to count.

    Raises:
        GraphError: it is not; the message says where.
    """
    if not proto.graph.output:
        raise GraphError(
            f"{name} holds no graph outputs; expected an ONNX model with at least one output: it may be another kind "
            "of file, or cut short"
        )
    _check_text(proto, name)
    _check_opsets(proto, name)
    _check_inputs(proto, name)
    stored = list(tensors(proto))
    times = Counter(tensor.name for tensor in stored)  # a name that another tensor has, too, tells no length
    for tensor in stored:
        if not uses_external_data(tensor):
            _check_data(tensor, name, lengths.get(tensor.name) if lengths and times[tensor.name] == 1 else None)
    check_calls(proto, name)
    _check_groups(proto, name)
    _check_constants(proto, name)
    _check_functions(proto, name)
    check_proto(proto, name)


def check_proto(proto: onnx.ModelProto, name: str = "the graph") -> None:
    """Check a model's nodes with onnx.checker.

    Raises:
        GraphError: it is not valid ONNX.
    """
    try:
        onnx.checker.check_model(_without_onnxruntimes_own(outline(proto)))
    except (onnx.checker.ValidationError, ValueError) as error:
        words = " ".join(str(error).split())
        raise GraphError(f"{name} is not valid ONNX: {words}; expected a valid model: write it again") from error


def _without_onnxruntimes_own(outlined: onnx.ModelProto) -> onnx.ModelProto:
    """Put operators that runtimes have in ONNX's domain, and the checker has not, into one that it does not know."""
    opset = next((entry.version for entry in outlined.opset_import if entry.domain in STANDARD), 1)
    own = {n for n in _OF_ONNXRUNTIME if not onnx.defs.has(n, opset)}
    own |= {n for n in _RUN_ALL_THE_SAME if onnx.defs.has(n, opset) and onnx.defs.get_schema(n, opset).deprecated}
    nodes = [n for graph in graphs(outlined) for n in graph.node if n.op_type in own and n.domain in STANDARD]
    for node in nodes:
        node.domain = MICROSOFT
    if nodes and all(entry.domain != MICROSOFT for entry in outlined.opset_import):
        outlined.opset_import.add(domain=MICROSOFT, version=1)
    return outlined


def _check_opsets(proto: onnx.ModelProto, name: str) -> None:
    newest = onnx.defs.onnx_opset_version()
    for entry in proto.opset_import:
        if not entry.domain and not 1 <= entry.version <= newest:
            raise GraphError(
                f"{name} is of operator set {entry.version}; expected 1 to {newest}, those that onnx "
                f"{onnx.__version__} knows: export it with an older operator set, or upgrade onnx"
            )


def _check_text(proto: onnx.ModelProto, name: str) -> None:
    """Refuse names that are not UTF-8: protobuf gives them as bytes, and whatever shows or writes them stumbles."""
    words: list[object] = [entry.domain for owner in (proto, *proto.functions) for entry in owner.opset_import]
    for graph in graphs(proto):
        for node in graph.node:
            words += (node.domain, node.op_type, node.name, *node.input, *node.output)
        if isinstance(graph, onnx.GraphProto):
            words += [item.name for item in (*graph.input, *graph.output, *graph.initializer)]
    if broken := next((word for word in words if isinstance(word, bytes)), None):
        raise GraphError(f"{name} holds the name {broken!r}; expected names in UTF-8: write it again")


def _check_inputs(proto: onnx.ModelProto, name: str) -> None:
    known = {*TensorProto.DataType.values()} - {TensorProto.UNDEFINED}
    for value in proto.graph.input:
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type not in known:
            raise GraphError(
                f"{name}: input {value.name!r} is of element type {value.type.tensor_type.elem_type}; expected one "
                "that ONNX defines: write it again"
            )
        if (rank := len(value.type.tensor_type.shape.dim)) > _MOST_AXES:
            raise GraphError(f"{name}: input {value.name!r} has {rank} axes; expected at most {_MOST_AXES}: reshape it")
    kinds = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    for value in proto.graph.output:  # of a value that is both, the graph would hold the output's
        found = value.type.tensor_type.elem_type
        if value.type.WhichOneof("value") and found != kinds.get(value.name, found):
            raise GraphError(
                f"{name}: {value.name!r} is an input of element type {kinds[value.name]} and an output of {found}; "
                "expected one type: write it again"
            )


def _check_data(tensor: TensorProto, name: str, length: int | None) -> None:
    """Check that a tensor's data is as long as its type and shape say; the length of its raw data may be known."""
    what, shape = f"{name}: tensor {tensor.name!r}", list(tensor.dims)
    count = element_count(tensor)
    kept = [field for field in _VALUES if len(getattr(tensor, field))]
    if tensor.HasField("raw_data"):
        held = len(tensor.raw_data) if length is None else length
        found, needed, unit = held, stored_bytes(tensor), "bytes"
    else:
        bits = element_bits(tensor.data_type)
        found = sum(len(getattr(tensor, field)) for field in kept)
        needed = -(-count * bits // 8) if 0 < bits < 8 else count * (2 if tensor.data_type in _TWO_EACH else 1)
        unit = "values"
    if found != needed or len(kept) > 1:
        raise GraphError(
            f"{what} declares the shape {shape}, {needed} {unit}, and holds {found}; expected all of its data: the "
            "file is damaged, fetch or export it again"
        )


def _check_groups(proto: onnx.ModelProto, name: str) -> None:
    """Check that the groups of convolutions cut the weights that are in the file."""
    shapes = {tensor.name: list(tensor.dims) for tensor in proto.graph.initializer}
    for graph in graphs(proto):
        for node in graph.node:
            if node.op_type not in ("Conv", "ConvTranspose") or node.domain not in STANDARD or len(node.input) < 2:
                continue
            groups = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
            shape = shapes.get(node.input[1], [])
            if groups < 1 or (shape and shape[0] % groups):
                raise GraphError(
                    f"{name}: {node.op_type} {node.name or node.output[0]!r} has {groups} groups over a weight of "
                    f"shape {shape or 'unknown'}; expected a number that divides its first size: export it again"
                )


def _check_constants(proto: onnx.ModelProto, name: str) -> None:
    """Check that each Constant says one value: onnxruntime takes the first of several, others stumble."""
    for graph in graphs(proto):
        for node in graph.node:
            if node.op_type == "Constant" and node.domain in STANDARD and len(node.attribute) != 1:
                raise GraphError(
                    f"{name}: Constant {node.name or list(node.output)} says {len(node.attribute)} values; expected "
                    "one: write it again"
                )


def _check_functions(proto: onnx.ModelProto, name: str) -> None:
    """Check that no function has a standard operator's name: which of the two is meant, ONNX leaves to runtimes."""
    for function in proto.functions:
        if function.domain in STANDARD and onnx.defs.has(function.name, ""):
            raise GraphError(
                f"{name} holds a function named {function.name!r}, as a standard operator is; expected a name of its "
                "own: some runtimes take the function, others the operator. Put it in another domain"
            )


def outline(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without the data of its tensors, and with a type for every input and output, for the checker."""
    made = onnx.ModelProto()
    for field, value in proto.ListFields():
        if field.name not in ("graph", "functions", "training_info"):
            getattr(made, field.name).MergeFrom(value) if hasattr(value, "MergeFrom") else setattr(
                made, field.name, value
            )
    if made.ir_version == _LISTED:
        made.ir_version += 1
    _outline_graph(proto.graph, made.graph)
    for function in proto.functions:
        copy = made.functions.add()
        for field, value in function.ListFields():
            if field.name == "node":
                continue
            getattr(copy, field.name).MergeFrom(value) if hasattr(value, "MergeFrom") else setattr(
                copy, field.name, value
            )
        for node in function.node:
            _outline_node(node, copy.node.add())
    return made


def _outline_graph(graph: onnx.GraphProto, made: onnx.GraphProto) -> None:
    made.name = graph.name or "graph"
    made.input.MergeFrom(graph.input)
    made.output.MergeFrom(graph.output)
    for info in (*made.input, *made.output):
        _complete_type(info)
    for tensor in graph.initializer:
        _outline_tensor(tensor, made.initializer.add())
    for sparse in graph.sparse_initializer:
        _outline_tensor(sparse.values, made.initializer.add())
    for node in graph.node:
        _outline_node(node, made.node.add())


def _outline_node(node: onnx.NodeProto, made: onnx.NodeProto) -> None:
    for field in ("op_type", "domain", "name", "overload"):
        if node.HasField(field):
            setattr(made, field, getattr(node, field))
    made.input.MergeFrom(node.input)
    made.output.MergeFrom(node.output)
    for attribute in node.attribute:
        copy = made.attribute.add()
        if attribute.type not in _WITH_DATA:
            copy.CopyFrom(attribute)
            continue
        copy.name, copy.type = attribute.name, attribute.type
        if attribute.HasField("ref_attr_name"):
            copy.ref_attr_name = attribute.ref_attr_name
        if attribute.HasField("t"):
            _outline_tensor(attribute.t, copy.t)
        if attribute.HasField("g"):
            _outline_graph(attribute.g, copy.g)
        for tensor in attribute.tensors:
            _outline_tensor(tensor, copy.tensors.add())
        for graph in attribute.graphs:
            _outline_graph(graph, copy.graphs.add())


_WITH_DATA = (
    onnx.AttributeProto.TENSOR,
    onnx.AttributeProto.TENSORS,
    onnx.AttributeProto.GRAPH,
    onnx.AttributeProto.GRAPHS,
)


def _outline_tensor(tensor: TensorProto, made: TensorProto) -> None:
    few = prod(tensor.dims) <= _OUTLINED  # protobuf's ByteSize writes the message to count it
    if few and not uses_external_data(tensor) and tensor.ByteSize() <= _OUTLINED:
        made.CopyFrom(tensor)
        return
    made.name, made.data_type = tensor.name, tensor.data_type
    made.dims.append(0)  # an empty tensor needs no data


def _complete_type(info: onnx.ValueInfoProto) -> None:
    """Give an input or output that declares no type or shape one: runtimes infer them, the checker wants them."""
    kind = info.type.WhichOneof("value")
    if kind is None or (kind == "tensor_type" and not info.type.tensor_type.elem_type):
        info.type.tensor_type.elem_type = TensorProto.FLOAT
        kind = "tensor_type"
    if kind == "tensor_type" and not info.type.tensor_type.HasField("shape"):
        info.type.tensor_type.shape.SetInParent()


def dense(sparse: onnx.SparseTensorProto, limit: int, name: str) -> TensorProto:
    """Return a sparse tensor's values among zeros, as the standard defines its indices.

    Raises:
        GraphError: values, indices and shape contradict, or the result is larger than ``limit`` bytes.
    """
    what, shape = f"{name}: sparse tensor {sparse.values.name!r}", tuple(sparse.dims)
    if any(size < 0 for size in shape) or prod(shape) * element_bits(sparse.values.data_type) // 8 > limit:
        raise GraphError(f"{what} has the shape {list(shape)}; expected one of less than {limit / 2**30:.3g} GiB")
    try:
        values, indices = numpy_helper.to_array(sparse.values).reshape(-1), numpy_helper.to_array(sparse.indices)
        result = np.zeros(shape, values.dtype)
        flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
        if len(flat) != len(values) or (len(flat) and flat.min() < 0):
            raise ValueError(f"{len(values)} values and {len(flat)} places")
        result.reshape(-1)[flat] = values
    except (ValueError, IndexError, TypeError) as error:
        raise GraphError(
            f"{what} of shape {list(shape)} contradicts itself ({error}); expected values and places within it: "
            "write it again"
        ) from error
    return numpy_helper.from_array(result, sparse.values.name)
