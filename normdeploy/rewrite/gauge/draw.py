"""Random inputs for the check of an operator: small where it allows, and of sizes that fit together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import AFFINE_DOMAIN, FLOATS, constant64, constant_tensor, evaluate_region
from normdeploy.rewrite.context import RewriteContext

_SPATIAL = frozenset({"Conv", "AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool"})
_POINTWISE = frozenset({"Relu", "LeakyRelu", "Identity", "Dropout", "Clip", "Affine", "Cast", "Neg", "Sigmoid"})
_ROWWISE = frozenset({"Add", "Sub", "Mul", "Div", "Affine", "Identity", "Relu", "Neg", "Sigmoid"})
_TARGET_OPERAND = {"Reshape": 1, "Expand": 1}
_PROBE_SIZES = (2, 3, 5, 4, 6)


def small_feeds(
    context: RewriteContext, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value]
) -> dict[ir.Value, Tensor]:
    """Draw a value for every input of a region.

    Dynamic dimensions get sizes that convolution windows fit into, the same symbol the same size. Where a region has
    one input and only operators that do not care for the spatial size (convolutions, pools, pointwise), one sample is
    drawn, and large static spatial sizes are cut to what shows a border, an interior and every tap; where all its
    operators treat the rows of the last axis alike (products by matrices, biases), two rows are drawn. Shape operands
    of Reshape and Expand get the shape that the values around them have.
    """
    reach = _reach(nodes)
    sizes: dict[str, int] = {}
    feeds: dict[ir.Value, Tensor] = {}
    targets = _targets(nodes)
    cut = _spatial_size_is_free(nodes, inputs)
    rows_cut = not cut and _rows_are_alike(nodes, inputs)
    for value in inputs:
        if value in targets or value.shape is None:
            continue
        if value.dtype is not None and value.dtype not in FLOATS:
            feeds[value] = context.random_feed(value, sizes)
            continue
        dims = [_size(dim, value, axis, sizes, reach) for axis, dim in enumerate(value.shape)]
        if cut:
            # one sample; along the first spatial axis an interior too, along the others both borders
            few = (1, dims[1], reach, *(max(reach - 1, 2) for _ in dims[3:]))
            dims = [min(size, most) for size, most in zip(dims, few, strict=True)]
        if rows_cut:
            dims = [*(1 for _ in dims[:-2]), min(dims[-2], 2), dims[-1]]
        feeds[value] = context.normal(dims)
    for operand, result in targets.items():
        if operand in inputs and result.shape is not None:
            dims = [_size(dim, result, axis, sizes, reach) for axis, dim in enumerate(result.shape)]
            feeds[operand] = torch.tensor(dims, dtype=torch.int64)
    return feeds


def following_feeds(
    context: RewriteContext, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value]
) -> dict[ir.Value, Tensor]:
    """Draw the inputs of a region one after the other, each of the sizes that the region has by then.

    A dynamic dimension is known by its name once a value that has it is computed; else it is the one that was computed
    last in its place. Shape inference gives the result of a convolution names of its own, so that nothing says which
    size another operand of a sum behind it must have.

    Args:
        context: draws.
        nodes: the region, in topological order.
        inputs: what it reads from outside, constants left out, in the order in which it is read.
    """
    reach, sizes, places = _reach(nodes), dict[str, int](), dict[tuple[int, int], int]()
    feeds: dict[ir.Value, Tensor] = {}
    known: dict[ir.Value, Tensor] = {}
    targets = _targets(nodes)

    def dims_like(value: ir.Value) -> list[int]:
        dims: list[int] = []
        for axis, dim in enumerate(value.shape or ()):
            place = len(value.shape or ()), axis
            if isinstance(dim, int) or (str(dim.value) not in sizes and place not in places):
                dims.append(_size(dim, value, axis, sizes, reach))
            else:
                dims.append(sizes.get(str(dim.value), places.get(place, 0)))
        return dims

    def learn(value: ir.Value, found: Tensor) -> None:
        known[value] = found
        for axis, dim in enumerate(value.shape or ()):
            places[found.ndim, axis] = found.shape[axis]
            if not isinstance(dim, int) and dim.value is not None:
                sizes[str(dim.value)] = found.shape[axis]

    for value in inputs:
        if value in targets and targets[value].shape is not None:
            feeds[value] = torch.tensor(dims_like(targets[value]), dtype=torch.int64)
        elif value.shape is None or (value.dtype is not None and value.dtype not in FLOATS):
            feeds[value] = context.random_feed(value, sizes)
        else:
            feeds[value] = context.normal(dims_like(value))
        learn(value, feeds[value])
        for node in nodes:
            read = [item for item in node.inputs if item is not None and constant_tensor(item) is None]
            if node.outputs[0] in known or not all(item in known for item in read):
                continue
            for output, found in zip(node.outputs, evaluate_region([node], known, node.outputs), strict=True):
                learn(output, found)
    return feeds


def _rows_are_alike(nodes: Sequence[ir.Node], inputs: Sequence[ir.Value]) -> bool:
    """Tell whether a region maps the last axis of its one input, the same for every row before it."""
    if len(inputs) != 1 or inputs[0].shape is None or inputs[0].shape.rank() < 2:
        return False
    for node in nodes:
        constants = [value for value in node.inputs if value is not None and constant_tensor(value) is not None]
        shapes = [tuple(constant_tensor(value).shape.numpy()) for value in constants]  # type: ignore[union-attr] # above
        if node.op_type == "MatMul":
            if len(constants) != 1 or constants[0] is not node.inputs[1] or len(shapes[0]) != 2:
                return False
        elif node.op_type in _ROWWISE:
            if any(math.prod(shape) != (shape[-1] if shape else 1) for shape in shapes):
                return False
        else:
            return False
    return True


def _targets(nodes: Sequence[ir.Node]) -> dict[ir.Value, ir.Value]:
    found: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        index = _TARGET_OPERAND.get(node.op_type)
        if index is not None and len(node.inputs) > index:
            operand = node.inputs[index]
            if operand is not None:
                found[operand] = node.outputs[0]
    return found


def _size(dim: int | ir.SymbolicDim, value: ir.Value, axis: int, sizes: dict[str, int], reach: int) -> int:
    if isinstance(dim, int):
        return dim
    if dim.value is None:
        return sizes.setdefault(f"{value.name}.{axis}", reach + 3 if axis >= 2 else 2)
    symbols = sorted(dim.free_symbols())
    for symbol in symbols:
        spatial = axis >= 2 and reach > 3
        sizes.setdefault(symbol, reach + 3 + 2 * len(sizes) if spatial else _PROBE_SIZES[len(sizes) % 5])
    if symbols:
        found = dim.evaluate(sizes)
        if isinstance(found, int) and found > 0:
            return found
    return sizes.setdefault(str(dim.value), _PROBE_SIZES[len(sizes) % 5])


def _ints(node: ir.Node, name: str) -> Sequence[int]:
    return node.attributes[name].as_ints() if name in node.attributes else ()


def _reach(nodes: Sequence[ir.Node]) -> int:
    """Return a spatial size into which every window of the region fits, and no border hides another."""
    reach, stride = 1 if any(min(_ints(node, "pads"), default=0) > 0 for node in nodes) else 2, 1
    for node in nodes:
        kernel: Sequence[int] = _ints(node, "kernel_shape")
        if not kernel and node.op_type in ("Conv", "ConvTranspose") and len(node.inputs) > 1:
            weight = node.inputs[1]
            if weight is not None and weight.shape is not None and weight.shape.is_static():
                kernel = weight.shape.numpy()[2:]
        dilations = _ints(node, "dilations") or (1,) * len(kernel)
        extent = max([(size - 1) * dilation for size, dilation in zip(kernel, dilations, strict=False)], default=0)
        if node.op_type == "Pad":
            extent += max([abs(size) for size in _pad_widths(node)], default=0)
        reach += stride * extent
        if node.op_type != "ConvTranspose":
            stride *= max(_ints(node, "strides"), default=1)
    return max(reach + stride - 1, 2)


def _pad_widths(node: ir.Node) -> Sequence[int]:
    if "pads" in node.attributes:
        return node.attributes["pads"].as_ints()
    widths = constant64(node.inputs[1]) if len(node.inputs) > 1 else None
    return [] if widths is None else [int(width) for width in widths]


def _spatial_size_is_free(nodes: Sequence[ir.Node], inputs: Sequence[ir.Value]) -> bool:
    if len(inputs) != 1 or inputs[0].shape is None or inputs[0].shape.rank() < 3:
        return False
    rank = inputs[0].shape.rank()
    for node in nodes:
        if node.op_type not in _SPATIAL and node.op_type not in _POINTWISE:
            return False
        if node.domain == AFFINE_DOMAIN:
            for value in node.inputs[1:]:
                if value is None or value.shape is None or value.shape.rank() != rank:
                    return False
                dims = value.shape.numpy()
                if math.prod(dims) != dims[1]:
                    return False
    return True
