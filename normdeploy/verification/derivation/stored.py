"""Stored numbers and attributes against recomputed ones: equal, the one rounding, another tool's rounding, or wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from normdeploy.graph import FLOATS, tensor64
from normdeploy.graph.evaluate import imports_of, opset_of
from normdeploy.verification.sides.values import SMALLEST_NORMAL, UNIT_ROUNDOFF, Array

_NAMES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.DOUBLE: "float64",
}
_CHUNK = 1 << 20
_ATTRIBUTE_ROUNDOFF = 2.0**-23
"""Float attributes are stored as float32 and read back as Python floats."""


_OTHER_ROUNDING = 8.0
"""Units of roundoff by which numbers folded in float32 may lie off: a root, a quotient, products, each rounded."""

_OF_THE_LARGEST = 2.0
"""The same for a sum that cancels, in units of the tensor's largest number."""

_SPATIAL = {"strides": 1, "dilations": 1, "pads": 0}
"""Attributes of windows with what they are where they are absent, however many axes there are."""


@dataclass(frozen=True)
class TensorDifference:
    """How a stored tensor differs from the recomputed one.

    Args:
        text: the end of a sentence. rounding: no number lies further off than another order of rounding explains.
    """

    text: str
    rounding: bool = False


def tensor_difference(want: ir.TensorProtocol, have: ir.TensorProtocol) -> TensorDifference | None:
    """Return how a stored tensor differs from the recomputed one, None if it is its one rounding.

    The limit is half a unit in the last place of the recomputed value plus a hair (1e-9 u) for float64's own rounding
    in another order.
    """
    if want.dtype != have.dtype:
        return TensorDifference(f"has dtype {have.dtype}; recomputed {want.dtype}")
    a, b = tensor64(want), tensor64(have)
    if a.shape != b.shape:
        return TensorDifference(f"has shape {b.shape}; recomputed {a.shape}")
    if want.dtype not in FLOATS:
        same = np.array_equal(a, b)
        return None if same else TensorDifference(f"differs in {int((a != b).sum())} of {a.size} entries")
    name, stored = _NAMES[want.dtype], want.dtype.numpy()
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    first, count, rounding = -1, 0, True
    top = float(np.abs(flat_a[np.isfinite(flat_a)]).max(initial=0.0))
    for start in range(0, flat_a.size, _CHUNK):
        piece, other = flat_a[start : start + _CHUNK], flat_b[start : start + _CHUNK]
        wrong = _wrong(piece, other, name, stored)
        if wrong.any():
            count += int(wrong.sum())
            first = start + int(np.argmax(wrong)) if first < 0 else first
            allowed = UNIT_ROUNDOFF[name] * (_OTHER_ROUNDING * np.abs(piece) + _OF_THE_LARGEST * top)
            with np.errstate(invalid="ignore"):
                rounding &= bool((np.abs(piece - other)[wrong] <= allowed[wrong]).all())
    if first < 0:
        return None
    at = [int(i) for i in np.unravel_index(first, a.shape)]
    text = f"is {flat_b[first]:.9g} at {at}; recomputed {flat_a[first]:.12g} ({count} of {a.size} numbers differ)"
    return TensorDifference(text, rounding)


def attribute_difference(name: str, a: ir.Node, b: ir.Node) -> str:
    """Return how an attribute of two nodes of one kind differs, in the end of a sentence; "" if it does not.

    An attribute that is absent is what the operator's definition says it is then.

    Args:
        name: of the attribute. a: recomputed. b: the file's.
    """
    x, y = _effective(a, name), _effective(b, name)
    if x is None or y is None:
        if x is y or _as_if_absent(name, x or y, a if x is None else b):
            return ""
    elif _same_attribute(x, y):
        return ""
    return f"is {'absent' if y is None else _shown(y)}; recomputed {'absent' if x is None else _shown(x)}"


def _effective(node: ir.Node, name: str) -> ir.Attr | None:
    """Return a node's attribute, its operator's default where it is absent; None where there is no default."""
    found = node.attributes.get(name)
    if found is not None:
        return found
    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        schema = onnx.defs.get_schema(node.op_type, opset_of(node, imports_of(node)), domain)
    except onnx.defs.SchemaError:
        return None
    declared = schema.attributes.get(name)
    if declared is None or not declared.default_value.name:
        return None
    return ir.serde.deserialize_attribute(declared.default_value)


def _as_if_absent(name: str, attribute: ir.Attr | None, other: ir.Node) -> bool:
    """True where an attribute that the other node lacks says what its absence means."""
    if attribute is None:
        return True
    if name in _SPATIAL:
        return all(n == _SPATIAL[name] for n in attribute.value)
    if name == "kernel_shape" and len(other.inputs) > 1 and other.inputs[1] is not None:
        shape = other.inputs[1].shape or (other.inputs[1].const_value.shape if other.inputs[1].const_value else None)
        return shape is not None and list(shape)[2:] == list(attribute.value)
    if name == "perm":
        return list(attribute.value) == list(range(len(attribute.value)))[::-1]
    return False


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


def _same_attribute(x: ir.Attr, y: ir.Attr) -> bool:
    if x.type != y.type:
        return False
    if x.type == ir.AttributeType.FLOAT:
        same = abs(x.value - y.value) <= _ATTRIBUTE_ROUNDOFF * abs(x.value)
        return bool(same or (np.isnan(x.value) and np.isnan(y.value)))
    if x.type == ir.AttributeType.FLOATS:
        return bool(np.allclose(x.value, y.value, rtol=_ATTRIBUTE_ROUNDOFF, atol=0.0))
    if x.type == ir.AttributeType.TENSOR:
        return tensor_difference(x.value, y.value) is None
    return bool(x.value == y.value)


def _shown(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        return "another tensor"
    return f"{attribute.value!r}"
