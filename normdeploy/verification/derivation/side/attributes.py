"""Whether two operators of one kind are given the same attributes, written in whatever way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph.declared import declared_attributes, default_of
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import is_sequence, kind
from normdeploy.verification.derivation.side.operator_sets import told_alike

_SPATIAL = {"strides": 1, "dilations": 1, "pads": 0}
"""Attributes of windows with what they are where they are absent, however many axes there are."""


_OF_THE_RESULT = frozenset({"OneHot", "SplitToSequence", "Scan"})
"""Operators whose axis is none of their first operand's, or that are not looked at here."""


@dataclass(frozen=True)
class Window:
    """Where the window of a convolution or a pool goes."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto: str
    others: tuple[Any, ...]


def window(node: ir.Node, size: tuple[int, ...]) -> Window | None:
    """Return where a window goes; None where its attributes do not fit its size."""
    attributes, rank = node.attributes, len(size)
    given = tuple(attributes.get_ints("kernel_shape", ()) or ()) or tuple(size)
    strides = tuple(attributes.get_ints("strides", ()) or ()) or (1,) * rank
    dilations = tuple(attributes.get_ints("dilations", ()) or ()) or (1,) * rank
    pads = tuple(attributes.get_ints("pads", ()) or ()) or (0,) * (2 * rank)
    if given != tuple(size) or len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank:
        return None
    shape = attributes.get_ints("output_shape", ()), attributes.get_ints("output_padding", ()) or ()
    extra = tuple(tuple(item or ()) for item in shape)
    extra = (extra[0], () if not any(extra[1]) else extra[1])
    return Window(tuple(size), strides, dilations, pads, attributes.get_string("auto_pad", "NOTSET") or "NOTSET", extra)


def difference(a: Side, x: ir.Node, b: Side, y: ir.Node) -> str:
    """Return how the attributes of two operators of one kind differ, in a clause; "" if they do not."""
    told = told_alike(a, x, b, y)
    if told is None:
        return f"{kind(x)} has another meaning in operator set {b.opset(y)} than in {a.opset(x)}"
    for name in sorted((set(x.attributes) | set(y.attributes)) - told):
        one, other = _effective(a, x, name), _effective(b, y, name)
        if one is not None and other is not None:
            if not (_same(one, other) or _one_axis(name, (a, x, one), (b, y, other))):
                return f"attribute {name!r} is {_shown(other)}; expected {_shown(one)}"
        elif one is not None or other is not None:
            present, where = (one, (a, x, b, y)) if one is not None else (other, (b, y, a, x))
            if present is None or not (_as_if_absent(name, present) or _is_later(name, present, *where)):
                return f"attribute {name!r} is {_shown(other)}; expected {_shown(one)}"
    return ""


_LEARNED = "ai.onnx.ml"
"""The domain of operators that hold what was learned in attributes: thresholds, leaves, coefficients."""

_NUMBERS = frozenset({
    "base_values", "class_weights", "coefficients", "default_float", "default_int64", "imputed_value_floats",
    "intercepts", "keys_floats", "keys_int64s", "keys_tensor", "leaf_weights", "nodes_splits", "nodes_values", "offset",
    "prob_a", "prob_b", "replaced_value_float", "rho", "scale", "support_vectors", "target_weights", "threshold",
    "values_floats", "values_int64s", "values_tensor",
})  # fmt: skip
"""Attributes of theirs that hold it; others say how parts hang together, in an order that each tool may choose."""

_ELSE = {"default_float": "values_floats", "default_int64": "values_int64s"}
"""Of what is no key: read where values of that type are."""


def other_numbers(a: Side, x: ir.Node, b: Side, y: ir.Node) -> dict[str, tuple[Array, Array]]:
    """Return the attributes of two operators in which they differ, if nothing but what was learned differs; else {}.

    Args:
        a, x: of the source. b, y: of the file, of the same kind.
    """
    if x.domain != _LEARNED or told_alike(a, x, b, y) is None:
        return {}
    found: dict[str, tuple[Array, Array]] = {}
    for name in set(x.attributes) | set(y.attributes):
        one, other = _effective(a, x, name), _effective(b, y, name)
        if one is None or other is None or one.type != other.type:
            return {}
        if _same(one, other):
            continue
        pair = _numbers(x, name), _numbers(y, name)
        if pair[0] is None or pair[1] is None or pair[0].shape != pair[1].shape:
            return {}
        found[name] = pair[0], pair[1]
    return found


def _numbers(node: ir.Node, name: str) -> Array | None:
    """Return what an attribute holds of what was learned, None of another; nothing is compared with at a leaf."""
    attribute = node.attributes.get(name)
    if attribute is None or name not in _NUMBERS or _ELSE.get(name, name) not in node.attributes:
        return None
    held = attribute.value.numpy() if attribute.type is ir.AttributeType.TENSOR else attribute.value
    if attribute.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
        held = np.asarray(held, np.float32)
    found = np.atleast_1d(np.asarray(held))
    modes = node.attributes.get_strings("nodes_modes", ()) if name == "nodes_values" else ()
    return np.where(np.array(modes) == "LEAF", found.dtype.type(0), found) if modes else found


def _effective(side: Side, node: ir.Node, name: str) -> ir.Attr | None:
    """Return a node's attribute, its operator's default where it is absent; None where there is no default."""
    found = node.attributes.get(name)
    return found if found is not None else default_of(declared_attributes(node, side.opset(node)).get(name))


def _is_later(name: str, attribute: ir.Attr, side: Side, node: ir.Node, older: Side, other: ir.Node) -> bool:
    """Tell whether an attribute says what it does by default, and the other operator's set is older than it.

    Where an attribute came with another meaning, the operator set is one that tells so (:mod:`.operator_sets`).
    """
    known = declared_attributes(other, older.opset(other))
    default = default_of(declared_attributes(node, side.opset(node)).get(name))
    return bool(known) and name not in known and default is not None and _same(attribute, default)


def _one_axis(name: str, *given: tuple[Side, ir.Node, ir.Attr]) -> bool:
    """Tell whether an axis is one, counted from the end or not."""
    found = set[int]()
    for side, node, attribute in given:
        read = node.inputs[0] if node.inputs else None
        ranks = {len(shape) for shape in side.shapes(read)} if read is not None and not is_sequence(read) else set()
        if (
            name != "axis"
            or attribute.type is not ir.AttributeType.INT
            or kind(node) in _OF_THE_RESULT
            or len(ranks) != 1
        ):
            return False
        axis = int(attribute.value)
        found.add(axis + ranks.pop() if axis < 0 else axis)
    return len(found) == 1


def _as_if_absent(name: str, attribute: ir.Attr) -> bool:
    """Tell whether an attribute that the other operator lacks says what its absence means."""
    if name in _SPATIAL:
        return all(n == _SPATIAL[name] for n in attribute.value)
    if name == "perm":
        return list(attribute.value) == list(range(len(attribute.value)))[::-1]
    return False


def _same(x: ir.Attr, y: ir.Attr) -> bool:
    if x.type != y.type:
        return False
    if x.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
        one, other = (np.asarray(a.value, np.float32) for a in (x, y))  # what a file can hold of them
        return np.array_equal(one, other, equal_nan=True)
    if x.type == ir.AttributeType.TENSOR:
        same = x.value.dtype == y.value.dtype and list(x.value.shape) == list(y.value.shape)
        return same and np.array_equal(x.value.numpy(), y.value.numpy())
    if x.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return False
    return bool(x.value == y.value)


def _shown(attribute: ir.Attr | None) -> str:
    if attribute is None:
        return "absent"
    simple = attribute.type not in (ir.AttributeType.TENSOR, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return f"{attribute.value!r}" if simple else "another"
