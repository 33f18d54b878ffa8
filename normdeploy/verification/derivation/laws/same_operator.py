"""One operator in both graphs, that reads the same: it computes the same, whatever it is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph import FLOATS, compress
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.gauges import Claim
from normdeploy.verification.derivation.related.other_integers import other_integers
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation
from normdeploy.verification.derivation.related.stored_rounding import Wrong, compare, worst
from normdeploy.verification.derivation.related.unrounded import Unlike
from normdeploy.verification.derivation.side.attributes import difference, other_numbers
from normdeploy.verification.derivation.side.beyond import alike_beyond
from normdeploy.verification.derivation.side.body_graphs import bodies_of
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind, turned_tensor, without_leading
from normdeploy.verification.derivation.side.operator_sets import operands_of

_KIN = (FLOATS, frozenset({ir.DataType.INT32, ir.DataType.INT64}))
"""Types of constants between which no operator makes a difference but by rounding."""

_COMPUTED = 1e-10
"""Largest difference of two constants computed in float64, in units of the largest number: rounding of long sums."""


def confirm_same(relation: Relation, node: ir.Node, origin: ir.Node) -> Finding:
    """Confirm that two operators of one kind, with the same attributes, read the same.

    Args:
        node: of the file. origin: of the source.
    """
    if kind(node) != kind(origin) or has(node, Trait.RANDOM) or bodies_of(node):
        return f"{kind(node)} is not {kind(origin)}, or not known to repeat"
    text = difference(relation.source, origin, relation.file, node)
    numbers = other_numbers(relation.source, origin, relation.file, node) if text else {}
    if text and not numbers:
        return f"{kind(node)}: {text}"
    ours, theirs = operands_of(relation.source, origin, relation.file, node)
    if len(ours) != len(theirs):
        return f"{kind(node)} reads {len(theirs)} operands; expected {len(ours)}"
    orders = [theirs]
    if len(theirs) == 2 and has(node, Trait.COMMUTES):
        orders.append(theirs[::-1])
    if _drops(relation, node, origin):
        return "Dropout that drops"
    if kind(node) == "CastLike" and relation.file.type_of(node.outputs[0]) != relation.source.type_of(
        origin.outputs[0]
    ):
        return "CastLike of another type"
    if kind(node) == "Split" and len(node.outputs) != len(origin.outputs):
        return f"Split into {len(node.outputs)}; expected {len(origin.outputs)}"
    reason: Finding = ""
    both = relation.source, origin, relation.file, node
    spreads, weighs = spreads_constants(node), _weighs_narrow_integers(relation, node)
    for order in orders:
        found: list[bool | str | Wrong] = []
        for w, v in zip(ours, order, strict=True):
            found.append(equal(relation, w, v, spreads=spreads, weighs=weighs))
            if isinstance(found[-1], str):
                break  # the reason, whatever numbers are read besides
        bad = [item for item in found if not isinstance(item, bool)]
        bad += [told for name, pair in numbers.items() if (told := _other_number(name, *pair)) is not None]
        if not bad:
            assumed = any(item is True for item in found)
            return other_integers(*both) or same_results(node, origin, assumed=assumed)
        wrong = [item for item in bad if isinstance(item, Wrong)]
        if len(wrong) == len(bad):
            reason = worst(wrong) or ""
        elif not isinstance(reason, Wrong):
            reason = next(item for item in bad if not isinstance(item, Wrong))
    return reason


def _other_number(name: str, want: Array, have: Array) -> Wrong | None:
    """Hold the numbers of an attribute against those of another operator; nothing else can be meant by them."""
    wrong = compare(have, None, want)
    return None if wrong is None else replace(wrong.of(f"attribute {name!r}"), among_right=not wrong.rounding)


def spreads_constants(node: ir.Node) -> bool:
    """Tell whether axes of size 1 in front of a constant make no difference to an operator."""
    return has(node, Trait.BROADCASTS) or kind(node) == "PRelu"


_CASTS = frozenset({"Cast", "CastLike"})
_CASTS_USUALLY = {"saturate": 1, "round_mode": "up"}


def confirm_cast(relation: Relation, node: ir.Node, origin: ir.Node) -> Finding:
    """Confirm that two operators make one type of the same, whether they name it or read it off another value.

    Args:
        node: of the file. origin: of the source.
    """
    if not {kind(node), kind(origin)} <= _CASTS:
        return ""
    pairs = ((relation.source, origin), (relation.file, node))
    types = [(side.type_of(n.outputs[0]), n.inputs[0] and side.type_of(n.inputs[0])) for side, n in pairs]
    if None in types[0] or types[0] != types[1] or _casting(node) != _casting(origin):
        return f"{kind(node)} makes another type, or of another"
    found = equal(relation, origin.inputs[0], node.inputs[0])
    if not isinstance(found, bool):
        return found
    return other_integers(relation.source, origin, relation.file, node) or same_results(node, origin, assumed=found)


def _casting(node: ir.Node) -> dict[str, Any]:
    return _CASTS_USUALLY | {a.name: a.value for a in node.attributes.values() if a.name != "to"}


def same_results(node: ir.Node, origin: ir.Node, *, assumed: bool) -> Proof:
    """Return the proof that each result of an operator is that of another."""
    one, nought = np.ones(()), np.zeros(())
    pairs = zip(node.outputs, origin.outputs, strict=False)
    return Proof(
        "same operator on the same",
        tuple((w, Claim(v, one, nought, assumed)) for v, w in pairs if v.name and w.name),
        (node,),
    )


def _drops(relation: Relation, node: ir.Node, origin: ir.Node) -> bool:
    """Tell whether a Dropout may drop anything."""
    modes = [(side, inputs_of(n)[2:3]) for side, n in ((relation.source, origin), (relation.file, node))]
    if kind(node) != "Dropout" or not any(mode for _, mode in modes):
        return False
    found = [side.constant(mode[0]) if mode else np.zeros(()) for side, mode in modes]
    return any(array is None or array.any() for array in found)


_NARROW = 16
"""Bits of integers that stand for quantized numbers, and are no sizes, places or axes."""


def _weighs_narrow_integers(relation: Relation, node: ir.Node) -> bool:
    """Tell whether an operator computes with quantized numbers, so that its integers are weights, biases and zeros."""
    types = [None if value is None else relation.file.type_of(value) for value in node.inputs]
    narrow = [dtype for dtype in types if dtype is not None and dtype.is_integer() and dtype.bitwidth <= _NARROW]
    return len(narrow) > 1 and not has(node, Trait.MOVES | Trait.JOINS)


def equal(
    relation: Relation, w: ir.Value | None, v: ir.Value | None, *, spreads: bool = False, weighs: bool = False
) -> bool | str | Wrong:
    """Tell whether two operands are equal: False if they are, True if so by assumption, or why not.

    Args:
        relation: what is known. w, v: operands of the source and of the file.
        spreads: axes of size 1 in front of a constant make no difference to the operator.
        weighs: integers are numbers that it computes with, in which nothing but the right ones is right.
    """
    if w is None or v is None:
        return False if w is v else "an operand is missing"
    if _stored_alike(relation, w, v):
        return False
    want, have = relation.source.numbers(w), relation.file.numbers(v)
    if want is not None and have is not None:
        types = relation.source.type_of(w), relation.file.type_of(v)
        if None not in types and types[0] != types[1] and not any(set(types) <= kin for kin in _KIN):
            return f"operand {v.name!r} is of another type"
        found = _same_numbers(relation, v, want, have, spreads=spreads)
        if isinstance(found, str) and weighs and all(a.shape == b.shape for a, b in zip(want, have, strict=True)):
            return Wrong(found)
        if found is False and not alike_beyond(relation.source, w, relation.file, v):
            return f"operand {v.name!r} is the same at the sizes that are tried, and may be another at others"
        return found
    claim = relation.by(w, v)
    if claim is not None and claim.is_identity:
        return claim.assumed
    if claim is not None:
        return f"what it reads, {v.name!r}, is scaled or shifted"
    return f"what it reads, {v.name!r}, is not known to be {w.name!r}"


def _stored_alike(relation: Relation, w: ir.Value | None, v: ir.Value | None) -> bool:
    """Tell whether two constants are stored as the same numbers, and moved alike: the plain case, told as stored.

    Args:
        relation: the graphs. w, v: of the source and of the file.
    """
    if w is None or v is None:
        return w is v
    ours, theirs = _laid_out(relation.source, w), _laid_out(relation.file, v)
    if ours is not None and theirs is not None:
        (want, stored), (have, dtype) = ours, theirs
        return stored == dtype and want.shape == have.shape and np.array_equal(want, have)
    origin, node = w.producer(), v.producer()
    if origin is None or node is None or not (relation.source.is_constant(w) and relation.file.is_constant(v)):
        return False
    if kind(origin) != kind(node) or not has(node, Trait.MOVES) or w.index() != v.index():
        return False
    read, reads = inputs_of(origin), inputs_of(node)
    if len(read) != len(reads) or difference(relation.source, origin, relation.file, node):
        return False
    return all(_stored_alike(relation, a, b) for a, b in zip(read, reads, strict=True))


def _laid_out(side: Side, value: ir.Value) -> tuple[Array, ir.DataType] | None:
    """Return a constant's numbers as they are stored, turned by a view where a Transpose turns them, and their type."""
    tensor = side.tensor(value)
    if tensor is None:
        return turned_tensor(value)
    return None if tensor.dtype == ir.DataType.STRING else (tensor.numpy(), tensor.dtype)


