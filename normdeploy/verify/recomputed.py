"""Compare a file's graph, number by number, with the graph recomputed from the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.graph import FLOATS, constant_tensor, module_path, tensor64
from normdeploy.verify.criteria import SMALLEST_NORMAL, UNIT_ROUNDOFF
from normdeploy.verify.values import Array

_NAMES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.DOUBLE: "float64",
}
_CHUNK = 1 << 20
_ATTRIBUTE_ROUNDOFF = 2.0**-23
"""Float attributes are stored as float32 and read back as Python floats."""


@dataclass(frozen=True)
class Difference:
    """One stored number or attribute that is not the recomputed one.

    Args:
        where: module path of the node that reads it. node: its name. text: a sentence.
    """

    where: str
    node: str
    text: str


@dataclass
class Comparison:
    """The result of :func:`compare_graphs`.

    Args:
        same_structure: the same operators, wired alike, in the same order.
        reason: why not. tensors: how many stored tensors were compared. problems: what differs.
    """

    same_structure: bool
    reason: str = ""
    tensors: int = 0
    problems: list[Difference] = field(default_factory=list)


def compare_graphs(recomputed: ir.Model, file: ir.Model) -> Comparison:
    """Compare two graphs of one origin: operators and wiring first, then every attribute and stored number.

    Args:
        recomputed: weights unrounded where the rewrite room left them so.
        file: as read from disk.

    Returns:
        A Comparison; its problems are meaningful only with ``same_structure``.
    """
    comparison = Comparison(True)
    reason = _compare_nodes(comparison, recomputed.graph, file.graph, ({}, {}))
    return Comparison(False, reason) if reason else comparison


Numbers = tuple[dict[ir.Value, int], dict[ir.Value, int]]
"""Computed values of both graphs, numbered in the order in which they appear."""


def _compare_nodes(comparison: Comparison, recomputed: ir.Graph, file: ir.Graph, numbers: Numbers) -> str:
    """Compare two graphs, or two bodies of an operator, node by node; return how their structure differs."""
    ours, theirs = list(recomputed), list(file)
    if len(ours) != len(theirs):
        return f"the file has {len(theirs)} nodes, the recomputed graph {len(ours)}"
    if len(recomputed.inputs) != len(file.inputs):
        return "the inputs are others than recomputed"
    _number(numbers, recomputed.inputs, file.inputs)
    for a, b in zip(ours, theirs, strict=True):
        kind_a, kind_b = (a.domain, a.op_type), (b.domain, b.op_type)
        if kind_a != kind_b or len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs):
            return f"node {b.name!r} is {b.op_type}; recomputed, {a.name!r} is {a.op_type}"
        for x, y in zip(a.inputs, b.inputs, strict=True):
            if not _same_source(x, y, numbers):
                return f"node {b.name!r} ({b.op_type}) reads other values than recomputed"
            reason = _compare_constant(comparison, a, x, y)
            if reason:
                return reason
        reason = _compare_attributes(comparison, a, b, numbers)
        if reason:
            return reason
        _number(numbers, a.outputs, b.outputs)
    if len(recomputed.outputs) != len(file.outputs):
        return "the outputs are other values than recomputed"
    for p, q in zip(recomputed.outputs, file.outputs, strict=True):
        if not _same_source(p, q, numbers):
            return "the outputs are other values than recomputed"
    return ""


def _number(numbers: Numbers, ours: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> None:
    for p, q in zip(ours, theirs, strict=True):
        numbers[0][p] = numbers[1][q] = len(numbers[0])


def _same_source(x: ir.Value | None, y: ir.Value | None, numbers: Numbers) -> bool:
    if x is None or y is None:
        return x is y
    if x in numbers[0] or y in numbers[1]:
        return numbers[0].get(x) == numbers[1].get(y)
    return True  # both are stored constants, compared by value


def _compare_constant(comparison: Comparison, node: ir.Node, x: ir.Value | None, y: ir.Value | None) -> str:
    """Hold a stored constant against the recomputed one; return how the structure differs where only one is stored."""
    if x is None or y is None:
        return ""
    want, have = constant_tensor(x), constant_tensor(y)
    if want is None or have is None:
        both = want is None and have is None
        return "" if both else f"value {y.name!r} is {'not ' if have is None else ''}a constant"
    comparison.tensors += 1
    text = tensor_difference(want, have)
    if text:
        where = module_path(node)
        comparison.problems.append(
            Difference(where, str(node.name), f"{y.name!r} of {node.op_type} at {where!r} {text}")
        )
    return ""


def tensor_difference(want: ir.TensorProtocol, have: ir.TensorProtocol) -> str:
    """Return how a stored tensor differs from the recomputed one, "" if it is its one rounding.

    The limit is half a unit in the last place of the recomputed value plus a hair (1e-9 u) for float64's own rounding
    in another order.
    """
    if want.dtype != have.dtype:
        return f"has dtype {have.dtype}; recomputed {want.dtype}"
    a, b = tensor64(want), tensor64(have)
    if a.shape != b.shape:
        return f"has shape {b.shape}; recomputed {a.shape}"
    if want.dtype not in FLOATS:
        return "" if np.array_equal(a, b) else f"differs in {int((a != b).sum())} of {a.size} entries"
    name, stored = _NAMES[want.dtype], want.dtype.numpy()
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    first, count = -1, 0
    for start in range(0, flat_a.size, _CHUNK):
        wrong = _wrong(flat_a[start : start + _CHUNK], flat_b[start : start + _CHUNK], name, stored)
        if wrong.any():
            count += int(wrong.sum())
            first = start + int(np.argmax(wrong)) if first < 0 else first
    if first < 0:
        return ""
    at = [int(i) for i in np.unravel_index(first, a.shape)]
    return f"is {flat_b[first]:.9g} at {at}; recomputed {flat_a[first]:.12g} ({count} of {a.size} numbers differ)"


def _wrong(a: Array, b: Array, name: str, stored: np.dtype[Any]) -> Array:
    """Return where ``b`` is not ``a`` rounded once."""
    wrong = ~(_within_half_ulp(a, b, name) | (np.isnan(a) & np.isnan(b)) | (a == b))
    if wrong.any():
        with np.errstate(over="ignore"):
            rounded = a.astype(stored).astype(np.float64)
        wrong &= ~((rounded == b) | (np.isnan(rounded) & np.isnan(b)))
    return np.asarray(wrong)


def _within_half_ulp(a: Array, b: Array, dtype: str) -> Array:
    u, tiny = UNIT_ROUNDOFF[dtype], SMALLEST_NORMAL[dtype]
    with np.errstate(divide="ignore", invalid="ignore"):
        _, exponent = np.frexp(np.maximum(np.abs(a), tiny))
        half_ulp = np.ldexp(u, exponent - 1)  # |a| in [2^(e-1), 2^e): the spacing is 2 u 2^(e-1)
        return np.asarray(np.abs(a - b) <= half_ulp * (1 + 1e-9))


def _compare_attributes(comparison: Comparison, a: ir.Node, b: ir.Node, numbers: Numbers) -> str:
    """Compare attributes, bodies among them; return how the structure of a body differs."""
    for name in sorted(set(a.attributes) | set(b.attributes)):
        x, y = a.attributes.get(name), b.attributes.get(name)
        bodies = [attr.type == ir.AttributeType.GRAPH for attr in (x, y) if attr is not None]
        if any(bodies):
            if x is None or y is None or not all(bodies):
                return f"node {b.name!r} ({b.op_type}) has other bodies than recomputed"
            reason = _compare_nodes(comparison, x.as_graph(), y.as_graph(), numbers)
            if reason:
                return f"in {name} of {b.name!r} ({b.op_type}): {reason}"
            continue
        if x is not None and y is not None and _same_attribute(x, y):
            continue
        want = "absent" if x is None else _shown(x)
        have = "absent" if y is None else _shown(y)
        where = module_path(a)
        comparison.problems.append(
            Difference(
                where, str(b.name), f"attribute {name!r} of {b.op_type} at {where!r} is {have}; recomputed {want}"
            )
        )
    return ""


def _same_attribute(x: ir.Attr, y: ir.Attr) -> bool:
    if x.type != y.type:
        return False
    if x.type == ir.AttributeType.FLOAT:
        same = abs(x.value - y.value) <= _ATTRIBUTE_ROUNDOFF * abs(x.value)
        return bool(same or (np.isnan(x.value) and np.isnan(y.value)))
    if x.type == ir.AttributeType.FLOATS:
        return bool(np.allclose(x.value, y.value, rtol=_ATTRIBUTE_ROUNDOFF, atol=0.0))
    if x.type == ir.AttributeType.TENSOR:
        return tensor_difference(x.value, y.value) == ""
    return bool(x.value == y.value)


def _shown(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        return "another tensor"
    return f"{attribute.value!r}"
