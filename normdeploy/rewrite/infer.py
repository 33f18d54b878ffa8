"""Types and shapes of values that their maker left untyped, by onnx's shape inference."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from normdeploy.errors import GraphError, NormdeployError, RewriteError
from normdeploy.graph.ceiled_pools import show_ceiled_pools
from normdeploy.graph.edit import is_read
from normdeploy.graph.exact import FLOATS
from normdeploy.graph.fitting_sizes import require_fit
from normdeploy.graph.shape_inference import NotInferredError, infer_shapes
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import bodies_of, nodes_of, values_read

_KNOWN_BYTES = 1000
"""Constants up to this size are shown to the inference, which reads the targets of Reshape and the like."""

_ELEMENTS = frozenset(int(dtype) for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED)
"""The element types that there are."""

_logger = logging.getLogger(__name__)


def infer_missing_types(model: ir.Model, *, anew: bool = False) -> bool:
    """Run shape inference where any value that is read lacks a type or a shape; return whether it ran.

    A flaw in the graph does not stop it: a value without a type only means that no rule applies to it.

    Args:
        model: completed in place.
        anew: run it in any case, since sizes have become known.
    """
    nodes = list(model.graph) if anew else _unknown(model)
    if not nodes:
        return False
    try:
        _take_over(nodes, infer_shapes(described(model, nodes)).graph)
    except NotInferredError as error:
        _logger.warning("onnx could not infer shapes (%s); they stay unknown", error.said)
    except ir.serde.SerdeError as error:  # element types that no graph can have: an attribute names them
        _logger.warning("onnx infers types that there are not (%s); some stay unknown", str(error).split("\n")[0])
    return True


def require_consistent(model: ir.Model) -> None:
    """Refuse a graph that onnx's inference, or the sizes that its operators ask for, find to contradict itself.

    Rewritten it might compute something, which the graph as it was does in no runtime. What the file declares of inner
    values is not asked: runtimes go by what they infer. So does ours, from then on, where sizes contradict (what stands
    of a model's first batch in a file whose inputs were made dynamic later).

    Raises:
        GraphError: it does.
    """
    work = model.clone()
    for node in nodes_of(work):
        for output in node.outputs:
            output.type = output.shape = None
    infer_missing_types(work)
    _forget_contradicted(model, work)
    require_fit(work)
    try:
        infer_shapes(_cut(work), strict=True)
    except NotInferredError as error:
        if error.refused:
            raise GraphError(_contradicts(error.said)) from error


def _forget_contradicted(model: ir.Model, inferred: ir.Model) -> None:
    """Let inner values have the shapes that are inferred, where those that are declared cannot be true."""
    given = {size.value for value in model.graph.inputs for size in value.shape or () if not isinstance(size, int)}
    for node, other in zip(nodes_of(model), nodes_of(inferred), strict=True):
        for value, known in zip(node.outputs, other.outputs, strict=True):
            if value.shape is None or known.shape is None or value.is_graph_output():
                continue
            pairs = list(zip(value.shape, known.shape, strict=False))
            fits = len(value.shape) == len(known.shape) and not any(
                isinstance(stated, int) and stated != size and (isinstance(size, int) or size.value in given - {None})
                for stated, size in pairs
            )
            if not fits:
                value.shape = known.shape


def _cut(model: ir.Model) -> onnx.ModelProto:
    """Return the nodes whose inputs are known, each by itself: what onnx infers nothing of leaves nothing unknown."""
    proto = described(model)
    graph = proto.graph
    nodes = list(graph.node)
    constants = {name for node in nodes if node.op_type == "Constant" for name in node.output}
    graph.input.extend(info for info in (*graph.value_info, *graph.output) if info.name not in constants)
    del graph.node[:], graph.value_info[:], graph.output[:]
    known = constants | {value.name for value in (*graph.input, *graph.initializer)}
    for place, (read, node) in enumerate(zip(model.graph, nodes, strict=True)):
        if all(value.name in known for value in values_read(read)):
            kept = graph.node.add()
            kept.CopyFrom(node)
            if node.op_type != "Constant":
                kept.output[:] = [name and f"{place}:{at}" for at, name in enumerate(node.output)]
    return proto


def _contradicts(said: str) -> str:
    return (
        f"the graph contradicts itself: {said}; expected types and sizes that fit each other: export it again, or ask "
        "onnx.checker.check_model(model, full_check=True)"
    )


@contextmanager
def contradictions_named(graph: ir.Model, step: str) -> Iterator[None]:
    """Where a step fails on a graph that contradicts itself, say so.

    Args:
        graph: as it was given; asked only then.
        step: what runs in the block, for the message.

    Raises:
        GraphError: the graph's types or sizes contradict each other.
        RewriteError: they do not: a bug of ours.
    """
    try:
        yield
    except NormdeployError:
        raise
    except Exception as error:  # whatever numpy, torch or onnx_ir make of sizes that do not fit each other
        said = (str(error).splitlines() or [""])[0]
        try:
            infer_shapes(described(graph), check_type=True, strict=True)
        except NotInferredError as contradiction:
            raise GraphError(_contradicts(f"{contradiction.said} ({step}: {said})")) from error
        raise RewriteError(step, "the graph", f"{type(error).__name__}: {said}") from error


def _unknown(model: ir.Model) -> list[ir.Node]:
    """Return the operators that lack a type, those behind them, and what computes sizes for these.

    Of a graph with bodies all, since these read what they like.
    """
    every, found = nodes_of(model), dict[ir.Node, None]()
    if len(every) > len(model.graph):
        return list(model.graph) if any(_untyped(output) for node in every for output in node.outputs) else []
    behind: set[ir.Value | None] = set()
    for node in every:
        if any(map(_untyped, node.outputs)) or not behind.isdisjoint(node.inputs):
            found[node] = None
            behind.update(node.outputs)
    waiting = [value for node in found for value in node.inputs]
    while waiting:
        value = waiting.pop()
        maker = None if value is None or value.dtype in FLOATS else value.producer()
        if maker is not None and maker not in found:
            found[maker] = None
            waiting += maker.inputs
    return [node for node in every if node in found]


def _untyped(value: ir.Value) -> bool:
    if value.shape is not None and value.dtype is not None:
        return False
    return is_read(value)


def described(model: ir.Model, nodes: Sequence[ir.Node] | None = None) -> onnx.ModelProto:
    """Return nodes of a model, with types and small constants, for onnx; large weights are inputs of their shape.

    Args:
        model: whose constants and inputs they have.
        nodes: of its main graph; what others make is an input. All by default.
    """
    nodes = list(model.graph) if nodes is None else nodes
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    for function in model.functions.values():
        ir.serde.serialize_function_into(proto.functions.add(), function)
    graph = proto.graph
    graph.name = "shapes"
    made = {output for node in nodes for output in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None and value not in made)
    if any(map(bodies_of, nodes)):  # these read what they like
        read |= dict.fromkeys(model.graph.initializers.values())
    for value in dict.fromkeys((*model.graph.inputs, *read)):
        tensor = value.const_value if value.is_initializer() else None
        if tensor is not None and tensor.nbytes <= _KNOWN_BYTES and not value.is_graph_input():
            _show_tensor(tensor, graph.initializer.add(name=value.name))
        elif tensor is not None:
            _show_type(graph.input.add(name=value.name), tensor.dtype, tensor.shape)
        else:
            _show(value, graph.input.add())
    for node in nodes:
        _describe(node, graph.node.add())
        for output in node.outputs:
            if output.name and output.type is not None:
                _show(output, (graph.output if output.is_graph_output() else graph.value_info).add())
    show_ceiled_pools(proto)
    return proto


def _show(value: ir.Value, proto: onnx.ValueInfoProto) -> None:
    """Write down a value's name, type and sizes: of a tensor by itself, which is what nearly all are."""
    if not isinstance(value.type, ir.TensorType):
        ir.serde.serialize_value_into(proto, value)
        return
    proto.name = str(value.name)
    _show_type(proto, value.type.dtype, value.shape)


def _show_type(proto: onnx.ValueInfoProto, dtype: ir.DataType, shape: ir.ShapeProtocol | None) -> None:
    tensor = proto.type.tensor_type
    tensor.elem_type = dtype
    if shape is None:
        return
    tensor.shape.SetInParent()  # a scalar's has no sizes
    for size in shape:
        dim = tensor.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
        elif size.value is not None:
            dim.dim_param = str(size.value)


def _show_tensor(tensor: ir.TensorProtocol, proto: onnx.TensorProto) -> None:
    """Write down a constant; onnx_ir asks first which of several protocols it follows, which takes longer."""
    if isinstance(tensor, ir.StringTensor | ir.ExternalTensor):  # what lies in another file is not read for this
        ir.serde.serialize_tensor_into(proto, tensor)
        return
    proto.data_type = tensor.dtype
    proto.dims.extend(tensor.shape.numpy())
    proto.raw_data = tensor.tobytes()


def _describe(node: ir.Node, proto: onnx.NodeProto) -> None:
    """Write down an operator without its metadata, which weighs more than the rest and tells no type.

    A GroupNormalization is shown as an InstanceNormalization: its result, too, has the type and the sizes of what it
    reads, and onnx infers none of it.
    """
    proto.op_type, proto.domain, proto.overload = node.op_type, node.domain, node.overload
    proto.input.extend("" if value is None else value.name or "" for value in node.inputs)
    proto.output.extend(output.name or "" for output in node.outputs)
    if is_standard(node, "GroupNormalization"):
        proto.op_type = "InstanceNormalization"
        return
    for attribute in node.attributes.values():
        ir.serde.serialize_attribute_into(proto.attribute.add(), attribute)


def _take_over(nodes: Iterable[ir.Node], proto: onnx.GraphProto) -> None:
    """Give what nodes, and those of the bodies in them, write what was inferred for it."""
    nodes = list(nodes)
    values = {output.name: output for node in nodes for output in node.outputs if output.name}
    for info in (*proto.value_info, *proto.output):
        if info.name in values:
            _complete(values[info.name], info.type)
    for node, described in zip(nodes, proto.node, strict=True):
        for attribute in described.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _take_over(node.attributes[attribute.name].as_graph(), attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for body, inferred in zip(node.attributes[attribute.name].as_graphs(), attribute.graphs, strict=True):
                    _take_over(body, inferred)


def _complete(value: ir.Value, proto: onnx.TypeProto) -> None:
    """Take over what a value lacks: its type, its rank, and dimensions that are static after all."""
    if value.type is not None and value.shape is not None and value.shape.is_static():
        return
    tensor = proto.tensor_type
    if not proto.HasField("tensor_type") or tensor.elem_type not in _ELEMENTS:  # the rest takes ten times as long
        if value.type is None:
            value.type = ir.serde.deserialize_type_proto_for_type(proto)
        if value.shape is None:
            value.shape = ir.serde.deserialize_type_proto_for_shape(proto)
        return
    if value.type is None:
        value.type = ir.TensorType(ir.DataType(tensor.elem_type))
    if not tensor.HasField("shape"):
        return
    sizes = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
    if value.shape is None:
        value.shape = ir.Shape(sizes)
    elif len(sizes) == len(value.shape):
        merged = [new if isinstance(new, int) else old for old, new in zip(value.shape, sizes, strict=True)]
        if merged != list(value.shape):
            value.shape = ir.Shape(merged)
