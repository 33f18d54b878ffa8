"""DequantizeLinear of a constant takes a scale over: its steps take |s|, its integers the sign.

w = d (q - z): s w = (|s| d) (q' - z), with q' = q where s > 0 and q' = 2 z - q where s < 0 (with z = 0: -q). Nothing is
rounded but the steps, once. One step for the whole tensor becomes one per channel where s varies along one axis.

Conv and ConvTranspose with such a weight take a map behind them over: the weight takes s, a float bias b becomes
s b + t, an absent one t; a quantized bias takes s like the weight. MatMul and Gemm ask for themselves.

Refused:
- what is dequantized is computed at run time (activations: the map would change what was rounded);
- a shift (the integers would have to be rounded again), also into a quantized bias;
- s = 0, which leaves no step;
- s varies along another axis than the steps do, or along an axis quantized in blocks;
- q' does not fit the integers: -128 has no opposite in int8;
- an addend of a grouped ConvTranspose: its channels are not one axis of the weight.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.graph import constant64, constant_tensor
from normdeploy.rewrite.affine.backward import Backward
from normdeploy.rewrite.affine.constant import (
    along,
    array_of,
    copy_cost,
    dtype_of,
    fits,
    integer,
    is_constant,
    optional,
    required,
    storable,
)
from normdeploy.rewrite.affine.map import AffineMap, Array
from normdeploy.rewrite.affine.naming import describe
from normdeploy.rewrite.affine.plan import BackwardPlan, Refusal, Region

OP_TYPE = "DequantizeLinear"


def is_quantized(value: ir.Value | None) -> bool:
    """Tell whether a value is a constant that is stored in integers."""
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type != OP_TYPE or producer.domain not in ("", "ai.onnx"):
        return False
    return constant_tensor(producer.inputs[0]) is not None and is_constant(producer.inputs[1])


def backward(node: ir.Node, index: int, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Absorb a scale behind the dequantization."""
    del index, search
    stored, steps, zero = required(node, 0), required(node, 1), optional(node, 2)
    if not is_quantized(node.outputs[0]) or (zero is not None and constant_tensor(zero) is None):
        return Refusal(f"{describe(node)} dequantizes what is computed at run time", node)
    if not mapping.no_shift:
        return Refusal(f"{describe(node)} holds integers, which a shift would round again", node)
    if not (mapping.scale != 0).all():
        return Refusal(f"{describe(node)} would be left without a step by a scale of 0", node)
    placed = _placed(node, mapping)
    if isinstance(placed, Refusal):
        return placed
    axis, new_steps = placed
    if not fits(dtype_of(steps), lambda: new_steps):
        return Refusal(f"the steps of {describe(node)} would overflow {dtype_of(steps).name.lower()}", node)
    turned = _turned(node, mapping)
    if isinstance(turned, Refusal):
        return turned

    def build(region: Region) -> ir.Value:
        integers = stored
        if turned is not None:
            integers = _integers(region, stored, turned)
        factors = region.constant(
            lambda: new_steps, new_steps.shape, dtype_of(steps), name=str(steps.name), succeeds=steps
        )
        inputs: list[ir.Value | None] = [integers, factors]
        if zero is not None:
            offsets = np.asarray(constant64(zero))
            spread = np.broadcast_to(offsets.reshape(-1), new_steps.shape) if offsets.size == 1 else offsets
            inputs.append(zero if offsets.shape == new_steps.shape else _integers(region, zero, spread))
        attributes = dict(node.attributes)
        if axis is not None:
            attributes["axis"] = ir.AttrInt64("axis", axis)
        return region.replace(node, inputs, attributes=attributes).outputs[0]

    copied = copy_cost(steps, node) + (0.0 if turned is None else copy_cost(stored, node))
    return BackwardPlan(build, (node,), (node,), copied)


def _placed(node: ir.Node, mapping: AffineMap) -> tuple[int | None, Array] | Refusal:
    """Return the axis of the new steps (None: as it is) and the steps."""
    tensor = constant_tensor(required(node, 0))
    assert tensor is not None
    shape, steps, size = tuple(tensor.shape.numpy()), array_of(required(node, 1)), np.abs(mapping.scale)
    if integer(node, "block_size", 0):
        axis = integer(node, "axis", 1) % len(shape)
        if axis in mapping.axes:
            return Refusal(f"it varies along the axis that {describe(node)} quantizes in blocks", node)
        return None, steps * size
    if not mapping.axes:
        return None, steps * size.item()
    if len(mapping.axes) > 1:
        return Refusal(f"it varies along several axes of {describe(node)}", node)
    (varying,) = mapping.axes
    if steps.size == 1:
        return varying, steps.reshape(-1) * along(size, varying, shape[varying])
    if integer(node, "axis", 1) % len(shape) != varying:
        return Refusal(f"it varies along another axis than the steps of {describe(node)}", node)
    return varying, steps * along(size, varying, shape[varying])


