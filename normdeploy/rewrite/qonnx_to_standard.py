r"""QONNX's quantizers (`normdeploy.graph.operators.qonnx`) in standard operators, which every runtime has kernels for.

Quant is a QuantizeLinear, a Clip of the integers where they have fewer values than their type, and a DequantizeLinear
where that is the same on every input:

1. rounding to nearest, at most 8 bits, a positive scale: one number, or one per channel;
2. an even zero point within the type. Quant adds it before rounding, QuantizeLinear behind: at a tie, which goes to the
   even integer, an odd one makes a difference.

Everything else is written in arithmetic: Div, Add, Clip, Round, Sub, Mul. A quantizer whose bits are no constant, or
whose rounding is not known, stays as it is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnx_ir.tape

from normdeploy.graph import constant64
from normdeploy.graph.edit import free_name, put_constant, share_names, take_place
from normdeploy.graph.operators.qonnx import QONNX, integer_range, rounding_of
from normdeploy.graph.walk import nodes_of
from normdeploy.rewrite.infer import infer_missing_types

_TYPES = {True: (ir.DataType.INT8, -128, 127), False: (ir.DataType.UINT8, 0, 255)}


class LowerQonnx(ir.passes.InPlacePass):
    """Write QONNX's quantizers in standard operators."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph."""
        nodes = [node for node in nodes_of(model) if (node.domain, node.op_type) in QONNX]
        if not nodes:
            return ir.passes.PassResult(model, modified=False)
        share_names(model)
        changed = sum(_Writing(node).write() for node in nodes)
        common_passes.RemoveUnusedOpsetsPass()(model)
        infer_missing_types(model)
        return ir.passes.PassResult(model, changed > 0)


class _Writing:
    """Writes one quantizer.

    Args:
        node: of QONNX.
    """

    def __init__(self, node: ir.Node) -> None:
        assert node.graph is not None
        assert isinstance(node.graph, ir.Graph)
        self._graph, self._node, self._tape = node.graph, node, onnx_ir.tape.Tape()
        self._stem = str(node.outputs[0].name)

    def write(self) -> bool:
        """Replace the node; return whether it was."""
        x, scale, *rest = self._node.inputs
        assert x is not None
        assert scale is not None
        if self._node.op_type == "BipolarQuant":
            result: ir.Value | None = self._scaled(self._sign(x), scale)
        else:
            result = self._quant(x, scale, *rest)
        if result is None:
            return False
        old = self._node.outputs[0]
        result.type, result.shape = x.type or scale.type, x.shape
        for made in self._tape.nodes:
            made.metadata_props.update(self._node.metadata_props)
            for output in made.outputs:
                output.name = free_name(self._graph, f"{self._stem}_{made.op_type}")
        self._graph.insert_before(self._node, self._tape.nodes)
        take_place(result, old)
        self._graph.remove(self._node, safe=True)
        return True

    def _quant(self, x: ir.Value, scale: ir.Value, zero: ir.Value | None, bits: ir.Value | None) -> ir.Value | None:
        attributes = self._node.attributes
        signed, narrow = bool(attributes.get_int("signed", 1)), bool(attributes.get_int("narrow", 0))
        width = constant64(bits)
        try:
            rounding = rounding_of(attributes.get_string("rounding_mode", "ROUND"))
        except NotImplementedError:
            return None
        if width is None or zero is None or width.size != 1 or float(width.reshape(())) % 1:
            return None
        count = int(width.reshape(()))
        low, high = integer_range(count, signed=signed, narrow=narrow)
        if signed and count == 1:
            whole = self._sign(self._steps(x, scale, zero))
            return self._scaled(self._op("Sub", whole, zero), scale)
        pair = self._pair(x, scale, zero, low, high, signed=signed) if rounding == "ROUND" and count <= 8 else None
        if pair is not None:
            return pair
        bounds = (self._number(float(edge), scale) for edge in (low, high))
        whole = self._rounded(self._op("Clip", self._steps(x, scale, zero), *bounds), rounding)
        return self._scaled(self._op("Sub", whole, zero), scale)

    def _pair(
        self, x: ir.Value, scale: ir.Value, zero: ir.Value, low: int, high: int, *, signed: bool
    ) -> ir.Value | None:
        """Write QuantizeLinear and DequantizeLinear; None where these are not the same."""
        steps, origins = constant64(scale), constant64(zero)
        kind, least, most = _TYPES[signed]
        if steps is None or origins is None or ir.DataType.FLOAT not in (x.dtype, scale.dtype):
            return None
        if not (steps > 0).all() or (origins % 2).any() or origins.min() < least or origins.max() > most:
            return None
        wide = [at for at, size in enumerate(steps.shape) if size > 1]
        if len(wide) > 1 or (wide and x.shape is None):
            return None
        axis = len(x.shape) - steps.ndim + wide[0] if wide and x.shape is not None else 1
        if axis < 0 or (origins.size > 1 and origins.shape != steps.shape):
            return None
        flat = steps.reshape(-1) if wide else steps.reshape(())
        step = self._constant(flat.astype(np.float32), "step")
        origin = self._constant(
            np.broadcast_to(origins.reshape(-1) if wide else origins.reshape(()), flat.shape), "zero", kind
        )
        integers = self._op("QuantizeLinear", x, step, origin, axis=axis)
        if (low, high) != (least, most):
            cuts = (self._constant(np.array(edge), "bound", kind) for edge in (low, high))
            integers = self._op("Clip", integers, *cuts)
        return self._op("DequantizeLinear", integers, step, origin, axis=axis)

    def _steps(self, x: ir.Value, scale: ir.Value, zero: ir.Value) -> ir.Value:
        return self._op("Add", self._op("Div", x, scale), zero)

    def _scaled(self, x: ir.Value, scale: ir.Value) -> ir.Value:
        return self._op("Mul", x, scale)

    def _sign(self, x: ir.Value) -> ir.Value:
        """Write 1 where x >= 0, -1 elsewhere."""
        zero, above, below = (self._number(value, self._node.inputs[1]) for value in (0.0, 1.0, -1.0))
        return self._op("Where", self._op("GreaterOrEqual", x, zero), above, below)

    def _rounded(self, x: ir.Value, rounding: str) -> ir.Value:
        direct = {"ROUND": "Round", "CEIL": "Ceil", "FLOOR": "Floor"}
        if rounding in direct:
            return self._op(direct[rounding], x)
        size = self._op("Ceil" if rounding == "UP" else "Floor", self._op("Abs", x))
        return self._op("Mul", self._op("Sign", x), size)

    def _op(self, kind: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        return self._tape.op(kind, list(inputs), attributes)

    def _number(self, value: float, like: ir.Value | None) -> ir.Value:
        dtype = None if like is None else like.dtype
        return self._constant(np.array(value), "number", dtype or ir.DataType.FLOAT)

    def _constant(self, array: npt.NDArray[np.generic], role: str, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        return put_constant(self._graph, array, f"{self._stem}_{role}", dtype)
