"""Operators with weights: W' = a W s_x / s_y and b' = (a (W t_x + b) + c - t_y) / s_y.

Source: w = a (W x + b) + c with x = s_x x' + t_x. File: y' = W' x' + b' with w = s_y y' + t_y. Both are linear in x',
so that equal numbers are equal functions; where borders are padded with zeros, t_x has to be 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Floats
from normdeploy.graph import FLOATS, constant_tensor
from normdeploy.verification.derivation.gauges import Claim, along, placed, radius, stands_for_nothing
from normdeploy.verification.derivation.laws.same_operator import equal
from normdeploy.verification.derivation.related.lost_digits import FORGOTTEN, losses, sums_of_rows
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation, Target
from normdeploy.verification.derivation.related.stored_rounding import Wrong, compare, worst
from normdeploy.verification.derivation.side.affine_laws import Affine, back, spread
from normdeploy.verification.derivation.side.attributes import window
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.computed_rounding import off_by_rounding
from normdeploy.verification.derivation.side.operands import inputs_of, kind, turned_tensor


@dataclass(frozen=True)
class _Weights:
    """Weights as they are stored and in what; or a constant in float64, and how far rounding may be in it.

    Args:
        shape: as the file holds them. ways: how they were laid since, one after the other.
    """

    array: Array
    dtype: ir.DataType | None
    off: Floats | None
    shape: tuple[int, ...]
    ways: tuple[Callable[[Array], Array], ...] = ()

    def laid(self, change: Callable[[Array], Array]) -> _Weights:
        off = None if self.off is None else change(self.off)
        return _Weights(change(self.array), self.dtype, off, self.shape, (*self.ways, change))

    def times(self, factor: float) -> _Weights:
        if factor == 1:
            return self
        off = radius(self.array, self.dtype) if self.off is None else self.off
        return _Weights(self.array.astype(np.float64) * factor, None, off * abs(factor), self.shape, self.ways)

    def stored_at(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """Return where the file holds a number, by its place as laid."""
        found = []
        for part in np.indices(self.shape, sparse=True):
            places = np.broadcast_to(part, self.shape)  # a view: an index of each weight would be twice the weights
            for way in self.ways:
                places = way(places)
            found.append(int(places[at]))
        return tuple(found)


@dataclass(frozen=True)
class Linear:
    """An operator with weights, and the affine map behind it.

    Args:
        node: the operator. x: what it reads. behind: the map of its result.
        weights: rows are results: (results, operands, ...) per group.
        bias: one number per result, and how far its rounding may have moved it.
        axis: of operands in x and of results in y; counted from the end where below 0.
        groups: how many. form: all else that has to be the same in both graphs.
        bordered: zeros stand around x.
        beside: what else it reads, at run time, and has to be the same in both graphs.
    """

    node: ir.Node
    x: ir.Value
    behind: Affine
    weights: _Weights
    bias: Floats
    off_bias: Floats
    axis: int
    groups: int
    form: tuple[Any, ...]
    bordered: bool
    beside: tuple[ir.Value | None, ...] = ()

    @property
    def results(self) -> int:
        """How many results there are."""
        return int(self.weight.shape[0])

    @property
    def weight(self) -> Array:
        """The weights' numbers."""
        return self.weights.array


def linears(side: Side, value: ir.Value) -> Iterator[Linear]:
    """Return a value as an operator with weights, behind which stand affine maps."""
    for behind in back(side, value):
        node = behind.value.producer()
        if node is not None and kind(node) in _READERS:
            found = _READERS[kind(node)](side, node, behind)
            if found is not None:
                yield found


def confirm_linear(relation: Relation, value: ir.Value, target: Target) -> Finding:
    """Confirm that a value of the file is a linear operator of the source."""
    reason: Finding = ""
    for have in linears(relation.file, value):
        for want in linears(relation.source, target.value):
            found = _equal(relation, have, want, value, target)
            if isinstance(found, Proof):
                return found
            reason = found if isinstance(found, Wrong) or isinstance(reason, str) else reason
    return reason


