r"""Matrix products with their bias inside, over rows: one Gemm.

A linear layer of more than two axes is exported as MatMul and Add. Over rows both are one Gemm::

    MatMul(x, W) + b  =  Reshape(Gemm(Reshape(x, [-1, K]), W, b), [..., N])

Both Reshapes only rename the same memory. A Reshape in front of the first or behind the second is one with it, products
that read one value share its rows, and where the next layer begins with the first Reshape, the two Reshapes cancel.

Where all sizes are known, onnxruntime writes this form itself when it loads a file, with two Reshapes around each
product that it joins with nothing: each is a call, which networks of small layers feel. So the file has it then, where
at least one of the two is joined (:class:`GemmsOverRows`), and the kernels that run are the same.

Where they are not, onnxruntime's products take any rank. Its 8-bit form alone gains: it adds the bias on the way, and
writes 8 bits at once where the next operator reads them (:func:`join_biases`). There a Relu behind the sum moves in
front of the second Reshape, so that it too is taken into the product. OpenVINO adds biases inside the product in
either form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from normdeploy.graph import constant_tensor
from normdeploy.graph.edit import is_read, only_reader, take_out_unread
from normdeploy.graph.linear_view import linear_of
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.gauge.rules.oriented_product import bias_behind
from normdeploy.rewrite.infer import infer_missing_types
from normdeploy.rewrite.lower.between_layers import Between, between_layers, reads_rows, write_over_rows
from normdeploy.rewrite.lower.rows import Before, Lead, Rows, before_reshapes, rows_there
from normdeploy.rewrite.rewrite_context import RewriteContext

_SHAPE_SLICES = 15  # the operator set from which Shape can leave the last axis out


@dataclass(frozen=True)
class _Layer:
    """MatMul and Add that are one linear layer, and the Relu behind them if only it reads the result.

    Args:
        product, add, relu: the operators. bias: what is added. lead: the leading sizes, None where dynamic.
        sizes: of the weight.
    """

    product: ir.Node
    add: ir.Node
    relu: ir.Node | None
    bias: ir.Value
    lead: Lead
    sizes: tuple[int, ...]

    @property
    def result(self) -> ir.Value:
        return (self.relu or self.add).outputs[0]

    @property
    def fixed(self) -> bool:
        """Whether it has several leading sizes, and all are known."""
        return len(self.lead) > 1 and all(self.lead)


class GemmsOverRows(ir.passes.InPlacePass):
    """Write MatMuls by a constant matrix with a constant bias as Gemm where all sizes are known, and no more operators.

    Alone, a layer would be three operators in place of two; onnxruntime makes these when it loads the file.

    Args:
        context: is told what the rows stand for.
    """

    def __init__(self, context: RewriteContext) -> None:
        super().__init__()
        self._carried = context.carried

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Write those of every graph."""
        modified = False
        for graph in graphs_of(model):
            layers = [layer for node in graph if (layer := _layer(node)) is not None and layer.fixed]
            layers, between = _chosen(layers, between_layers(graph, [layer.add for layer in layers]))
            _write(layers, graph, Rows(self._carried), between)
            modified |= bool(layers or between)
        return ir.passes.PassResult(model, modified)


def _chosen(layers: list[_Layer], between: list[Between]) -> tuple[list[_Layer], list[Between]]:
    """Leave out what would leave more Reshapes, until all that is left joins one."""
    while True:
        results = {layer.result for layer in layers}
        products = {layer.product for layer in layers}
        fewer_between = [group for group in between if group.gains(results, products)]
        fewer = _without_lone(layers, fewer_between)  # their neighbours may be alone without them
        if (len(fewer), len(fewer_between)) == (len(layers), len(between)):
            return layers, between
        layers, between = fewer, fewer_between


