"""A weight stored in integers (DequantizeLinear of a constant) takes factors and keeps its numbers.

The steps take |f|, the integers its sign::

    w = d (q - z):   f w = (|f| d) (q' - z),  q' = q where f > 0 and 2 z - q where f < 0

so f may vary only as the steps do: along their axis; along one axis, chosen by the operator, for a single step; along
any axis but the one cut into blocks. Nothing is rounded but the steps, once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import constant64, constant_tensor
from normdeploy.graph.operator_inputs import array_of, optional, required
from normdeploy.graph.weight import Weight
from normdeploy.rewrite.affine.constant import FORMATS
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.gauge.operator_edit import Edit, Refused


def requantize(
    edit: Edit, index: int, weight: Weight, factor: Floats, added: npt.NDArray[np.int64] | None = None
) -> None:
    """Give |factor| to the steps and its sign to the integers, to which whole steps are added first.

    Args:
        edit: the change; gets the cost of a copy.
        index: of the operator's input.
        weight: the old weight, stored in integers.
        factor: of the weight's rank.
        added: of the integers' shape; what they become fits their type.

    Raises:
        Refused: the steps cannot take the factor, or an integer has no opposite.
    """
    node = weight.quantized
    assert node is not None
    steps, zero, shape = required(node, 1), optional(node, 2), weight.shape
    old, size = array_of(steps), np.abs(factor)
    if (size == 0).any():
        raise Refused(edit.node, f"{describe(node)} would be left without a step by a scale of 0")
    axis = node.attributes.get_int("axis", 1) % len(shape)
    block = node.attributes.get_int("block_size", 0)
    attributes = dict(node.attributes)
    if block:
        new = old * np.take(size, [0], axis=axis) if size.shape[axis] > 1 else old * size
    else:
        varying = [at for at in range(len(shape)) if size.shape[at] > 1]
        if len(varying) > 1 or (old.size > 1 and varying and varying != [axis]):
            raise Refused(edit.node, f"it varies along another axis than the steps of {describe(node)}")
        if varying:
            axis = varying[0]
            attributes["axis"] = ir.AttrInt64("axis", axis)
            new = old.reshape(-1) * size.reshape(-1)
        else:
            new = old * size.reshape(())
    _require_storable_steps(edit.node, node, weight.dtype, new)
    integers: ir.Value = weight.stored
    turned = _turned(edit.node, weight, factor, added)
    if turned is not None:
        integers = _numbers(edit, weight.stored, turned)
    inputs: list[ir.Value | None] = [
        integers,
        edit.constant(lambda: new, new.shape, weight.dtype, name=str(steps.name), succeeds=steps),
    ]
    if zero is not None:
        offsets = np.asarray(constant64(zero))
        spread = offsets.size == 1 and offsets.shape != new.shape
        inputs.append(_numbers(edit, zero, np.broadcast_to(offsets.reshape(()), new.shape)) if spread else zero)
    elif integers.dtype == ir.DataType.INT8 and new.size > 1 and not block:
        # onnxruntime 1.31 gives such a weight a zero point of its own where products are to be exact: one for all steps
        inputs.append(_numbers(edit, weight.stored, np.zeros(new.shape)))

    def make(result: ir.Value) -> ir.Node:
        return ir.Node(
            node.domain, node.op_type, inputs, list(attributes.values()), outputs=[result], name=node.name,
            metadata_props=dict(node.metadata_props),
        )  # fmt: skip

    made = edit.insert_before(make, weight.value)
    edit.copies(weight.stored if turned is not None else steps, [node])
    edit.read(index, made)


def _require_storable_steps(node: ir.Node, quantizer: ir.Node, dtype: ir.DataType, steps: Floats) -> None:
    """Refuse steps that overflow or lose digits."""
    _, smallest, largest = FORMATS[dtype]
    if not ((np.abs(steps) <= largest) & (np.abs(steps) >= smallest)).all():
        raise Refused(node, f"the steps of {describe(quantizer)} would overflow {dtype.name.lower()}")


def _turned(node: ir.Node, weight: Weight, factor: Floats, added: npt.NDArray[np.int64] | None) -> Floats | None:
    """Return the integers, those of ``added`` with them, with the sign of the factor; None where none changes.

    In float64, which holds them all, as it does floats of 8 bits and fewer that stand in their place.
    """
    if (factor > 0).all() and added is None:
        return None
    quantizer = weight.quantized
    assert quantizer is not None
    tensor = constant_tensor(weight.stored)
    assert tensor is not None
    stored = tensor.numpy().astype(np.float64)
    stored = stored if added is None else stored + added
    zero = constant64(optional(quantizer, 2))
    offset = np.zeros(()) if zero is None else np.asarray(zero).astype(np.float64)
    axis = quantizer.attributes.get_int("axis", 1) % stored.ndim
    if offset.size == 1:
        offset = offset.reshape(())
    elif offset.ndim == 1:
        offset = offset.reshape([-1 if at == axis else 1 for at in range(stored.ndim)])
    else:
        repeated = np.repeat(offset, quantizer.attributes.get_int("block_size", 1), axis=axis)
        offset = np.take(repeated, range(stored.shape[axis]), axis=axis)
    turned = np.where(factor < 0, 2 * offset - stored, stored)
    lost = ~_holds(tensor.dtype, turned)
    if lost.any():
        raise Refused(
            node,
            f"the number {stored[lost].reshape(-1)[0]:.12g} of {describe(quantizer)} has no opposite in "
            f"{tensor.dtype.name.lower()}, and is scaled by a negative number",
        )
    return np.asarray(turned)


def _holds(dtype: ir.DataType, numbers: Floats) -> npt.NDArray[np.bool_]:
    """Tell which numbers a stored type has."""
    if dtype.is_floating_point():
        with np.errstate(all="ignore"):
            return np.asarray(numbers.astype(dtype.numpy()).astype(np.float64) == numbers)
    low, high = range_of(dtype)
    return np.asarray((numbers >= low) & (numbers <= high))


def range_of(dtype: ir.DataType) -> tuple[int, int]:
    """Return the least and the largest number of an integer type."""
    bits = dtype.bitwidth
    return (0, (1 << bits) - 1) if dtype.name.startswith("U") else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _numbers(edit: Edit, old: ir.Value, array: npt.NDArray[np.generic]) -> ir.Value:
    """Return a constant of an old one's type, named after it."""
    tensor = constant_tensor(old)
    assert tensor is not None
    exact = np.asarray(array, dtype=np.float64)
    return edit.constant(lambda: exact, exact.shape, tensor.dtype, name=str(old.name), succeeds=old)
