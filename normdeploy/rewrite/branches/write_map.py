"""The one operator that computes a linear map: a Conv, a Gemm, or a MatMul with its bias Add."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph.edit import standing_for
from normdeploy.graph.linear_view import linear_of
from normdeploy.graph.operator_inputs import dtype_of, optional, required
from normdeploy.rewrite.affine.constant import storable
from normdeploy.rewrite.affine.replacement import Region
from normdeploy.rewrite.branches.operator_as_map import Frame, Reading, by_outputs


def main_node(reading: Reading) -> ir.Node:
    """Return the operator with the most weights, which lends its name."""
    return max(reading.weighted, key=lambda node: _size(required(node, 1)))


def _size(value: ir.Value) -> int:
    tensor = value.const_value
    return 0 if tensor is None else tensor.size


def is_gemm(reading: Reading) -> bool:
    """Tell whether a map of rows is written as a Gemm: all its products are."""
    return all(node.op_type == "Gemm" for node in reading.weighted)


def has_own_bias(reading: Reading, frame: Frame) -> bool:
    """Tell whether the bias is an operator of its own."""
    return frame is Frame.ROWS and not is_gemm(reading)


def fits(reading: Reading) -> bool:
    """Tell whether kernel and bias can be stored."""
    dtype, mapping = dtype_of(required(main_node(reading), 1)), reading.map
    if mapping.bias is not None and not storable(dtype, mapping.bias()):
        return False
    if storable(dtype, np.array(mapping.bound())):
        return True
    parts = mapping.parts
    kernel = (mapping.kernel(),) if parts is None else (piece for _, _, piece in parts.pieces(mapping.shape))
    return all(storable(dtype, piece) for piece in kernel)


def write(region: Region, reading: Reading, frame: Frame, *, result: ir.Value, after: ir.Node) -> ir.Node:
    """Make the operator that computes a map, under the name of its main operator; return what makes the result.

    Args:
        region: takes the nodes and constants.
        reading: what to compute.
        frame: a Conv, or a product of rows.
        result: the value whose type and shape its result has.
        after: a node that stands behind ``reading.source``.
    """
    if frame is Frame.IMAGE:
        return _convolution(region, reading, result, after)
    return _gemm(region, reading, result, after) if is_gemm(reading) else _product(region, reading, result, after)


def _convolution(region: Region, reading: Reading, result: ir.Value, after: ir.Node) -> ir.Node:
    like, mapping = main_node(reading), reading.map
    weight, shape, stored = required(like, 1), mapping.shape, mapping.kernel
    if mapping.window.spreads:
        shape = (mapping.ins, mapping.outs // mapping.group, *shape[2:])

        def stored() -> Floats:
            return by_outputs(mapping.kernel(), mapping.group)

    kernel = region.constant(
        stored, shape, dtype_of(weight), name=str(weight.name), succeeds=weight, parts=mapping.parts
    )
    inputs = [reading.source, kernel, *_bias(region, reading, like)]
    op_type = "ConvTranspose" if mapping.window.spreads else "Conv"
    attributes = mapping.window.attributes(mapping.group)
    return region.adopt(standing_for(like, op_type, inputs, attributes, like=result), after=after)


def _gemm(region: Region, reading: Reading, result: ir.Value, after: ir.Node) -> ir.Node:
    like = main_node(reading)
    linear = linear_of(like)
    transposed = linear is not None and linear.turned_weight
    inputs = [reading.source, _matrix(region, reading, transposed=transposed), *_bias(region, reading, like)]
    attributes = [ir.AttrInt64("transB", 1)] if transposed else []
    return _node(region, like, inputs, attributes, result, after)


def _product(region: Region, reading: Reading, result: ir.Value, after: ir.Node) -> ir.Node:
    like = main_node(reading)
    node = _node(region, like, [reading.source, _matrix(region, reading, transposed=False)], [], result, after)
    bias = _bias(region, reading, like)
    return region.insert("Add", [node.outputs[0], *bias], after=node, like=result) if bias else node


def _matrix(region: Region, reading: Reading, *, transposed: bool) -> ir.Value:
    mapping, weight = reading.map, required(main_node(reading), 1)

    def stored() -> Floats:
        kernel = mapping.kernel()
        return kernel if transposed else np.ascontiguousarray(kernel.T)

    shape = mapping.shape if transposed else mapping.shape[::-1]
    return region.constant(stored, shape, dtype_of(weight), name=str(weight.name), succeeds=weight)


def _bias(region: Region, reading: Reading, like: ir.Node) -> list[ir.Value]:
    if reading.map.bias is None:
        return []
    weight, old = required(like, 1), optional(like, 2)
    name = f"{str(weight.name).removesuffix('.weight')}.bias" if old is None else str(old.name)
    shape = (reading.map.outs,)
    return [region.constant(reading.map.bias, shape, dtype_of(weight), name=name, succeeds=old)]


def _node(
    region: Region,
    like: ir.Node,
    inputs: Sequence[ir.Value | None],
    attributes: Sequence[ir.Attr],
    result: ir.Value,
    after: ir.Node,
) -> ir.Node:
    return region.adopt(standing_for(like, like.op_type, inputs, attributes, like=result), after=after)
