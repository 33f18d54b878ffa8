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
    by_numbers = _BY_NUMBERS.get(node.op_type) if is_standard(node) and first.is_meta else None
    if by_numbers is not None:
        shape = by_numbers(node, operands)
        return None if shape is None else torch.empty(shape, dtype=first.dtype, device="meta")
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


def told_with_statistics(node: ir.Node, operands: Sequence[Tensor | None]) -> list[Tensor] | None:
    """Return the results of a LayerNormalization that returns its statistics as well; None of any other operator.

    Args:
        node: the operator. operands: as above.
    """
    x = operands[0] if operands else None
    if len(node.outputs) < 2 or not is_standard(node, "LayerNormalization") or x is None or not x.is_meta:
        return None
    axis = node.attributes.get_int("axis", -1)
    if not -x.dim() <= axis < x.dim() or not all(t is None or t.dtype == x.dtype for t in operands):
        return None
    kept = axis % x.dim()
    of_rows = torch.empty((*x.shape[:kept], *(1,) * (x.dim() - kept)), dtype=x.dtype, device="meta")
    return [x, *[of_rows] * (len(node.outputs) - 1)]


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


def _joined(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    rank, axis = len(shapes[0]), node.attributes.get_int("axis", 0)
    if not -rank <= axis < rank or any(len(shape) != rank for shape in shapes):
        return None
    axis %= rank
    if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) > 1:
        return None
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def _pooled(node: ir.Node, shapes: Sequence[Shape]) -> Shape | None:
    x, attributes = shapes[0], node.attributes
    kernel, rank = tuple(attributes.get_ints("kernel_shape", ())), len(x) - 2
    strides = tuple(attributes.get_ints("strides", ())) or (1,) * rank
    pads = tuple(attributes.get_ints("pads", ())) or (0,) * 2 * rank
    if attributes.get_int("ceil_mode", 0) or attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    if attributes.get_ints("dilations", ()) or (len(kernel), len(strides), len(pads)) != (rank, rank, 2 * rank):
        return None
    if rank < 1 or 0 in x or min(*strides, *kernel) < 1 or min(pads) < 0 or any(map(int.__ge__, pads, kernel * 2)):
        return None
    sizes = zip(x[2:], kernel, strides, pads[:rank], pads[rank:], strict=True)
    found = [(n + start + end - k) // step + 1 for n, k, step, start, end in sizes]
    return (*x[:2], *found) if min(found) > 0 else None


_SHAPES: Mapping[str, Callable[[ir.Node, Sequence[Shape]], Shape | None]] = {
    "AveragePool": _pooled,
    "Concat": _joined,
    "Conv": _convolved,
    "Gemm": _gemm,
    "GridSample": _sampled,
    "LogSoftmax": _of_first,
    "MatMul": _product,
    "MaxPool": _pooled,
    "Softmax": _of_first,
    "Where": _broadcast,
}


def _numbers_of(operands: Sequence[Tensor | None], index: int) -> list[float] | None:
    """Return the numbers of an operand, [] of one that is absent; None where they are not known."""
    found = operands[index] if index < len(operands) else None
    if found is None:
        return []
    return None if found.is_meta else [float(number) for number in found.reshape(-1).tolist()]


def _averaged(node: ir.Node, operands: Sequence[Tensor | None]) -> Shape | None:
    """Return the shape of what is folded along whole axes."""
    x, read = operands[0], _numbers_of(operands, 1)
    if x is None or read is None or 0 in x.shape:
        return None
    axes = [int(axis) for axis in read] or list(node.attributes.get_ints("axes", ()))
    if not axes or any(not -x.dim() <= axis < x.dim() for axis in axes):
        return None
    folded, keeps = {axis % x.dim() for axis in axes}, node.attributes.get_int("keepdims", 1) != 0
    if len(folded) < len(axes):
        return None
    return tuple(1 if axis in folded else n for axis, n in enumerate(x.shape) if keeps or axis not in folded)


def _resized(node: ir.Node, operands: Sequence[Tensor | None]) -> Shape | None:
    """Return the shape of an interpolated picture that names a factor or a size for each axis."""
    x, scales, sizes = operands[0], _numbers_of(operands, 2), _numbers_of(operands, 3)
    if x is None or x.dim() != _PICTURE or len(operands) < 3 or scales is None or sizes is None or 0 in x.shape:
        return None
    said = node.attributes.get_string
    if said("mode", "nearest") not in _MODES or said("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    if node.attributes.get_ints("axes", ()) or len(sizes or scales) != x.dim() or (sizes and scales):
        return None
    found = [int(size) for size in sizes] or [int(n * by) for n, by in zip(x.shape, scales, strict=True)]
    return tuple(found) if min(found) > 0 and tuple(found[:2]) == tuple(x.shape[:2]) else None


_PICTURE, _MODES = 4, frozenset({"nearest", "linear"})

_BY_NUMBERS: Mapping[str, Callable[[ir.Node, Sequence[Tensor | None]], Shape | None]] = {
    "ReduceMax": _averaged,
    "ReduceMean": _averaged,
    "ReduceMin": _averaged,
    "ReduceSum": _averaged,
    "Resize": _resized,
}
