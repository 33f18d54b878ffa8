"""Operators that are an affine map of one operand, place by place: y = a x + c."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import FLOATS, compress
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.gauges import ScaledValue, composed, radius, ranked
from normdeploy.verification.derivation.side.beyond import decides
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.computed_rounding import off_by_rounding, terms_of
from normdeploy.verification.derivation.side.kept_operands import kept_operand
from normdeploy.verification.derivation.side.operands import filling, inputs_of, kind
from normdeploy.verification.derivation.side.zero_guards import guard_beside, smaller_guard

_ONE, _NOUGHT = np.ones(()), np.zeros(())

_LONGEST = 64
"""How many such operators in a row are looked through."""


@dataclass(frozen=True)
class Affine(ScaledValue):
    """y = scale x + shift.

    Args:
        value: x. scale, shift: of y's rank, or less.
        off_scale, off_shift: how far the rounding of stored constants may have moved them.
        nodes: the operators in between, last first.
        guard: size of the smallest part of the shift that guards a pole (:mod:`.zero_guards`); 0 where none does.
        cancelled: size of the terms that add up to the shift, where more than its own is known (:attr:`terms`).
    """

    off_scale: Floats
    off_shift: Floats
    nodes: tuple[ir.Node, ...] = ()
    guard: float = 0.0
    cancelled: Floats | None = None

    @property
    def terms(self) -> Floats:
        """Size of the terms that add up to the shift: its rounding in another tool's arithmetic is relative to them."""
        found: Floats = np.abs(self.shift) if self.cancelled is None else self.cancelled
        return found

    @property
    def is_nothing(self) -> bool:
        """y is x, and nothing is stored that says so."""
        return self.scale is _ONE and self.shift is _NOUGHT

    def gauges_as(self, scale: Floats, shift: Floats) -> bool:
        """Tell whether y = scale v + shift says that x is v."""
        return bool((scale == self.scale).all() and (shift == self.shift).all())

    def asked(self, scale: Floats, shift: Floats) -> tuple[Floats, Floats] | None:
        """Return s and t of x = s v + t where y = scale v + shift; None where nothing follows from a scale of 0."""
        return (scale / self.scale, (shift - self.shift) / self.scale) if self.scale.all() else None


def nothing(value: ir.Value) -> Affine:
    """Return y = y."""
    return Affine(value, *_unit())


def back(side: Side, value: ir.Value) -> Iterator[Affine]:
    """Return a value as an affine map of itself, of what it is computed from, and so on."""
    if value not in side.behind:
        side.behind[value] = [nothing(value)]
    known = side.behind[value]  # as far as it was followed before
    for place in range(1 + _LONGEST):
        if place == len(known):
            step = step_of(side, known[-1].value)
            if step is None:
                return
            known.append(_one_further(side, value, known[-1], step))
        yield known[place]


def _one_further(side: Side, value: ir.Value, found: Affine, step: Affine) -> Affine:
    """Return a value, of which one map is known, as a map of what is one step further back."""
    if step.is_nothing:
        return replace(found, value=step.value, nodes=(*found.nodes, *step.nodes))
    if found.is_nothing:
        scale = composed(step.scale, _NOUGHT, _ONE, _NOUGHT)[0]
        return replace(step, scale=scale, nodes=(*found.nodes, *step.nodes))
    with np.errstate(invalid="ignore"):  # a mask's infinity times 0 is nan, which confirms nothing
        scale, shift = composed(found.scale, found.shift, step.scale, step.shift)
        off_scale = found.off_scale * np.abs(step.scale) + np.abs(found.scale) * step.off_scale
        off_shift = found.off_shift + found.off_scale * np.abs(step.shift) + np.abs(found.scale) * step.off_shift
        guard = smaller_guard(found.guard, guard_beside(side, value, found.shift, found.scale * step.shift))
        terms = composed(np.abs(found.scale), found.terms, np.abs(step.scale), step.terms)[1]
    return Affine(step.value, scale, shift, off_scale, off_shift, (*found.nodes, *step.nodes), guard, terms)


def step_of(side: Side, value: ir.Value) -> Affine | None:
    """Return the map of the operator that computes a value; None where it is none."""
    if value not in side.steps:
        side.steps[value] = _step_of(side, value)
    found: Affine | None = side.steps[value]
    return found


def _step_of(side: Side, value: ir.Value) -> Affine | None:
    node = value.producer()
    if node is None or side.is_constant(value) or value.index() != 0:
        return None
    found = _STEPS.get(kind(node), _kept)(side, node)
    if found is None or not _alike(side, node, found.value):
        return None
    return found


def _alike(side: Side, node: ir.Node, x: ir.Value) -> bool:
    """Tell whether the first result of an operator is of the type and, at every assignment of sizes, the shape of x."""
    y = node.outputs[0]
    shapes = side.shapes(y)
    if (x in side.opened or y in side.opened) and not _keeps_any_shape(side, node, x):
        return False
    return bool(shapes) and side.shapes(x) == shapes and side.type_of(x) == side.type_of(y)


def _keeps_any_shape(side: Side, node: ir.Node, x: ir.Value) -> bool:
    """Tell whether the result of an operator is of the shape of x, an operand, whatever shape that is."""
    if has(node, Trait.BROADCASTS):
        return all(value is x or set(side.shapes(value)) == {()} for value in inputs_of(node) if value is not None)
    return (has(node, Trait.POINTWISE) or kind(node) == "BatchNormalization") and node.inputs[0] is x


