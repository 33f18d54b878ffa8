"""Which linear map an operator is of its first input that is no constant.

Conv, ConvTranspose, AveragePool, a Pad of zeros, a Slice at its ends, MatMul and Gemm by a constant, a bias Add, and
the affine maps that are left (:mod:`normdeploy.rewrite.affine`). A value has its channels along axis 1, with positions
behind it, or along its last axis; an affine map or a sum may be read both ways.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import Reader, constant_tensor, is_constant, parts64, tensor64
from normdeploy.graph.linear_view import LINEAR, Form, linear_of
from normdeploy.graph.operator_inputs import required, shape_of
from normdeploy.graph.traits import is_standard, kind_of
from normdeploy.rewrite.affine.affine_node import affine_map, is_affine
from normdeploy.rewrite.affine.constant import along
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.branches.linear_map import LinearMap
from normdeploy.rewrite.branches.node_window import window_of_cut, window_of_pad, window_of_spread, window_of_taps
from normdeploy.rewrite.branches.window import Apart, Sizes, Window


def has_weights(node: ir.Node) -> bool:
    """Tell whether an operator has weights; one of those that are merged lends the new one its name."""
    return kind_of(node) in LINEAR


class Frame(enum.Enum):
    """Where a value has its channels."""

    IMAGE = "along axis 1, with positions behind it"
    ROWS = "along the last axis"

    def domain(self, value: ir.Value) -> tuple[int, Sizes] | None:
        """Return the number of channels and the spatial dimensions of a value; None where it has no known number."""
        shape = value.shape
        if shape is None or shape.rank() < (3 if self is Frame.IMAGE else 2):
            return None
        channels = shape[1] if self is Frame.IMAGE else shape[shape.rank() - 1]
        behind = shape.dims[2:] if self is Frame.IMAGE else ()
        sizes = tuple(dim if isinstance(dim, int) else None for dim in behind)
        return (channels, sizes) if isinstance(channels, int) and channels > 0 else None

    def axis(self, rank: int) -> int:
        """Return the axis of the channels."""
        return 1 if self is Frame.IMAGE else rank - 1


@dataclass(frozen=True, eq=False)
class Reading:
    """What some operators compute of one value.

    Args:
        source: the value.
        nodes: the operators, source first.
        map: what they do.
    """

    source: ir.Value
    nodes: tuple[ir.Node, ...]
    map: LinearMap

    @property
    def weighted(self) -> tuple[ir.Node, ...]:
        """The operators with weights among them."""
        return tuple(node for node in self.nodes if has_weights(node))

    def __matmul__(self, first: Reading) -> Reading:
        """Return what both compute, one after the other."""
        return Reading(first.source, (*first.nodes, *self.nodes), self.map @ first.map)


def itself(value: ir.Value, frame: Frame) -> Reading | None:
    """Return a value as a map of itself."""
    domain = frame.domain(value)
    return None if domain is None else Reading(value, (), LinearMap.identity(*domain))


def step(node: ir.Node, frame: Frame) -> Reading | None:
    """Return what one operator computes; None if it is not linear with constant weights.

    Raises:
        Apart: it is linear, but no map of this kind.
    """
    if is_affine(node):
        return _affine(node, frame)
    if not is_standard(node):
        return None
    found = _STEPS.get((node.op_type, frame))
    return None if found is None else found(node)


def may_be_map(node: ir.Node | None) -> bool:
    """Tell whether an operator is of a kind that :func:`step` reads, which takes no look at its weights."""
    return node is not None and (is_affine(node) or is_standard(node, *_KINDS))


def _affine(node: ir.Node, frame: Frame) -> Reading | None:
    source, mapping = required(node, 0), affine_map(node)
    axis, domain = frame.axis(mapping.rank), frame.domain(source)
    if domain is None or not mapping.axes <= {axis}:
        return None
    channels, sizes = domain
    scale, shift = along(mapping.scale, axis, channels), along(mapping.shift, axis, channels)
    bias = None if mapping.no_shift else lambda: shift
    return Reading(source, (node,), LinearMap.diagonal(scale, bias, window=Window.point(len(sizes)), sizes=sizes))


def _convolution(node: ir.Node) -> Reading | None:
    linear = linear_of(node)
    if linear is None:
        return None
    source, weight, bias = required(node, 0), required(node, 1), linear.value(linear.bias)
    kernel, shift, domain = constant_tensor(weight), constant_tensor(bias), Frame.IMAGE.domain(source)
    if not is_constant(weight) or kernel is None or (bias is not None and not is_constant(bias)):
        return None
    shape, spreads, group = shape_of(weight), linear.form is Form.TRANSPOSED, linear.groups
    sizes = domain[1] if domain is not None else (None,) * (len(shape) - 2)
    window = (window_of_spread if spreads else window_of_taps)(node, shape[2:], sizes)
    parts = None if spreads else parts64(kernel)
    in_rows = parts.open if parts is not None and parts.axis == 0 else None

    def whole() -> Reader:
        array = by_outputs(tensor64(kernel), group) if spreads else tensor64(kernel)
        return lambda start, stop: np.array(array[start:stop])

    if shift is not None and not tensor64(shift).any():
        shift = None  # exporters write a bias of zeros where the module has none
    read = None if shift is None else lambda: tensor64(shift)
    outs, ins = (shape[1] * group, shape[0]) if spreads else (shape[0], shape[1] * group)
    mapping = LinearMap(outs, ins, group, window, sizes, in_rows or whole, read, piecewise=in_rows is not None)
    return Reading(source, (node,), mapping if parts is None else replace(mapping, bound=lambda: parts.bound(shape)))


def by_outputs(kernel: Floats, group: int) -> Floats:
    """Return a kernel stored by inputs, [I, O/g, taps], as one by outputs, [O, I/g, taps]; and the other way round."""
    first, second, *taps = kernel.shape
    apart = kernel.reshape(group, first // group, second, *taps)
    return apart.swapaxes(1, 2).reshape(group * second, first // group, *taps)


def _average(node: ir.Node) -> Reading | None:
    source = required(node, 0)
    domain, size = Frame.IMAGE.domain(source), tuple(node.attributes.get_ints("kernel_shape", ()))
    if domain is None:
        return None
    channels, sizes = domain
    window = window_of_taps(node, size, sizes)
    if window.is_padded and not node.attributes.get_int("count_include_pad", 0):
        raise Apart(
            f"{describe(node)} divides by fewer numbers at the border, which one kernel cannot; count the padding "
            "(count_include_pad=True)"
        )
    taps = float(np.prod(size, dtype=np.int64))
    return Reading(source, (node,), LinearMap.diagonal(np.full(channels, 1 / taps), window=window, sizes=sizes))


def _alone(node: ir.Node, window_of: Callable[[ir.Node, int, Sizes], Window | None]) -> Reading | None:
    """Return what widens or cuts its input and changes no number in it."""
    source, domain = required(node, 0), Frame.IMAGE.domain(required(node, 0))
    window = None if domain is None else window_of(node, *domain)
    if domain is None or window is None:
        return None
    return Reading(source, (node,), LinearMap.diagonal(np.ones(domain[0]), window=window, sizes=domain[1]))


def _product(node: ir.Node) -> Reading | None:
    linear = linear_of(node)
    if linear is None or linear.turned_data or linear.turned_result:
        return None
    source, weight, addend = required(node, 0), required(node, 1), linear.value(linear.bias)
    tensor = constant_tensor(weight)
    if not is_constant(weight) or tensor is None or len(shape_of(weight)) != 2:
        return None
    if source.shape is None or source.shape.rank() < 2:
        return None
    alpha, beta, turned = linear.alpha, linear.beta, linear.turned_weight
    outs, ins = shape_of(weight) if turned else shape_of(weight)[::-1]
    bias = None if addend is None else vector(addend, outs)
    if addend is not None and bias is None:
        return None

    def load() -> Reader:
        array = tensor64(tensor)
        rows = array if turned else array.T
        return lambda start, stop: alpha * rows[start:stop]

    shift = None if bias is None else lambda: beta * bias()
    mapping = LinearMap(outs, ins, 1, Window.point(0), (), load, shift, piecewise=False)
    return Reading(source, (node,), mapping)


def _bias(node: ir.Node) -> Reading | None:
    for index in (0, 1):
        source, constant = required(node, index), required(node, 1 - index)
        domain = Frame.ROWS.domain(source)
        if domain is None or source.shape is None or constant.shape is None:
            continue
        shift = vector(constant, domain[0])
        if shift is not None and constant.shape.rank() <= source.shape.rank():
            mapping = LinearMap.diagonal(np.ones(domain[0]), shift, window=Window.point(0), sizes=())
            return Reading(source, (node,), mapping)
    return None


def vector(value: ir.Value, channels: int) -> Callable[[], Floats] | None:
    """Return a constant that varies along the last axis only as a vector of ``channels``; None if it is not one."""
    tensor = constant_tensor(value)
    if tensor is None or not is_constant(value):
        return None
    shape = shape_of(value)
    if any(dim != 1 for dim in shape[:-1]) or (shape and shape[-1] not in (1, channels)):
        return None
    return lambda: np.array(np.broadcast_to(tensor64(tensor).reshape(-1), (channels,)))


_STEPS: dict[tuple[str, Frame], Callable[[ir.Node], Reading | None]] = {
    ("Conv", Frame.IMAGE): _convolution,
    ("ConvTranspose", Frame.IMAGE): _convolution,
    ("AveragePool", Frame.IMAGE): _average,
    ("Pad", Frame.IMAGE): partial(_alone, window_of=window_of_pad),
    ("Slice", Frame.IMAGE): partial(_alone, window_of=window_of_cut),
    ("MatMul", Frame.ROWS): _product,
    ("Gemm", Frame.ROWS): _product,
    ("Add", Frame.ROWS): _bias,
}

_KINDS = tuple(dict.fromkeys(kind for kind, _ in _STEPS))
