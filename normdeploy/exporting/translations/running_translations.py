"""Running products, maxima and minima: a Scan along the axis, as torch runs them, products of floats in float64.

    cumprod:  y[i] = y[i - 1] x[i],                                                           y[-1] = 1
    cummax:   y[i] = x[i] where not x[i] < y[i - 1], else y[i - 1], and the place it is from,  y[-1] = x[0]

Alpha compositing along a ray multiplies what is left of the light by cumprod. torch's exporter has no form for any.
A NaN stays to the end, as it does in torch: it is not less, and what is not NaN itself does not take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from normdeploy.exporting.translations.attention_translation import op

aten = torch.ops.aten


class _Step:
    """One step along an axis, as the body of a Scan.

    Args:
        rank: of an element. inputs: name and type of each state, and of the element at the end.
    """

    def __init__(self, rank: int, **inputs: int) -> None:
        self.inputs = [
            ir.Value(name=f"step_{name}", type=ir.TensorType(ir.DataType(dtype)), shape=ir.Shape([None] * rank))
            for name, dtype in inputs.items()
        ]
        self.nodes: list[ir.Node] = []

    def run(self, operator: str, *operands: ir.Value, dtype: int, **attributes: int) -> ir.Value:
        """Add an operator; return its result."""
        self.nodes.append(ir.node(operator, list(operands), attributes))
        (result,) = self.nodes[-1].outputs
        result.name, result.type = f"step_{operator}_{len(self.nodes)}", ir.TensorType(ir.DataType(dtype))
        return result

    def along(
        self, x: Any, dim: int, states: Sequence[Any], ends: Sequence[ir.Value], told: Sequence[ir.Value]
    ) -> list[Any]:
        """Run it along an axis of ``x``, from states in front of it to their ends; return what each step tells."""
        body = ir.Graph(self.inputs, [*ends, *told], nodes=self.nodes, name="step")
        axis = dim % len(x.shape)
        axes = {"scan_input_axes": [axis], "scan_output_axes": [axis] * len(told)}
        node = op.Scan(*states, x, body=body, num_scan_inputs=1, **axes).producer()
        node.resize_outputs(len(body.outputs))  # the builder makes one
        return [op.Identity(value) for value in node.outputs[len(states) :]]


def _first(x: Any, dim: int) -> Any:
    return op.Gather(x, op.Constant(value_int=0), axis=dim)


def _all(number: int, dtype: int, like: Any) -> Any:
    return op.Expand(op.Constant(value=ir.tensor(number, dtype=ir.DataType(dtype))), op.Shape(like))


def cumprod(self: Any, dim: int, dtype: int = -1) -> Any:
    """Translate aten.cumprod."""
    kind = int(self.dtype) if dtype in (-1, None) else dtype
    if not self.shape:
        return op.Cast(self, to=kind)
    x = op.Cast(self, to=kind)
    x.shape = self.shape
    wide = int(ir.DataType.DOUBLE) if ir.DataType(kind).is_floating_point() else kind
    step = _Step(len(self.shape) - 1, product=wide, element=kind)
    before, element = step.inputs
    product = step.run("Mul", before, step.run("Cast", element, dtype=wide, to=wide), dtype=wide)
    told = step.run("Cast", product, dtype=kind, to=kind)
    return step.along(x, dim, [_all(1, wide, _first(self, dim))], [product], [told])[0]


def _running(x: Any, dim: int, loses: str) -> tuple[Any, Any]:
    """Return a running extreme and its place. Args: loses: how an element compares that takes no place."""
    if not x.shape:
        return op.Identity(x), op.Constant(value_int=0)
    kind, count, yes = int(x.dtype), int(ir.DataType.INT64), int(ir.DataType.BOOL)
    step = _Step(len(x.shape) - 1, best=kind, place=count, at=count, element=kind)
    best, place, at, element = step.inputs
    taken = step.run("Not", step.run(loses, element, best, dtype=yes), dtype=yes)
    if x.dtype.is_floating_point():
        known = step.run("Not", step.run("IsNaN", best, dtype=yes), dtype=yes)
        may = step.run("Or", known, step.run("IsNaN", element, dtype=yes), dtype=yes)
        taken = step.run("And", taken, may, dtype=yes)
    greater = step.run("Where", taken, element, best, dtype=kind)
    where = step.run("Where", taken, at, place, dtype=count)
    behind = step.run("Add", at, step.run("Constant", dtype=count, value_int=1), dtype=count)
    told = [step.run("Identity", end, dtype=dtype) for end, dtype in ((greater, kind), (where, count))]
    first = _first(x, dim)
    states = [first, *[_all(0, count, first)] * 2]
    value, index = step.along(x, dim, states, [greater, where, behind], told)
    return value, index


def cummax(self: Any, dim: int) -> tuple[Any, Any]:
    """Translate aten.cummax."""
    return _running(self, dim, "Less")


def cummin(self: Any, dim: int) -> tuple[Any, Any]:
    """Translate aten.cummin."""
    return _running(self, dim, "Greater")


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.cumprod.default: cumprod,
    aten.cummax.default: cummax,
    aten.cummin.default: cummin,
}