def _turned(node: ir.Node, mapping: AffineMap) -> npt.NDArray[np.int64] | Refusal | None:
    """Return the integers with the sign of s; None where no channel changes."""
    if mapping.positive:
        return None
    tensor = constant_tensor(required(node, 0))
    assert tensor is not None
    stored = tensor.numpy().astype(np.int64)
    zero = constant64(optional(node, 2))
    offset = np.zeros((), np.int64) if zero is None else np.asarray(zero).astype(np.int64)
    if offset.ndim == 1 and offset.size > 1:
        axis = integer(node, "axis", 1) % stored.ndim
        offset = offset.reshape([-1 if at == axis else 1 for at in range(stored.ndim)])
    elif offset.size == 1:
        offset = offset.reshape(())
    elif offset.ndim == stored.ndim:  # blocks
        axis = integer(node, "axis", 1) % stored.ndim
        repeated = np.repeat(offset, integer(node, "block_size", 1), axis=axis)
        offset = np.take(repeated, range(stored.shape[axis]), axis=axis)
    turned = np.where(mapping.scale < 0, 2 * offset - stored, stored)
    low, high = _range(tensor.dtype)
    if turned.min(initial=0) < low or turned.max(initial=0) > high:
        worst = int(stored.reshape(-1)[np.abs(turned.reshape(-1).astype(np.float64) - (low + high) / 2).argmax()])
        return Refusal(
            f"the integer {worst} of {describe(node)} has no opposite in {tensor.dtype.name.lower()}, "
            "and is scaled by a negative number",
            node,
        )
    return turned


def _range(dtype: ir.DataType) -> tuple[int, int]:
    """Return the least and the greatest integer of a type such as INT8 or UINT4."""
    bits = dtype.bitwidth
    signed = not dtype.name.startswith("U")
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def _integers(region: Region, old: ir.Value, array: npt.NDArray[np.generic]) -> ir.Value:
    tensor = constant_tensor(old)
    assert tensor is not None
    exact = np.asarray(array, dtype=np.float64)  # of at most 32 bits: float64 holds them all
    return region.constant(lambda: exact, exact.shape, tensor.dtype, name=str(old.name), succeeds=old)


def behind_convolution(node: ir.Node, mapping: AffineMap, search: Backward) -> BackwardPlan | Refusal:
    """Absorb a map behind a Conv or ConvTranspose whose weight is stored in integers."""
    weight, bias = required(node, 1), optional(node, 2)
    if not mapping.axes <= {1}:
        return Refusal(f"it varies along other axes than the channels of {describe(node)}", node)
    transposed = node.op_type == "ConvTranspose"
    if transposed and integer(node, "group", 1) > 1:
        return Refusal(f"the channels of the grouped {describe(node)} are not one axis of its quantized weight", node)
    producer = weight.producer()
    assert producer is not None
    stored = constant_tensor(required(producer, 0))
    assert stored is not None
    rank, channel = len(stored.shape), int(transposed)
    channels = stored.shape.numpy()[channel]
    scale, shift = along(mapping.scale, 1, channels), along(mapping.shift, 1, channels)
    into_weight = search.into(weight, _scale_only(scale, rank, channel), node)
    if isinstance(into_weight, Refusal):
        return into_weight
    parts, into_bias, total = [into_weight], None, None
    if bias is not None and not is_constant(bias):
        if not mapping.no_shift:
            return Refusal(f"the bias of {describe(node)} is quantized, and the shift is not zero", node)
        found = search.into(bias, _scale_only(scale, 1, 0), node)
        if isinstance(found, Refusal):
            return found
        into_bias = found
        parts.append(found)
    elif bias is not None or not mapping.no_shift:
        total = shift + (0.0 if bias is None else scale * array_of(bias))
        dtype = dtype_of(required(producer, 1) if bias is None else bias)
        if not storable(dtype, total):
            return Refusal(f"the bias of {describe(node)} would overflow {dtype.name.lower()}", node)

    def build(region: Region) -> ir.Value:
        inputs: list[ir.Value | None] = [node.inputs[0], into_weight.build(region)]
        if into_bias is not None:
            inputs.append(into_bias.build(region))
        elif total is not None:
            value: Array = total
            stem = str(required(producer, 0).name).removesuffix(".weight")
            dtype = dtype_of(required(producer, 1) if bias is None else bias)
            name = f"{stem}.bias" if bias is None else str(bias.name)
            inputs.append(region.constant(lambda: value, value.shape, dtype, name=name, succeeds=bias))
        return region.replace(node, inputs).outputs[0]

    cost = sum(part.cost for part in parts) + (copy_cost(bias, node) if into_bias is None else 0.0)
    return BackwardPlan(build, (*(old for part in parts for old in part.old), node), (node,), cost)


def _scale_only(scale: Array, rank: int, axis: int) -> AffineMap:
    return AffineMap.of(scale.reshape([-1 if at == axis else 1 for at in range(rank)]), 0.0, rank)