def _equal(relation: Relation, have: Linear, want: Linear, value: ir.Value, target: Target) -> Finding:
    if have.form != want.form or have.groups != want.groups or have.weight.shape != want.weight.shape:
        return f"{kind(have.node)} and {kind(want.node)} differ in what they read, or how"
    claim = relation.by(want.x, have.x)
    rank = relation.rank(target.value)
    if claim is None or rank is None:
        return f"what {kind(have.node)} reads is not known to be what the source's reads"
    same = [equal(relation, ours, theirs) for ours, theirs in zip(want.beside, have.beside, strict=True)]
    bad = next((item for item in same if not isinstance(item, bool)), None)
    if bad is not None:
        return bad
    operands = want.weight.shape[1] * want.groups
    s_x, t_x = (along(array, want.axis, operands) for array in (claim.scale, claim.shift))
    s_y, t_y = (along(array, want.axis, want.results) for array in (target.scale, target.shift))
    a, c, summed = (along_last(array, want) for array in (want.behind.scale, want.behind.shift, want.behind.terms))
    a_f, c_f, r_a, r_c = (along_last(getattr(have.behind, name), have) for name in _PARTS)
    if s_x is None or t_x is None or s_y is None or t_y is None or a is None or c is None or summed is None:
        return "its gauges vary along other axes than its weights"
    if a_f is None or c_f is None or r_a is None or r_c is None or (s_y == 0).any() or (a_f == 0).any():
        return "its gauges vary along other axes than its weights"
    if claim.tells_less or stands_for_nothing(claim.scale).any():
        return f"{kind(have.node)}: {FORGOTTEN}"
    if want.bordered and (t_x != 0).any():
        return "zeros are padded where the source pads a shift"
    if t_x.any() and "moving" in want.form:
        return "a shift of what it reads is not the same at every place"
    per_group = want.results // want.groups
    columns = s_x.reshape(want.groups, -1)  # (results, operands per group), or 1 where all are alike
    columns = columns[:, :1] if (columns == columns[:, :1]).all() else columns
    columns = columns if want.groups == 1 else columns.repeat(per_group, 0)
    rest = (1,) * (want.weight.ndim - 2)
    rows = (a / (s_y * a_f))[:, None]
    factor = (rows[:1] if (rows == rows[:1]).all() else rows) * columns
    by_map = np.abs(r_a / a_f)
    slack = by_map.reshape(-1, *(1,) * (have.weight.ndim - 1)) * np.abs(have.weight) if by_map.any() else 0.0
    slack = slack if have.weights.off is None else slack + have.weights.off
    by = None if (factor == 1).all() else factor.reshape(*factor.shape, *rest)
    stored = have.weights
    whole, place = want.weights.dtype is not None, stored.stored_at
    off = compare(have.weight, stored.dtype, want.weight, by, slack=slack, products=whole, place=place)
    parts = (have.node, *have.behind.nodes)
    off = None if off is None else off.of(f"weights of {kind(have.node)}", parts=parts)
    if off is not None and not off.rounding:
        return off
    added, size = np.zeros(want.results), np.zeros(want.results)
    if t_x.any():
        shifts = t_x.reshape(want.groups, -1)
        shifts = shifts if want.groups == 1 else shifts.repeat(per_group, 0)
        terms = want.weight.reshape(*want.weight.shape[:2], -1).sum(2, dtype=np.float64) * shifts
        added, size = terms.sum(1), np.abs(terms).sum(1)
    expected = (a * (added + want.bias) + c - t_y) / s_y
    size = (np.abs(a) * (size + np.abs(want.bias)) + summed + np.abs(t_y)) / np.abs(s_y)
    found = a_f * have.bias + c_f
    slack = np.abs(a_f) * have.off_bias + np.abs(have.bias) * r_a + r_c
    other = slack + 16 * radius(np.maximum(np.abs(expected), size), have.weights.dtype)
    wrong = compare(found, None, expected, slack=slack, size=size, other=other)
    if wrong is not None:
        wrong = replace(wrong.of(f"bias of {kind(have.node)}", parts=parts), among_right=wrong.near)
    if wrong is not None or off is not None:
        return worst((off, wrong)) or ""
    weighed = sums_of_rows(want.weight) if t_y.any() or have.behind.nodes else np.inf  # else no shift is added
    own = np.abs(a) * (weighed + np.abs(want.bias) + np.abs(added)) + summed
    of_rows = replace(target, scale=s_y, shift=t_y)
    lost = losses(have.weight, want.weight, stored.dtype, factor, of_rows, slack, own, relation.file.type_of(value))
    if isinstance(lost, str):
        return f"{kind(have.node)}: {lost}"
    terms = placed(size * np.abs(s_y), want.axis, rank)
    assumed = claim.assumed or any(item is True for item in same)
    known = Claim(value, target.scale, target.shift, assumed, terms=terms, lost=placed(lost, want.axis, rank))
    return Proof("linear: W' = W s_x / s_y", ((target.value, known),), parts)


_PARTS = ("scale", "shift", "off_scale", "off_shift")


