"""Sizes of results that an operator's operands tell by themselves: torch takes a hundred times as long to say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Shape
from normdeploy.graph.traits import Trait, has, is_standard

_OF_ANOTHER_TYPE = ("IsNaN", "IsInf", "Optional", "OptionalGetElement")


def told_by_operands(node: ir.Node, operands: Sequence[Tensor | None]) -> Tensor | None:
    """Return a result of which only sizes are asked, and these follow from the operands'; None where it is evaluated.

    Args:
        node: the operator. operands: floats as sizes alone (on torch's device "meta"), or numbers.
    """
    first = operands[0] if operands else None
    if len(node.outputs) != 1 or first is None or type(first) is not Tensor:
        return None
    if first.is_meta and _scales(node):
        return first
    if not any(t is not None and t.is_meta for t in operands):
        return None
    law = _SHAPES.get(node.op_type) if is_standard(node) else None
    floats = operands[1:] if node.op_type == "Where" else operands
    if law is None:
        if not _is_pointwise(node):
            return None
        law = _broadcast if has(node, Trait.BROADCASTS) else _of_first
    if not all(t is not None and type(t) is Tensor for t in operands):
        return None
    given = [t for t in floats if t is not None]
    if not all(t.is_floating_point() and t.dtype == given[0].dtype for t in given):
        return None
    shapes = [tuple(t.shape) for t in operands if t is not None]
    shape = law(node, shapes)
    if shape is None:
        return None
    whole = next((t for t in given if t.is_meta and t.shape == shape), None)
    return torch.empty(shape, dtype=given[0].dtype, device="meta") if whole is None else whole


def _is_pointwise(node: ir.Node) -> bool:
    """Tell whether a result is of floats as its operands are, element by element."""
    if not has(node, Trait.POINTWISE) or has(node, Trait.COMPARES | Trait.CONVERTS):
        return False
    return not is_standard(node, *_OF_ANOTHER_TYPE)


def _scales(node: ir.Node) -> bool:
    """Tell whether an operator is a normalization with a scale: its result is of its first operand's shape."""
    return is_standard(node, "BatchNormalization") or (has(node, Trait.NORMALIZES) and has(node, Trait.WEIGHS))


def _joint(*shapes: Shape) -> Shape | None:
    """Return the shape that some broadcast to; None where they do not."""
    rank = max(map(len, shapes))
    found = []
    for axis in range(-rank, 0):
        sizes = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(sizes) > 1:
            return None
        found.append(next(iter(sizes), 1))
    return tuple(found)


def _broadcast(_: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    return _joint(*shapes)


def _of_first(_: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    return shapes[0] if all(shape in (shapes[0], ()) for shape in shapes) else None


def _product(_: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    a, b = shapes
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    batch = _joint(a[:-2], b[:-2]) if len(a) > 2 or len(b) > 2 else ()
    return None if batch is None else (*batch, a[-2], b[-1])


def _gemm(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    if any(len(shape) != 2 for shape in shapes[:2]):
        return None
    turned = (node.attributes.get_int("transA", 0), node.attributes.get_int("transB", 0))
    (rows, inner), (other, columns) = (s[::-1] if t else s for s, t in zip(shapes, turned, strict=False))
    found = (rows, columns)
    fits = inner == other and all(_joint(found, shape) == found for shape in shapes[2:])
    return found if fits else None


def _sampled(_: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    x, grid = shapes
    if len(x) != len(grid) or len(x) < 4 or x[0] != grid[0] or grid[-1] != len(x) - 2:
        return None
    return (*x[:2], *grid[1:-1])


def _convolved(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    x, weight = shapes[:2]
    attributes, rank, kernel = node.attributes, len(weight) - 2, weight[2:]
    strides, dilations = (tuple(attributes.get_ints(name, ())) or (1,) * rank for name in ("strides", "dilations"))
    pads, given = tuple(attributes.get_ints("pads", ())) or (0,) * 2 * rank, attributes.get_ints("kernel_shape", ())
    if rank < 1 or len(x) != rank + 2 or attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    groups = attributes.get_int("group", 1)
    fits = groups > 0 and x[1] == groups * weight[1] and weight[0] % groups == 0 and 0 not in (*x, *weight)
    fits &= tuple(given) in ((), kernel) and all(shape == weight[:1] for shape in shapes[2:])
    if not fits or (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank) or min(*strides, *dilations) < 1:
        return None
    sizes = zip(x[2:], kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    found = [(n + start + end - apart * (k - 1) - 1) // step + 1 for n, k, step, apart, start, end in sizes]
    return (x[0], weight[0], *found) if min(found) > 0 and min(pads) >= 0 else None


_SHAPES: Mapping[str, Callable[[ir.Node, Sequence[Shape]], Shape | None]] = {
    "Conv": _convolved,
    "Gemm": _gemm,
    "GridSample": _sampled,
    "LogSoftmax": _of_first,
    "MatMul": _product,
    "Softmax": _of_first,
    "Where": _broadcast,
}
