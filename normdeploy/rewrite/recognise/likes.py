"""Write CastLike, whose target type the graph states, as Cast or nothing: a constant cast "like" data is a constant."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant_tensor, tensor64
from normdeploy.graph.exact import FLOATS, ExactTensor
from normdeploy.graph.traits import is_standard


def resolve_casts(graph: ir.Graph) -> bool:
    """Replace each CastLike of known target type in place; return whether any was replaced."""
    modified = False
    for node in list(graph):
        if is_standard(node, "CastLike"):
            modified |= _resolve(graph, node)
    return modified


def _resolve(graph: ir.Graph, node: ir.Node) -> bool:
    source, like = node.inputs
    output = node.outputs[0]
    target = output.dtype or (like.dtype if like is not None else None)
    if source is None or source.dtype is None or target is None or output.name is None:
        return False
    tensor = constant_tensor(source)
    if source.dtype == target and not output.is_graph_output():
        output.replace_all_uses_with(source)
    elif tensor is not None and {source.dtype, target} <= FLOATS and not output.is_graph_output():
        name, shape = f"{output.name}_constant", tuple(tensor.shape.numpy())
        exact = ExactTensor(lambda: tensor64(tensor), target, shape, name)
        value = ir.Value(name=name, type=ir.TensorType(target), shape=ir.Shape(shape), const_value=exact)
        graph.register_initializer(value)
        output.replace_all_uses_with(value)
    else:
        cast = ir.node("Cast", [source], {"to": int(target)}, name=node.name)
        cast.metadata_props.update(node.metadata_props)
        result, name = cast.outputs[0], output.name
        result.type, result.shape = ir.TensorType(target), output.shape
        graph.insert_before(node, cast)
        ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
        output.name, result.name = None, name
    graph.remove(node, safe=True)
    return True
