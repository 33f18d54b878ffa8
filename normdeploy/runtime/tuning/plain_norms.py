r"""Scale and shift of a normalization, moved into the linear layers behind it, before quantization.

For n the normalized values, and linear layers that alone read g n + b::

    (g n + b) W + c  =  n (diag(g) W) + (b W + c)

In float32 nothing is gained: LayerNormalization applies g and b on the way. Between float32 and 8 bits OpenVINO runs
them as an operator of their own, and the 8-bit step of g n + b has to serve channels of different ranges; n has one
range for all channels, and a weight has a step per output.

Source: Wei et al., Outlier Suppression, 2022, section 4.1 (the scale goes to where it does not widen activations).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from normdeploy.runtime.tuning.protos import ProtoGraph, reads

_NORMS = ("LayerNormalization", "RMSNormalization")


@dataclass(frozen=True)
class _Layer:
    """A linear layer: the names of its constants, its number of inputs, and whether the weight is [outputs, inputs]."""

    weight: str
    bias: str
    inputs: int
    turned: bool


def move_affines(model: onnx.ModelProto) -> int:
    """Move the scale and shift of every normalization that only linear layers read into these, in place.

    Args:
        model: weights inside the proto.

    Returns:
        How many normalizations became plain.
    """
    graph = ProtoGraph(model)
    moved = 0
    left: set[str] = set()
    for node in model.graph.node:
        if node.op_type not in _NORMS or not _is_vector(graph, node.input[1]):
            continue
        shift = node.input[2] if len(node.input) > 2 else ""
        if shift and not _is_vector(graph, shift):
            continue
        result = node.output[0]
        layers = [_layer(graph, reader, result) for reader in graph.readers.get(result, [])]
        width = graph.constants[node.input[1]].dims[0]
        found = [layer for layer in layers if layer and layer.inputs == width and (layer.bias or not shift)]
        if not layers or len(found) < len(layers) or result in graph.outputs:
            continue
        scale = numpy_helper.to_array(graph.constants[node.input[1]]).astype(np.float64)
        if not shift and np.all(scale == 1.0):
            continue
        offset = numpy_helper.to_array(graph.constants[shift]).astype(np.float64) if shift else None
        for layer in found:
            _absorb(graph, layer, scale, offset)
        plain = numpy_helper.from_array(np.ones(scale.shape, np.float32), graph.name(f"{result}_ones"))
        model.graph.initializer.append(plain)
        left |= {node.input[1], shift}
        node.input[1] = plain.name
        del node.input[2:]
        moved += 1
    left -= graph.outputs | {name for node in model.graph.node for name in reads(node)}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in left]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return moved


def _is_vector(graph: ProtoGraph, name: str) -> bool:
    """Whether a name is a float32 constant of one axis: the last one of the data, then."""
    tensor = graph.constants.get(name)
    return tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 1


def _own(graph: ProtoGraph, name: str, axes: int) -> bool:
    """Whether a name is a float32 constant of so many axes that one node alone reads."""
    tensor = graph.constants.get(name)
    fits = tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == axes
    return fits and len(graph.readers[name]) == 1 and name not in graph.outputs


def _layer(graph: ProtoGraph, node: onnx.NodeProto, data: str) -> _Layer | None:
    """Return the linear layer by constants of its own that a node is for its first input; None where it is none."""
    if node.op_type not in ("MatMul", "Gemm") or node.input[0] != data or not _own(graph, node.input[1], 2):
        return None
    if node.op_type == "Gemm":
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if given.get("alpha", 1.0) != 1 or given.get("beta", 1.0) != 1 or given.get("transA", 0):
            return None
        bias = node.input[2] if len(node.input) > 2 and _own(graph, node.input[2], 1) else ""
        turned = bool(given.get("transB", 0))
        return _Layer(node.input[1], bias, graph.constants[node.input[1]].dims[turned], turned)
    add = graph.only_reader(node.output[0], "Add")
    others = [name for name in add.input if name != node.output[0]] if add is not None else []
    bias = others[0] if len(others) == 1 and _own(graph, others[0], 1) else ""
    return _Layer(node.input[1], bias, graph.constants[node.input[1]].dims[0], turned=False)


def _absorb(graph: ProtoGraph, layer: _Layer, scale: np.ndarray, shift: np.ndarray | None) -> None:
    """Write diag(scale) W and shift W + c, computed in float64, over a layer's constants."""
    stored = graph.constants[layer.weight]
    weight = numpy_helper.to_array(stored).astype(np.float64)
    inputs_first = weight.T if layer.turned else weight
    scaled = scale[:, None] * inputs_first
    result = (scaled.T if layer.turned else scaled).astype(np.float32)
    stored.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(result), layer.weight))
    if shift is not None:
        bias = graph.constants[layer.bias]
        moved = numpy_helper.to_array(bias).astype(np.float64) + shift @ inputs_first
        bias.CopyFrom(numpy_helper.from_array(moved.astype(np.float32), layer.bias))
