"""Made-up inputs on which one operator is checked: as few values as show what its gauges tell apart.

Along an axis on which an operator does not act, and along which no gauge and no constant varies, two positions are as
good as all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import FLOATS, constant64, constant_tensor
from normdeploy.graph.dynamic_dims import names_of, size_at
from normdeploy.graph.einsum_letters import letters_of
from normdeploy.graph.linear_view import Form, Linear, linear_of
from normdeploy.graph.operator_inputs import optional, required
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.weight import fixed_weight
from normdeploy.rewrite.affine.axes import dims_of, groups
from normdeploy.rewrite.gauge.checks.scattered_inputs import gathered_feeds, places_read, scattered_feeds
from normdeploy.rewrite.gauge.operator_edit import Solution
from normdeploy.rewrite.gauge.rules import norms
from normdeploy.rewrite.gauge.rules.moves import ACTS, padded
from normdeploy.rewrite.rewrite_context import RewriteContext

Draw = Callable[[RewriteContext, list[ir.Node], list[ir.Value]], dict[ir.Value, Tensor]]
"""Makes up inputs; leaves out what it has none for."""

_FEW = 2
"""Positions that stand for all that are treated alike."""

_FEW_AXES = 2
"""Axes along which an operator that looks at one place at a time sees so many: four places tell as much as more."""

_PROBE_SIZES = (2, 3, 5, 4, 6)
"""Sizes of dynamic dimensions, one after the other."""


def draws(at: Solution) -> tuple[Draw, ...]:
    """Return the ways to make up inputs, in the order in which they are tried."""
    return (
        _few_feeds(at),
        _reshape_feeds,
        _product_feeds(at),
        gathered_feeds,
        scattered_feeds,
        partial(_sized_feeds, at, cut=True),
        partial(_sized_feeds, at),
        partial(_sized_feeds, at, alike=True),
    )


def _shapes_that_matter(at: Solution, node: ir.Node) -> list[Sequence[int]] | None:
    """Return what tells positions apart, aligned at the last axis; None for an operator that acts on all of them."""
    acting = (ACTS | {"Pad": padded}).get(node.op_type) if is_standard(node) else None
    moving = acting is not None or has(node, Trait.KEEPS_ORDER)
    if not moving and not has(node, Trait.POINTWISE):  # of several operands these are aligned at the last axis
        return None
    dims = dims_of(required(node, 0))
    if dims is None:
        return None
    found: list[Sequence[int]] = []
    acts = None if acting is None else acting(node, len(dims))
    if acts is not None:
        if not acts.known or not all(isinstance(dims[axis], int) for axis in acts.axes):
            return None
        found.append([2 if axis in acts.axes else 1 for axis in range(len(dims))])
    read = range(len(node.inputs)) if not moving else (0,) if acts is None else acts.operands
    for index in read:
        value = node.inputs[index]
        tensor = constant_tensor(value)
        gauge = None if value is None else at.ties.of.get(value)
        if tensor is not None:
            found.append(tensor.shape.numpy())
        elif gauge is not None:
            found.append(gauge.cells)
    if not moving:
        found += [at.ties.of[value].cells for value in node.outputs if value in at.ties.of]
    return found


def _few_feeds(at: Solution) -> Draw:
    """Return how to draw few values for an operator that treats the positions along some axes alike."""

    def draw(context: RewriteContext, nodes: list[ir.Node], inputs: list[ir.Value]) -> dict[ir.Value, Tensor]:
        if len(nodes) > 1 or any(value.shape is None or value.dtype not in FLOATS for value in inputs):
            return {}
        if is_standard(nodes[0], "Reshape"):  # of fewer values its target would group others
            return {}
        shapes = _shapes_that_matter(at, nodes[0])
        if shapes is None or any(value not in at.ties.of for value in inputs):
            return {}
        rank = max((value.shape.rank() for value in inputs if value.shape is not None), default=0)
        turned = [tuple(shape)[::-1] for shape in ((1,) * rank, *shapes)]
        widest = [max(sizes) for sizes in zip_longest(*turned, fillvalue=1)][::-1]
        free = [axis for axis in range(-len(widest), 0) if widest[axis] == 1]
        once = free[:-_FEW_AXES] if has(nodes[0], Trait.POINTWISE) else []
        sizes: dict[str, int] = {}
        feeds: dict[ir.Value, Tensor] = {}
        for value in inputs:
            dims = []
            for axis, dim in enumerate((own := value.shape or ()), -len(own)):
                few = 1 if axis in once else _FEW
                if isinstance(dim, int):
                    dims.append(min(dim, few) if axis in free else dim)
                elif axis not in free:  # beside a constant of that size
                    dims.append(widest[axis])
                else:
                    dims.append(sizes.setdefault(dim.value or f"{value.name}.{axis}", few))
            feeds[value] = context.normal(dims)
        return feeds

    return draw


def _reshape_feeds(context: RewriteContext, nodes: list[ir.Node], inputs: list[ir.Value]) -> dict[ir.Value, Tensor]:
    """Draw the operand of a Reshape, and a target that fits where it is computed: group by group."""
    node = nodes[0]
    if len(nodes) > 1 or node.op_type != "Reshape" or inputs[0] is not node.inputs[0]:
        return {}
    source, target = dims_of(inputs[0]), dims_of(node.outputs[0])
    if source is None or target is None:
        return {}
    sizes = [dim if isinstance(dim, int) else 2 for dim in source]
    result = [dim if isinstance(dim, int) else 0 for dim in target]
    for inner, outer in groups(source, target):
        have = math.prod(sizes[axis] for axis in inner)
        wanted = math.prod(result[axis] for axis in outer if result[axis])
        loose = [axis for axis in inner if not isinstance(source[axis], int)]
        if loose and have % wanted:
            factor = wanted // math.gcd(have, wanted)
            sizes[loose[0]] *= factor
            have *= factor
        unknown = [axis for axis in outer if not result[axis]]
        for axis in unknown:
            result[axis] = have // wanted if axis == unknown[-1] else 1
    feeds = {inputs[0]: torch.from_numpy(context.rng.random(sizes))}
    if len(inputs) > 1:
        feeds[inputs[1]] = torch.tensor(result, dtype=torch.int64)
    return feeds


def _product_feeds(at: Solution) -> Draw:
    """Return how to draw the operands of a product of computed values: an axis has one size in all that have it."""

    def draw(context: RewriteContext, nodes: list[ir.Node], inputs: list[ir.Value]) -> dict[ir.Value, Tensor]:
        node = nodes[0]
        if len(nodes) > 1 or not is_standard(node, "MatMul", "Einsum") or set(inputs) != set(node.inputs):
            return {}
        sides = [dims_of(value) or () for value in inputs]
        letters = letters_of(node, [len(dims_of(required(node, at)) or ()) for at in range(len(node.inputs))])
        if letters is None or any(value not in at.ties.of for value in inputs):
            return {}
        terms = dict(zip(node.inputs, letters[0], strict=True))
        sizes: dict[str, int] = {}
        for value, dims in zip(inputs, sides, strict=True):
            for letter, dim, cells in zip(terms[value], dims, at.ties.of[value].cells, strict=True):
                few = min(dim, _FEW) if isinstance(dim, int) else _FEW
                sizes[letter] = max(sizes.get(letter, 1), few, cells)
        return {
            value: context.normal(
                [1 if dim == 1 else sizes[letter] for letter, dim in zip(terms[value], dims, strict=True)]
            )
            for value, dims in zip(inputs, sides, strict=True)
        }

    return draw


def _sizes_of_gauges(at: Solution, values: Sequence[ir.Value]) -> dict[str, int]:
    """Return the sizes of dynamic dimensions along which a gauge varies: an axis is as long as its gauge has cells."""
    return {
        dim.value: cells
        for value in values
        if value in at.ties.of
        for dim, cells in zip(value.shape or (), at.ties.of[value].cells, strict=True)
        if cells > 1 and isinstance(dim, ir.SymbolicDim) and dim.value is not None
    }


def _sized_feeds(
    at: Solution,
    context: RewriteContext,
    nodes: list[ir.Node],
    inputs: list[ir.Value],
    *,
    cut: bool = False,
    alike: bool = False,
) -> dict[ir.Value, Tensor]:
    """Draw inputs of their static sizes, dynamic ones small, the same symbol the same size (``alike``: all of them).

    With ``cut`` a window sees one sample, just large enough for a border, an interior and every tap, and a product two
    rows; a shape that is asked for is that of the result.
    """
    node = next((node for node in nodes if node.op_type != "DequantizeLinear"), nodes[-1])
    linear = linear_of(node)
    reach, beside = _reach(node, linear)
    windowed = cut and (has(node, Trait.POOLS) or (linear is not None and linear.form is Form.CONVOLUTION))
    rowwise = cut and len(inputs) == 1 and linear is not None and linear.form is Form.PRODUCT
    sizes = _sizes_of_gauges(at, [*inputs, *nodes[-1].outputs])
    feeds: dict[ir.Value, Tensor] = {}
    for value in inputs:
        if value is _asked_shape(node):
            target = node.outputs[0]
            dims = [_size(dim, target, axis, sizes, reach) for axis, dim in enumerate(target.shape or ())]
            data = feeds.get(required(node, 0))
            if data is not None and is_standard(node, "Expand"):  # what it has stays, whatever it is called behind it
                own = (*(1,) * (len(dims) - data.dim()), *data.shape)
                dims = [new if size == 1 else size for size, new in zip(own, dims, strict=True)]
            feeds[value] = torch.tensor(dims, dtype=torch.int64)
            continue
        if alike:
            dims = [dim if isinstance(dim, int) else sizes.get(dim.value or "", _FEW) for dim in value.shape or ()]
        else:
            dims = [_size(dim, value, axis, sizes, reach) for axis, dim in enumerate(value.shape or ())]
        if value.dtype is not None and value.dtype not in FLOATS:
            feeds[value] = context.drawn(value.dtype, dims)
            continue
        weight = None if linear is None or value is not linear.value(linear.data) else linear.value(linear.weight)
        shape = None if (fixed := fixed_weight(weight)) is None else fixed.shape
        if linear is not None and shape is not None and dims:  # what is summed over, where its size is not known
            summed = shape[linear.input_axis(len(shape))]
            dims[linear.data_axis(len(dims))] = summed * (linear.groups if linear.form is Form.CONVOLUTION else 1)
        if has(node, Trait.NORMALIZES) and value is node.inputs[0]:
            for axis, size in norms.spanned_sizes(node, len(dims)).items():
                dims[axis] = size
        parts = constant64(optional(node, 1)) if is_standard(node, "Split") else None
        if parts is not None:
            dims[node.attributes.get_int("axis", 0) % len(dims)] = int(parts.sum())
        if (
            windowed and value is node.inputs[0]
        ):  # along the first spatial axis an interior too, along the others both borders
            few = (1, dims[1], reach, *(beside for _ in dims[3:]))
            dims = [min(size, most) for size, most in zip(dims, few, strict=True)]
        if rowwise and len(dims) > 1 and linear is not None and not linear.turned_data:
            dims = [*(1 for _ in dims[:-2]), min(dims[-2], 2), dims[-1]]
        if value is node.inputs[0]:
            for axis, least in places_read(node, len(dims)).items():
                dims[axis] = max(dims[axis], least)
        cells = at.ties.of[value].cells if value in at.ties.of else ()
        dims = [most if most > 1 else size for size, most in zip(dims, cells or (1,) * len(dims), strict=True)]
        feeds[value] = context.normal(dims)
    return feeds


def _asked_shape(node: ir.Node) -> ir.Value | None:
    """Return the operand that says what shape the result has; None where none does."""
    if is_standard(node, "ConstantOfShape"):
        return required(node, 0)
    if is_standard(node, "Resize"):
        return optional(node, 3)
    return optional(node, 1) if has(node, Trait.SHAPED) else None


def _size(dim: int | ir.SymbolicDim, value: ir.Value, axis: int, sizes: dict[str, int], reach: int) -> int:
    if isinstance(dim, int):
        return dim
    if dim.value is None:
        return sizes.setdefault(f"{value.name}.{axis}", reach + 3 if axis >= 2 else 2)
    symbols = names_of(dim)
    for symbol in symbols:
        spatial = axis >= 2 and reach > 3
        sizes.setdefault(symbol, reach + 3 + 2 * len(sizes) if spatial else _PROBE_SIZES[len(sizes) % 5])
    if symbols:
        found = size_at(dim, sizes)
        if found is not None and found > 0:
            return found
    return sizes.setdefault(str(dim.value), _PROBE_SIZES[len(sizes) % 5])


def _reach(node: ir.Node, linear: Linear | None) -> tuple[int, int]:
    """Return a spatial size into which an operator's window fits, and no border hides another; one for both borders."""
    kernel = node.attributes.get_ints("kernel_shape", ())
    weight = None if linear is None or linear.form is Form.PRODUCT else fixed_weight(linear.value(linear.weight))
    if not kernel and weight is not None:
        kernel = list(weight.shape[2:])
    dilations = node.attributes.get_ints("dilations", (1,) * len(kernel))
    extent = max([(size - 1) * dilation for size, dilation in zip(kernel, dilations, strict=False)], default=0)
    if is_standard(node, "Pad"):
        widths = constant64(optional(node, 1))
        extent += 0 if widths is None else int(np.abs(widths).max(initial=0))
    stride = 1 if is_standard(node, "ConvTranspose") else max(node.attributes.get_ints("strides", ()), default=1)
    start = 1 if min(node.attributes.get_ints("pads", ()), default=0) > 0 else 2
    reach = max(start + extent + stride - 1, 2)
    return reach, max(reach - 1, 2) if extent else 1
