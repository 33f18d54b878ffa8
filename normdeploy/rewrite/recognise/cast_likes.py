"""Write CastLike, whose target type the graph states, as Cast or nothing: a constant cast "like" data is a constant."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph import constant_tensor, tensor64
from normdeploy.graph.edit import put_exact, take_place
from normdeploy.graph.exact import FLOATS
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
        take_place(source, output, named=False)
    elif tensor is not None and {source.dtype, target} <= FLOATS and not output.is_graph_output():
        name, shape = f"{output.name}_constant", tuple(tensor.shape.numpy())
        take_place(put_exact(graph, lambda: tensor64(tensor), shape, target, name), output, named=False)
    else:
        cast = ir.node("Cast", [source], {"to": int(target)}, name=node.name)
        cast.metadata_props.update(node.metadata_props)
        result = cast.outputs[0]
        result.type = ir.TensorType(target)
        graph.insert_before(node, cast)
        take_place(result, output)
    graph.remove(node, safe=True)
    return True
