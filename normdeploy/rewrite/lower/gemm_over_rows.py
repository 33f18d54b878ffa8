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

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from normdeploy.graph import constant_tensor
from normdeploy.graph.edit import free_name, is_read, only_reader, put_constant, take_out_unread, take_place
from normdeploy.graph.linear_view import linear_of
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.gauge.rules.oriented_product import bias_behind
from normdeploy.rewrite.infer import infer_missing_types

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
    lead: tuple[int | None, ...]
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
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Write those of every graph."""
        modified = False
        for graph in graphs_of(model):
            layers = [layer for node in graph if (layer := _layer(node)) is not None and layer.fixed]
            while len(fewer := _without_lone(layers)) < len(layers):  # its neighbours may be alone without it
                layers = fewer
            _write(layers, graph)
            modified |= bool(layers)
        return ir.passes.PassResult(model, modified)


def _without_lone(layers: Sequence[_Layer]) -> list[_Layer]:
    """Leave out the layers around which both Reshapes would be new ones."""
    results = {layer.result for layer in layers}
    products = {layer.product for layer in layers}
    makes: dict[ir.Value | None, _Layer] = {}  # a value: the layer in front of which it would become rows
    for layer in layers:
        makes.setdefault(layer.product.inputs[0], layer)

    def asks_rows(layer: _Layer) -> bool:
        source = layer.product.inputs[0]
        if source is None or source in results or makes[source] is not layer:
            return False
        return _before_reshapes(source) is source or not all(use.node in products for use in source.uses())

    def asks_whole(layer: _Layer) -> bool:
        value = layer.result
        read = value.uses()
        return value.is_graph_output() or not all(
            use.idx == 0 and (use.node in products or _renames(use.node)) for use in read
        )

    return [layer for layer in layers if not (asks_rows(layer) and asks_whole(layer))]


def _renames(node: ir.Node) -> bool:
    """Tell whether a node is a Reshape to numbers, none of which is a size of what it reads."""
    target = constant_tensor(node.inputs[1]) if is_standard(node, "Reshape") else None
    return target is not None and 0 not in target.numpy()


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
    _write(layers, model.graph)
    if layers:
        common_passes.RemoveUnusedNodesPass()(model)
    return len(layers)


def _write(layers: Sequence[_Layer], graph: ir.Graph) -> None:
    """Write the layers of a graph, in its order."""
    rows: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}  # a value: as rows, and a value of its leading sizes
    for layer in layers:
        _over_rows(layer, rows, graph)


class _Before:
    """Makes operators in front of another one.

    Args:
        graph: what they belong to. place: the other one.
    """

    def __init__(self, graph: ir.Graph, place: ir.Node) -> None:
        self._graph, self._place = graph, place
        self._stem = str(place.outputs[0].name)

    def add(
        self, kind: str, inputs: Sequence[ir.Value], role: str, name: str | None = None, *attributes: ir.Attr
    ) -> ir.Value:
        """Add an operator; return its result, named by its role."""
        result = ir.Value(name=free_name(self._graph, f"{self._stem}_{role}"), type=self._place.outputs[0].type)
        node = ir.Node("", kind, inputs, attributes, outputs=[result], name=name or result.name)
        node.metadata_props.update(self._place.metadata_props)
        self._graph.insert_before(self._place, node)
        return result

    def integers(self, role: str, numbers: Sequence[int]) -> ir.Value:
        """Add a constant."""
        return put_constant(self._graph, numbers, f"{self._stem}_{role}")


def _over_rows(layer: _Layer, rows: dict[ir.Value, tuple[ir.Value, ir.Value]], graph: ir.Graph) -> None:
    """Write one layer: rows in, Gemm, Relu, rows out."""
    count = math.prod(size or 0 for size in layer.lead)
    product, (inner, outer) = layer.product, layer.sizes
    source, weight = product.inputs[0], product.inputs[1]
    assert source is not None
    assert weight is not None
    new = _Before(graph, product)
    flat, sized = rows.get(source, (source if len(layer.lead) == 1 else None, source))
    if flat is None:
        first = _before_reshapes(source)
        if layer.fixed and first.shape == [count, inner]:
            flat = first
        else:
            flat = new.add("Reshape", [first, new.integers("rows", [-1, inner])], "in_rows")
        rows[source] = flat, sized
    found = new.add("Gemm", [flat, weight, layer.bias], "by_rows", product.name)
    if layer.fixed:
        flat.shape, found.shape = ir.Shape([count, inner]), ir.Shape([count, outer])
    if layer.relu is not None:
        found = new.add("Relu", [found], "above_zero", layer.relu.name)
    shaped = found
    if len(layer.lead) > 1:
        if layer.lead.count(None) <= 1:
            back = new.integers("whole", [-1 if size is None else size for size in (*layer.lead, outer)])
        else:
            ends = ir.AttrInt64("start", 0), ir.AttrInt64("end", -1)
            sizes = new.add("Shape", [sized], "lead", None, *ends)
            width = new.integers("width", [outer])
            back = new.add("Concat", [sizes, width], "sizes", None, ir.AttrInt64("axis", 0))
            sizes.type = back.type = ir.TensorType(ir.DataType.INT64)
        shaped = new.add("Reshape", [found, back], "shaped")
    rows[shaped] = found, sized
    take_place(shaped, layer.result)
    _join_reshapes_behind(shaped, found)
    for node in (layer.relu, layer.add, layer.product):
        if node is not None:
            graph.remove(node, safe=True)
    if shaped is not found and not is_read(shaped):
        take_out_unread([shaped])


def _before_reshapes(value: ir.Value) -> ir.Value:
    """Return what holds the elements of a value before Reshapes renamed them."""
    while (node := value.producer()) is not None and is_standard(node, "Reshape") and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _join_reshapes_behind(value: ir.Value, rows: ir.Value) -> None:
    """Let each Reshape of a value, where none of its numbers is a size of what it reads, read the rows."""
    for node, place in list(value.uses()):
        if place == 0 and value is not rows and _renames(node):
            node.replace_input_with(0, rows)
