r"""Matrix products with their bias inside, for int8 through onnxruntime.

A linear layer of more than two axes is exported as MatMul and Add. onnxruntime's 8-bit product of that form writes
float32, and the bias is another pass over the result. Over rows it is one Gemm, whose 8-bit form adds the bias on the
way, and writes 8 bits at once where the next operator reads them::

    MatMul(x, W) + b  =  Reshape(Gemm(Reshape(x, [-1, K]), W, b), [..., N])

Both Reshapes only rename the same memory. A Relu behind it moves in front of the second Reshape, so that it too is
taken into the product; where the next layer begins with the first Reshape, the two Reshapes cancel.

OpenVINO adds biases inside the product in either form, and fuses more around MatMul: this form is not for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from normdeploy.runtime.tuning.protos import ProtoGraph, reads

_SHAPE_SLICES = 15  # the operator set from which Shape can leave the last axis out


@dataclass(frozen=True)
class _Layer:
    """MatMul and Add that are one linear layer, and the Relu behind them if only it reads the result."""

    product: onnx.NodeProto
    add: onnx.NodeProto
    relu: onnx.NodeProto | None
    bias: str

    @property
    def result(self) -> str:
        last: str = (self.relu or self.add).output[0]
        return last


def _layer(graph: ProtoGraph, node: onnx.NodeProto) -> _Layer | None:
    """Return the linear layer that begins with a node; None where none does."""
    weight = graph.constants.get(node.input[1]) if node.op_type == "MatMul" else None
    if weight is None or weight.data_type != onnx.TensorProto.FLOAT or len(weight.dims) != 2:
        return None
    shape = graph.shapes.get(node.input[0])
    if shape is None or len(shape) < 2 or (shape[:-1].count(None) > 1 and graph.opset < _SHAPE_SLICES):
        return None
    add = graph.only_reader(node.output[0], "Add")
    if add is None:
        return None
    bias = add.input[1] if add.input[0] == node.output[0] else add.input[0]
    if bias not in graph.constants or list(graph.constants[bias].dims) != [weight.dims[1]]:
        return None
    return _Layer(node, add, graph.only_reader(add.output[0], "Relu"), bias)


def join_biases(model: onnx.ModelProto) -> int:
    """Write every MatMul by a constant matrix with a constant bias as Gemm, in place.

    Args:
        model: weights inside the proto, shapes inferred.

    Returns:
        How many there were. The names of the nodes stay: the Gemm has that of the MatMul.
    """
    graph = ProtoGraph(model)
    layers = {node.output[0]: layer for node in model.graph.node if (layer := _layer(graph, node)) is not None}
    inside = {name for layer in layers.values() for name in (layer.add.output[0], layer.result)}
    rows: dict[str, tuple[str, str]] = {}  # result of a layer: the same as rows, and a value of its leading sizes
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if (layer := layers.get(node.output[0])) is not None:
            nodes += _over_rows(layer, graph, rows, model.graph)
        elif node.output[0] not in inside:
            nodes.append(node)
    needed = _needed(nodes, graph.outputs)
    read = graph.outputs | {name for node in needed for name in reads(node)}
    constants = [tensor for tensor in model.graph.initializer if tensor.name in read or tensor.name not in graph.added]
    del model.graph.node[:]
    del model.graph.initializer[:]
    model.graph.node.extend(needed)
    model.graph.initializer.extend(constants)
    return len(layers)


def _over_rows(
    layer: _Layer, graph: ProtoGraph, rows: dict[str, tuple[str, str]], proto: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """Return the nodes of one layer: rows in, Gemm, Relu, rows out."""
    product, stem = layer.product, layer.product.output[0]
    source, weight = product.input[0], product.input[1]
    inner, outer = graph.constants[weight].dims
    lead = graph.shapes[source][:-1]
    nodes: list[onnx.NodeProto] = []

    def integers(role: str, values: list[int]) -> str:
        name = graph.name(f"{stem}_{role}")
        graph.added.add(name)
        proto.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def add(kind: str, inputs: list[str], output: str, name: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], name=name or output, **attributes))
        return output

    flat, sized = rows.get(source, ("", source))
    if not flat and len(lead) == 1:
        flat = source
    elif not flat:
        flat = add("Reshape", [source, integers("rows", [-1, inner])], graph.name(f"{stem}_in_rows"))
    last = len(lead) == 1
    result = layer.result if last else graph.name(f"{stem}_by_rows")
    linear = graph.name(f"{stem}_linear") if layer.relu else result
    found = add("Gemm", [flat, weight, layer.bias], linear, product.name)
    if layer.relu:
        found = add("Relu", [found], result, layer.relu.name)
    rows[layer.result] = found, sized
    if not last:
        if lead.count(None) <= 1:
            back = integers("whole", [-1 if size is None else size for size in (*lead, outer)])
        else:
            sizes = add("Shape", [sized], graph.name(f"{stem}_lead"), start=0, end=-1)
            back = add("Concat", [sizes, integers("width", [outer])], graph.name(f"{stem}_whole"), axis=0)
        add("Reshape", [found, back], layer.result)
    return nodes


def _needed(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes without the Reshapes, and what computes their shapes, that nothing reads any more."""
    kept = list(nodes)
    while True:
        read = outputs | {name for node in kept for name in reads(node)}
        left = [node for node in kept if any(name in read for name in node.output)]
        if len(left) == len(kept):
            return kept
        kept = left
