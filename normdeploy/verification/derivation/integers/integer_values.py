"""What is seen of integers in one graph alone: types, constants, and the ends that clamps set."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.verification.derivation.integers.spans import ENDS
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind

COMPARISONS = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_LONGEST = 48
"""Operators in a row that are looked at."""


def number(side: Side, value: ir.Value | None) -> float | None:
    """Return a constant of one finite number; None of anything else."""
    array = side.constant(value)
    if array is None or array.size != 1 or not np.isfinite(array.astype(np.float64)).all():
        return None
    return float(array.reshape(()))


def clamp_of(side: Side, node: ir.Node, read: ir.Value) -> tuple[float | None, float | None]:
    """Return the ends of a clamp; None where there is none, or where it is no number."""
    inputs = inputs_of(node)
    if kind(node) == "Relu":
        return 0.0, None
    if kind(node) == "Clip":
        given = [*inputs[1:3], None, None][:2]
        found = [number(side, bound) for bound in given]
        unknown = any(bound is not None and end is None for bound, end in zip(given, found, strict=True))
        return (None, None) if unknown else (found[0], found[1])
    if len(inputs) != 2:
        return None, None
    end = number(side, inputs[1] if inputs[0] is read else inputs[0])
    return (end, None) if kind(node) == "Max" else (None, end)


def bounds_of(side: Side, value: ir.Value, depth: int = 0) -> tuple[float, float, bool]:
    """Return the least and the largest that a value may be, by clamps in front of it, and whether it is an integer."""
    node = value.producer()
    if node is None or depth > _LONGEST:
        return -np.inf, np.inf, False
    inputs = inputs_of(node)
    if kind(node) == "Sign":
        return -1.0, 1.0, True
    if kind(node) == "Where":
        found = [number(side, end) for end in inputs[1:3]]
        known = [end for end in found if end is not None]
        if len(known) == 2:
            return min(known), max(known), all(end % 1 == 0 for end in known)
        return -np.inf, np.inf, False
    if kind(node) == "QuantizeLinear":
        ends_of = ENDS.get(side.type_of(value) or ir.DataType.UNDEFINED, (-np.inf, np.inf))
        return float(ends_of[0]), float(ends_of[1]), True
    if kind(node) in ("Identity", "Round", "Relu", "Clip", "Max", "Min"):
        variable = next((x for x in inputs if x is not None and not side.is_constant(x)), None)
        if variable is None:
            return -np.inf, np.inf, False
        low, high, whole = bounds_of(side, variable, depth + 1)
        if kind(node) == "Round":
            return float(np.rint(low)), float(np.rint(high)), True
        cut = clamp_of(side, node, variable) if kind(node) != "Identity" else (None, None)
        if cut[0] is not None:
            low, high = max(low, cut[0]), max(high, cut[0])
        if cut[1] is not None:
            low, high = min(low, cut[1]), min(high, cut[1])
        return low, high, whole and all(end is None or end % 1 == 0 for end in cut)
    return -np.inf, np.inf, False
