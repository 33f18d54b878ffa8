"""A linear spatial map of one value: what a chain of convolutions, average pools and affine maps computes.

y = K * x + b, with a kernel K [O, I/g, taps...] over a :class:`Window`, and a bias b [O]. A Conv is one; an affine map
s * x + t is the kernel diag(s) of one tap, its own group per channel, with bias t; an average pool of n taps is the
kernel 1/n; the value itself is the kernel 1. Terms compose and add up in float64, on demand, a few output channels at a
time where the kernels of which they are made can be read so.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.graph import Parts, Reader, constant_tensor, parts64, tensor64
from normdeploy.rewrite.affine import cost
from normdeploy.rewrite.affine.constant import (
    along,
    dtype_of,
    fits,
    integer,
    ints,
    is_constant,
    optional,
    required,
    shape_of,
)
from normdeploy.rewrite.affine.map import Array
from normdeploy.rewrite.affine.node import affine_map, is_affine
from normdeploy.rewrite.branches import window as windows
from normdeploy.rewrite.branches.window import Window

Place = tuple[Any, ...]
"""An index of mixed integers, slices and an ellipsis."""


@dataclass(frozen=True, eq=False)
class Term:
    """A linear spatial map of ``source``.

    Args:
        source: x, of shape [N, I, spatial...].
        nodes: the operators that compute it now, source first.
        window: taps, stride, dilation, padding.
        outs: O.
        ins: I.
        group: g; I/g inputs per output.
        open: loads what K is made of; returns how to compute K[start:stop], float64 [stop - start, I/g, taps...].
        bias: computes b as float64 [O]; None for zero.
        piecewise: whether some rows cost less than all of them.
    """

    source: ir.Value
    nodes: tuple[ir.Node, ...]
    window: Window
    outs: int
    ins: int
    group: int
    open: Callable[[], Reader]
    bias: Callable[[], Array] | None
    piecewise: bool = True

    def kernel(self) -> Array:
        """Return K as a whole."""
        return self.open()(0, self.outs)

    @property
    def parts(self) -> Parts | None:
        """K in pieces; None where it is computed as a whole only."""
        return Parts(0, self.open) if self.piecewise else None

    @property
    def is_diagonal(self) -> bool:
        """Whether each output channel reads the input channel of the same number only."""
        return self.group == self.ins == self.outs

    @property
    def convolutions(self) -> tuple[ir.Node, ...]:
        """The Conv nodes among its operators."""
        return tuple(node for node in self.nodes if node.op_type == "Conv")


def identity(value: ir.Value) -> Term | None:
    """Return x itself as a term; None if the number of channels or the rank is not known."""
    shape = value.shape
    if shape is None or shape.rank() < 3 or not isinstance(shape[1], int):
        return None
    channels, rank = shape[1], shape.rank() - 2
    window = Window.point(rank)
    return Term(
        value,
        (),
        window,
        channels,
        channels,
        channels,
        lambda: lambda start, stop: np.ones((stop - start, 1, *window.size)),
        None,
    )


def of_node(node: ir.Node) -> Term | None:
    """Return what one operator computes of its first input; None if it is not such a map with constant weights."""
    if is_affine(node):
        return _affine(node)
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Conv":
        return _convolution(node)
    return _average(node) if node.op_type == "AveragePool" else None


def _convolution(node: ir.Node) -> Term | None:
    source, weight, bias = required(node, 0), required(node, 1), optional(node, 2)
    if not is_constant(weight) or (bias is not None and not is_constant(bias)):
        return None
    shape = shape_of(weight)
    window = windows.window_of(node, shape[2:])
    group = integer(node, "group", 1)
    kernel, shift = constant_tensor(weight), constant_tensor(bias)
    if window is None or kernel is None:
        return None
    parts = parts64(kernel)
    in_rows = parts.open if parts is not None and parts.axis == 0 else None
    if shift is not None and not tensor64(shift).any():
        shift = None  # exporters write a bias of zeros where the module has none
    return Term(
        source,
        (node,),
        window,
        shape[0],
        shape[1] * group,
        group,
        in_rows or (lambda: lambda start, stop: tensor64(kernel)[start:stop]),
        None if shift is None else lambda: tensor64(shift),
        in_rows is not None,
    )


def _affine(node: ir.Node) -> Term | None:
    source = required(node, 0)
    plain = identity(source)
    mapping = affine_map(node)
    if plain is None or not mapping.axes <= {1}:
        return None
    scale, shift = along(mapping.scale, 1, plain.ins), along(mapping.shift, 1, plain.ins)
    return Term(
        source,
        (node,),
        plain.window,
        plain.outs,
        plain.ins,
        plain.group,
        lambda: lambda start, stop: np.array(scale[start:stop]).reshape(-1, 1, *plain.window.size),
        None if mapping.no_shift else lambda: shift,
    )


def _average(node: ir.Node) -> Term | None:
    source = required(node, 0)
    plain = identity(source)
    size = tuple(ints(node, "kernel_shape", ()))
    window = windows.window_of(node, size)
    if plain is None or window is None or not windows.is_exact_average(node):
        return None
    return Term(
        source,
        (node,),
        window,
        plain.outs,
        plain.ins,
        plain.group,
        lambda: lambda start, stop: np.full((stop - start, 1, *size), 1.0 / math.prod(size)),
        None,
    )


def compose(first: Term, second: Term) -> Term | None:
    """Return ``second`` after ``first`` as one term, or None.

    With z = A x + a and y = B z + b: y = (B A) x + (b + B a), where kernels convolve and channels multiply. Legal where

    1. ``second`` reads no zero padding, or ``first`` is one unpadded tap with a = 0 (otherwise the zeros that B reads
       around z are not what A makes of zeros around x);
    2. one window can read the same inputs (strides and dilations agree, or one of the two has a single tap);
    3. the channel groups are the same on both sides, or one side is diagonal.
    """
    if second.window.is_padded and not (first.window.is_point and first.bias is None):
        return None
    window = windows.compose(first.window, second.window)
    if window is None or not (first.is_diagonal or second.is_diagonal or first.group == second.group):
        return None
    group = second.group if first.is_diagonal else first.group

    def load() -> Reader:
        a, b = first.open(), second.open()
        whole = functools.partial(a, 0, first.outs)
        blocked = group > 1 and not (first.is_diagonal or second.is_diagonal)

        def rows(start: int, stop: int) -> Array:
            if blocked and (start, stop) != (0, second.outs):
                return rows(0, second.outs)[start:stop]
            inner = a(start, stop) if second.is_diagonal else whole()
            if first.is_diagonal and not second.is_diagonal:
                inner = _spread(inner[:, 0], group, second.outs)[start:stop]
            return _convolved(inner, b(start, stop), group, window.size, (first.is_diagonal, second.is_diagonal))

        return rows

    def bias() -> Array:
        total = np.zeros(second.outs) if second.bias is None else second.bias()
        if first.bias is None:
            return total
        inputs = first.bias().reshape(second.group, 1, -1)
        grouped = _tap_sums(second).reshape(second.group, second.outs // second.group, -1)
        return np.asarray(total + (grouped * inputs).sum(axis=2).reshape(-1))

    return Term(
        first.source,
        (*first.nodes, *second.nodes),
        window,
        second.outs,
        first.ins,
        group,
        load,
        None if first.bias is None and second.bias is None else bias,
        (first.is_diagonal or second.is_diagonal) and first.piecewise and second.piecewise,
    )


def _tap_sums(term: Term) -> Array:
    """Return K summed over its taps, [O, I/g]."""
    taps = tuple(range(2, 2 + len(term.window.size)))
    parts = term.parts
    if parts is None:
        return np.asarray(term.kernel().sum(axis=taps))
    shape = (term.outs, term.ins // term.group, *term.window.size)
    return np.concatenate([piece.sum(axis=taps) for _, _, piece in parts.pieces(shape)])


def _convolved(a: Array, b: Array, group: int, size: tuple[int, ...], diagonal: tuple[bool, bool]) -> Array:
    """Return the kernel of b after a.

    Args:
        a: the inner kernel; the same rows as b's where b is diagonal; where a is, spread over b's [O, I/g].
        b: some rows of the outer kernel.
        group: the result's groups.
        size: the result's taps.
        diagonal: whether a and b are diagonal.
    """
    inputs = a.shape[1] if diagonal[1] or not diagonal[0] else b.shape[1]
    result = np.zeros((len(b), inputs, *size))
    taps, reach = b.shape[2:], a.shape[2:]
    spatial = (1,) * len(taps)
    for tap in itertools.product(*map(range, taps)):
        at_tap: Place = (..., *tap)
        matrix = b[at_tap]
        place: Place = (..., *(slice(at, at + n) for at, n in zip(tap, reach, strict=True)))
        if diagonal[1]:
            result[place] += matrix.reshape(-1, 1, *spatial) * a
        elif diagonal[0]:
            result[place] += matrix.reshape(*matrix.shape, *spatial) * a
        else:
            grouped = matrix.reshape(group, len(b) // group, -1)
            columns = a.reshape(group, len(a) // group, -1)
            result[place] += np.matmul(grouped, columns).reshape(len(b), *a.shape[1:])
    return result


def _spread(channels: Array, group: int, outs: int) -> Array:
    """Spread per-input-channel arrays [I, ...] over [O, I/g, ...]: entry (o, j) is input channel j of o's group."""
    grouped = channels.reshape(group, 1, channels.shape[0] // group, *channels.shape[1:])
    wide = np.broadcast_to(grouped, (group, outs // group, *grouped.shape[2:]))
    return wide.reshape(outs, *grouped.shape[2:])


def add(terms: Sequence[tuple[Term, float]]) -> Term | None:
    """Return the sum of signed terms of one source as one term, or None.

    Kernels are padded with zeros to the union of their windows and added; a diagonal term takes the group of the
    others. Legal where the outputs have one size whatever the input's (:func:`.window.union`), and one number of
    channels and one group.
    """
    head = terms[0][0]
    whole = windows.union([term.window for term, _ in terms])
    groups = {term.group for term, _ in terms if not term.is_diagonal}
    if whole is None or len(groups) > 1 or any((term.outs, term.ins) != (head.outs, head.ins) for term, _ in terms):
        return None
    group = groups.pop() if groups else head.ins

    def load() -> Reader:
        readers = [term.open() for term, _ in terms]

        def rows(start: int, stop: int) -> Array:
            total = np.zeros((stop - start, head.ins // group, *whole.size))
            for (term, sign), read in zip(terms, readers, strict=True):
                at = windows.offset(term.window, whole)
                place: Place = (..., *(slice(first, first + n) for first, n in zip(at, term.window.size, strict=True)))
                own = read(start, stop)
                if term.is_diagonal and group != term.ins:
                    for row in range(start, stop):
                        total[row - start, row % (term.ins // group)][place] += sign * own[row - start, 0]
                else:
                    part = total[place]
                    (np.add if sign > 0 else np.subtract)(part, own, out=part)
            return total

        return rows

    def bias() -> Array:
        total = np.zeros(head.outs)
        for term, sign in terms:
            if term.bias is not None:
                total = total + sign * term.bias()
        return total

    return Term(
        head.source,
        tuple(node for term, _ in terms for node in term.nodes),
        whole,
        head.outs,
        head.ins,
        group,
        load,
        None if all(term.bias is None for term, _ in terms) else bias,
        all(term.piecewise for term, _ in terms),
    )


def storable(term: Term, weight: ir.Value) -> bool:
    """Tell whether kernel and bias fit the dtype of ``weight`` (only float16 is narrow enough to ask)."""
    dtype = dtype_of(weight)
    return fits(dtype, term.kernel) and (term.bias is None or fits(dtype, term.bias))


def cost_now(term: Term) -> float:
    """Return what the term's operators cost as they are, each result written and read once."""
    total = 0.0
    for node in term.nodes:
        total += cost.pass_bytes(node.outputs[0])
        if node.op_type == "Conv":
            shape = shape_of(required(node, 1))
            total += cost.MULTIPLY_ADD * cost.elements(node.outputs[0]) * math.prod(shape[1:])
    return total


def cost_as_one(term: Term, result: ir.Value) -> float:
    """Return what the term costs as a single Conv that makes ``result``."""
    taps = math.prod(term.window.size) * term.ins // term.group
    return cost.pass_bytes(result) + cost.MULTIPLY_ADD * cost.elements(result) * taps