def spread(side: Side, value: ir.Value | None) -> tuple[Floats, Floats] | None:
    """Return a constant, or one repeated to a shape, and how far its rounding may have moved it."""
    if value is None or side.type_of(value) not in FLOATS:
        return None
    node = value.producer()
    if not side.is_constant(value) and node is not None and kind(node) == "Expand":
        return spread(side, node.inputs[0])
    if not side.is_constant(value) and node is not None and kind(node) == "ConstantOfShape":
        return filling(node).astype(np.float64), np.zeros(1)
    if not side.is_constant(value):
        return _repeated(side, value)
    array = side.constant(value)
    if array is None:
        return None
    return array, off_by_rounding(side, value, array)


def _repeated(side: Side, value: ir.Value) -> tuple[Floats, Floats] | None:
    """Return what is the same numbers at each assignment of sizes, once those that it repeats are left out."""
    found = [] if decides(side, value) else [compress(array) for array in side.numbers(value) or ()]
    if not found or any(array.shape != found[0].shape or (array != found[0]).any() for array in found):
        return None
    moved = has(value.producer(), Trait.MOVES)
    return found[0], radius(found[0], side.type_of(value) if moved else None)


def _kept(side: Side, node: ir.Node) -> Affine | None:
    x = kept_operand(side, node)
    return None if x is None else Affine(x, *_unit(), nodes=(node,))


def _unit() -> tuple[Floats, Floats, Floats, Floats]:
    return _ONE, _NOUGHT, _NOUGHT, _NOUGHT


def _sum(side: Side, node: ir.Node) -> Affine | None:
    inputs = inputs_of(node)
    constants = [spread(side, value) for value in inputs]
    if len(inputs) == 2 and constants[0] is None and constants[1] is None:
        return _of_one(side, node)
    if len(inputs) != 2 or (constants[0] is None) == (constants[1] is None):
        return None
    first = constants[1] is not None
    x, table = inputs[:: 1 if first else -1]
    c, off = constants[first]  # type: ignore[misc] # the other is None
    assert x is not None
    assert table is not None
    computed = terms_of(side, table)
    terms = None if computed is None else np.maximum(np.abs(c), computed)
    sign, scale = 1.0, np.ones(())
    if kind(node) == "Sub":
        sign, scale = (-1.0, scale) if first else (1.0, -scale)
    return Affine(x, scale, sign * c, np.zeros(()), off, (node,), cancelled=terms)


def _of_one(side: Side, node: ir.Node) -> Affine | None:
    """Return a sum of two maps of one value: (s x + t) + (s' x + t') = (s + s') x + (t + t')."""
    a, b = inputs_of(node)
    if a is None or b is None:
        return None
    sign = -1.0 if kind(node) == "Sub" else 1.0
    maps = {found.value: found for found in back(side, a)}
    for other in back(side, b):
        one = maps.get(other.value)
        if one is not None:
            scale, shift = one.scale + sign * other.scale, one.shift + sign * other.shift
            off_scale, off_shift = one.off_scale + other.off_scale, one.off_shift + other.off_shift
            nodes = (node, *dict.fromkeys((*one.nodes, *other.nodes)))
            return Affine(other.value, scale, shift, off_scale, off_shift, nodes, cancelled=one.terms + other.terms)
    return None


def _product(side: Side, node: ir.Node) -> Affine | None:
    inputs = inputs_of(node)
    constants = [spread(side, value) for value in inputs]
    if len(inputs) != 2 or (constants[0] is None) == (constants[1] is None):
        return None
    quotient = kind(node) == "Div"
    if quotient and constants[1] is None:
        return None
    x, (c, off) = (inputs[0], constants[1]) if constants[1] is not None else (inputs[1], constants[0])  # type: ignore[misc]
    assert x is not None
    if quotient:
        with np.errstate(divide="ignore", invalid="ignore"):
            c, off = 1 / c, off / np.square(c)
        if not np.isfinite(c).all():
            return None
    return Affine(x, c, np.zeros(()), off, np.zeros(()), (node,))


def _negative(_: Side, node: ir.Node) -> Affine | None:
    x = node.inputs[0]
    return None if x is None else Affine(x, -_ONE, *_unit()[1:], nodes=(node,))


def _batch_norm(side: Side, node: ir.Node) -> Affine | None:
    inputs = inputs_of(node)
    training = node.attributes.get_int("training_mode", 0) != 0 or node.attributes.get_int("is_test", 1) != 1
    if len(inputs) != 5 or training or any(output.uses() for output in list(node.outputs)[1:]):
        return None
    if node.attributes.get_int("spatial", 1) != 1 or inputs[0] is None:
        return None
    found = [spread(side, value) for value in inputs[1:]]
    shapes = side.shapes(inputs[0])
    if any(pair is None for pair in found) or not shapes or len(shapes[0]) < 2:
        return None
    pairs = [pair for pair in found if pair is not None]
    (gamma, off_gamma), (beta, off_beta), (mean, off_mean), (var, off_var) = pairs
    total = var + node.attributes.get_float("epsilon", 1e-5)
    if not (total > 0).all():
        return None
    scale = gamma / np.sqrt(total)
    off = off_gamma / np.sqrt(total) + np.abs(scale) * off_var / (2 * total)
    rank = len(shapes[0])
    off_shift = off_beta + off * np.abs(mean) + np.abs(scale) * off_mean
    arrays = (scale, beta - scale * mean, off, off_shift, np.abs(beta) + np.abs(scale * mean))
    placed = [ranked(array.reshape(-1, *(1,) * (rank - 2)), rank) for array in arrays]
    if any(array is None for array in placed):
        return None
    a, c, off_a, off_c, terms = (array for array in placed if array is not None)
    return Affine(inputs[0], a, c, off_a, off_c, (node,), cancelled=terms)


_STEPS = {
    "Add": _sum,
    "Sub": _sum,
    "Mul": _product,
    "Div": _product,
    "Neg": _negative,
    "BatchNormalization": _batch_norm,
}