def _without_lone(layers: Sequence[_Layer], between: Iterable[Between]) -> list[_Layer]:
    """Leave out the layers around which both Reshapes would be new ones."""
    pointwise = {node for group in between for node in group.nodes}
    results = {layer.result for layer in layers} | {node.outputs[0] for node in pointwise}
    products = {layer.product for layer in layers} | pointwise

    def asks_rows(layer: _Layer) -> bool:
        source = layer.product.inputs[0]
        if source is None or source in results or makes[source] is not layer:
            return False
        if rows_there(source, layer.lead, layer.sizes[0]) is not None:
            return False
        return before_reshapes(source) is source or not all(use.node in products for use in source.uses())

    def asks_whole(layer: _Layer) -> bool:
        value = layer.result
        return value.is_graph_output() or not all(reads_rows(use.node, products) for use in value.uses())

    makes: dict[ir.Value | None, _Layer] = {}  # a value: the layer for whose sake it would become rows
    for layer in sorted(layers, key=asks_whole):
        makes.setdefault(layer.product.inputs[0], layer)
    return [layer for layer in layers if not (asks_rows(layer) and asks_whole(layer))]


def _layer(node: ir.Node, *, with_relu: bool = False, opset: int = _SHAPE_SLICES) -> _Layer | None:
    """Return the linear layer that begins with a node; None where none does.

    Args:
        node: a MatMul. with_relu: whether a Relu behind it belongs to it. opset: of the graph.
    """
    linear = linear_of(node) if is_standard(node, "MatMul") else None
    if linear is None or linear.data != 0:
        return None
    tensor = constant_tensor(linear.value(linear.weight))
    found = bias_behind(node.outputs[0])
    dims = None if node.inputs[0] is None else dims_of(node.inputs[0])
    if tensor is None or found is None or dims is None or len(dims) < 2:
        return None
    if tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) != 2:
        return None
    lead = tuple(size if isinstance(size, int) else None for size in dims[:-1])
    if lead.count(None) > 1 and opset < _SHAPE_SLICES:
        return None
    add, index = found
    bias, sizes = add.inputs[index], tuple(int(size) for size in tensor.shape.numpy())
    if bias is None or bias.shape != [sizes[1]]:
        return None
    return _Layer(node, add, _relu_behind(add.outputs[0]) if with_relu else None, bias, lead, sizes)


def _relu_behind(value: ir.Value) -> ir.Node | None:
    node = only_reader(value)
    return node if node is not None and is_standard(node, "Relu") and node.graph is value.graph else None


def join_biases(model: ir.Model) -> int:
    """Write every MatMul by a constant matrix with a constant bias as Gemm, in place.

    Args:
        model: weights with it.

    Returns:
        How many there were. The names of the nodes stay: the Gemm has that of the MatMul.
    """
    infer_missing_types(model)
    opset = model.graph.opset_imports.get("", 1)
    layers = [layer for node in model.graph if (layer := _layer(node, with_relu=True, opset=opset)) is not None]
    _write(layers, model.graph, Rows())
    if layers:
        common_passes.RemoveUnusedNodesPass()(model)
    return len(layers)


def _write(layers: Sequence[_Layer], graph: ir.Graph, rows: Rows, between: Iterable[Between] = ()) -> None:
    """Write the layers of a graph, and the operators between them, in its order."""
    products = {layer.product: layer for layer in layers}
    groups = {node: group for group in between for node in group.nodes}
    for node in list(graph):
        if node in products:
            _over_rows(products[node], rows, graph)
        elif node in groups:
            write_over_rows(groups[node], node, rows, graph)
    made = [value for value in rows.shaped if not is_read(value)]
    take_out_unread(made)


def _over_rows(layer: _Layer, rows: Rows, graph: ir.Graph) -> None:
    """Write one layer: rows in, Gemm, Relu, rows out."""
    product, (inner, outer) = layer.product, layer.sizes
    source, weight = product.inputs[0], product.inputs[1]
    assert source is not None
    assert weight is not None
    new = Before(graph, product)
    flat = rows.of(source, layer.lead, inner, new)
    found = new.add("Gemm", [flat, weight, layer.bias], "by_rows", product.name)
    if layer.relu is not None:
        found = new.add("Relu", [found], "above_zero", layer.relu.name)
    rows.give_back(found, layer.result, source, layer.lead, outer, new)
    for node in (layer.relu, layer.add, layer.product):
        if node is not None:
            graph.remove(node, safe=True)