def along_last(array: Floats, linear: Linear) -> Floats | None:
    """Return what a map behind an operator is along its results."""
    if array.ndim < -linear.axis:
        return np.full(linear.results, float(array.reshape(-1)[0])) if array.size == 1 else None
    return along(array, linear.axis, linear.results)


def _weights(side: Side, value: ir.Value | None) -> _Weights | None:
    tensor = constant_tensor(value)
    if tensor is not None:
        array = tensor.numpy()
        return None if tensor.dtype == ir.DataType.STRING else _Weights(array, tensor.dtype, None, array.shape)
    turned = _turned(value)
    if turned is not None:
        return turned
    computed = side.fixed(value)
    if computed is None or value is None:
        return None
    stored = side.stored_in(value)  # moved at most: it is as far off as what is stored
    return _Weights(
        computed, stored, None if stored is not None else off_by_rounding(side, value, computed), computed.shape
    )


def _turned(value: ir.Value | None) -> _Weights | None:
    """Return weights that a Transpose of what is stored makes, by a view: they are as large as the network."""
    found = turned_tensor(value)
    if found is None or found[1] not in FLOATS:
        return None
    return _Weights(found[0], found[1], None, found[0].shape)


def _bias(side: Side, value: ir.Value | None, size: int, factor: float = 1.0) -> tuple[Floats, Floats] | None:
    if value is None:
        return np.zeros(size), np.zeros(size)
    found = spread(side, value)
    if found is None or any(n != 1 for n in found[0].shape[:-1]) or found[0].size not in (1, size):
        return None
    return tuple(np.array(np.broadcast_to(part.reshape(-1) * factor, (size,))) for part in found)  # type: ignore[return-value]


def _convolution(side: Side, node: ir.Node, behind: Affine) -> Linear | None:
    inputs = [*inputs_of(node), None, None, None][:5]
    x = inputs[0]
    found = _weights(side, inputs[1])
    if x is None or found is None or found.array.ndim < 3:
        return None
    groups = node.attributes.get_int("group", 1)
    transposed, deformed = kind(node) == "ConvTranspose", kind(node) == "DeformConv"
    if transposed:
        found = found.laid(lambda array: _by_results(array, groups))
    bias = _bias(side, inputs[3 if deformed else 2], len(found.array))
    spatial = found.array.ndim - 2
    form = window(node, found.array.shape[2:])
    if bias is None or form is None:
        return None
    moving = ("moving",) if transposed else ()
    bordered = deformed or (not transposed and (any(form.pads) or form.auto not in ("NOTSET", "VALID")))
    form_of = (kind(node), form, node.attributes.get_int("offset_group", 1), *moving)
    beside = (inputs[2], inputs[4]) if deformed else ()
    return Linear(node, x, behind, found, *bias, -spatial - 1, groups, form_of, bordered, beside)


def _by_results(array: Array, groups: int) -> Array:
    """Return (operands, results / groups, ...) with a row per result, per group."""
    operands, part = array.shape[:2]
    split = array.reshape(groups, operands // groups, part, *array.shape[2:])
    return np.swapaxes(split, 1, 2).reshape(groups * part, operands // groups, *array.shape[2:])


def _gemm(side: Side, node: ir.Node, behind: Affine) -> Linear | None:
    inputs = inputs_of(node)
    attributes = node.attributes
    found = _weights(side, inputs[1])
    if inputs[0] is None or found is None or attributes.get_int("transA", 0) != 0:
        return None
    found = found.times(attributes.get_float("alpha", 1.0))
    found = found if attributes.get_int("transB", 0) != 0 else found.laid(np.transpose)
    beta = attributes.get_float("beta", 1.0)
    bias = _bias(side, inputs[2] if len(inputs) > 2 else None, len(found.array), beta)
    return None if bias is None else Linear(node, inputs[0], behind, found, *bias, -1, 1, ("rows",), False)


def _matmul(side: Side, node: ir.Node, behind: Affine) -> Linear | None:
    x, y = inputs_of(node)
    if x is None or y is None:
        return None
    left = side.is_constant(x)
    found = _weights(side, x if left else y)
    if found is None or found.array.ndim != 2:
        return None
    found = found if left else found.laid(np.transpose)
    nought = np.zeros(len(found.array))
    form, axis = (("columns",), -2) if left else (("rows",), -1)
    return Linear(node, y if left else x, behind, found, nought, nought, axis, 1, form, False)


_READERS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "DeformConv"), _convolution),
    "Gemm": _gemm,
    "MatMul": _matmul,
}