def _computed_alike(relation: Relation, v: ir.Value, k: int, want: np.ndarray) -> bool:
    """Tell whether a constant that the file computes is the source's before constants in it were rounded."""
    if relation.unrounded is None or relation.file.stored_in(v) is not None:
        return False
    try:
        have = relation.unrounded(v, k)
    except Unlike:
        return False
    if have is None or have.shape != want.shape:
        return False
    finite = np.isfinite(want)
    size = float(np.abs(want[finite]).max(initial=0.0))
    near = np.abs(have[finite] - want[finite]) <= _COMPUTED * size
    return bool(near.all()) and np.array_equal(have[~finite], want[~finite], equal_nan=True)


def _same_numbers(
    relation: Relation, v: ir.Value, want: tuple[np.ndarray, ...], have: tuple[np.ndarray, ...], *, spreads: bool
) -> bool | str | Wrong:
    number = relation.file.type_of(v) in FLOATS
    for k, (ours, theirs) in enumerate(zip(want, have, strict=True)):
        if spreads and _repeats(ours, theirs):
            continue
        if not _shaped_alike(ours.shape, theirs.shape, spreads=spreads):
            return f"operand {v.name!r} has shape {list(theirs.shape)}; expected {list(ours.shape)}"
        if number:
            wrong = compare(theirs, relation.file.stored_in(v), ours.reshape(theirs.shape))
            if wrong is not None and not _computed_alike(relation, v, k, ours):
                return wrong.of(f"operand {v.name!r}")
        elif not np.array_equal(ours.reshape(theirs.shape), theirs):
            return f"operand {v.name!r} holds other integers"
    return False


def _shaped_alike(ours: tuple[int, ...], theirs: tuple[int, ...], *, spreads: bool) -> bool:
    """Tell whether constants of two shapes mean the same, where the results have one shape."""
    if ours == theirs or math.prod(ours) == math.prod(theirs) == 1:
        return True
    return spreads and without_leading(ours) == without_leading(theirs)


def _repeats(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Tell whether one constant is the other, repeated along some axes: the same to an operator that broadcasts it.

    Results are of one shape, or nothing is claimed of them.
    """
    if ours.shape == theirs.shape:
        return False  # numbers are held against each other, with what rounding explains
    try:
        one, other = np.broadcast_arrays(compress(ours), compress(theirs))
        np.broadcast_shapes(ours.shape, theirs.shape)
    except ValueError:
        return False
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
