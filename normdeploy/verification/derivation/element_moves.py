"""Operators that only move elements: run on identifiers, two ways of moving are one if all elements land alike.

The source may scale and shift what it moves: its gauges are run through the same operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, compress, evaluate_node
from normdeploy.verification.derivation.affine_laws import step_of
from normdeploy.verification.derivation.attributes import difference
from normdeploy.verification.derivation.beyond import cuts, key
from normdeploy.verification.derivation.checked_side import Side
from normdeploy.verification.derivation.gauges import Claim, composed, radius, uniform
from normdeploy.verification.derivation.operands import inputs_of, kind
from normdeploy.verification.derivation.relation import Finding, Proof, Relation

MOVES = frozenset({
    "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Gather", "GatherElements",
    "GatherND", "Split", "SplitToSequence", "SequenceAt", "Concat", "Expand", "Tile", "DepthToSpace", "SpaceToDepth",
    "ReverseSequence", "Compress",
})  # fmt: skip
"""Operators each of whose results is one of the elements that they read, whatever these are."""

_DEPTH = 24
"""How many of them in a row are looked at."""

_FOLLOWED = 2
"""Assignments of sizes at which elements are followed: the example's, and one where each dimension grows by another
amount. Shapes agree at all of them."""

_MOST = 1 << 24
"""Elements of a tensor that are followed."""

Leaf = Callable[[ir.Value], Tensor | None]


class _Lost(Exception):
    """Elements cannot be followed."""


def confirm_moved(relation: Relation, value: ir.Value, w: ir.Value) -> Finding:
    """Confirm that a value of the file holds the elements of the source's at the same places."""
    node = value.producer()
    if node is None or kind(node) not in MOVES:
        return ""
    if relation.file.type_of(value) != relation.source.type_of(w):
        return "it is of another type"
    try:
        leaves = list(dict.fromkeys(_leaves(relation.file, value, lambda v: v in relation.by_file, 0)))
        claims = _read_by(relation, w, set(leaves))
        followed = range(min(relation.file.assignments, _FOLLOWED))
        shown = [_compare(relation, value, w, leaves, claims, k) for k in followed]
        _require_settled(relation, leaves, (value, set(leaves)), (w, set(claims)))
    except (_Lost, GraphError, RuntimeError, ValueError) as error:
        return f"{kind(node)}: {error}"
    if not shown:
        return "no sizes are known"
    scale, shift = shown[0]
    if any(s.shape != scale.shape or (s != scale).any() or (t != shift).any() for s, t in shown[1:]):
        return f"{kind(node)}: how it is scaled depends on sizes"
    assumed = any(claim.assumed for claim in claims.values())
    nodes = tuple(_between(relation.file, value, set(leaves)))
    return Proof("moves the same elements", ((w, Claim(value, scale, shift, assumed)),), nodes)


def _leaves(side: Side, value: ir.Value, known: Callable[[ir.Value], bool], depth: int) -> Iterator[ir.Value]:
    """Return what a value's elements come from: known values, and none but constants besides."""
    node = value.producer()
    if depth and known(value):
        yield value
        return
    if side.is_constant(value):
        return
    if node is None or kind(node) not in MOVES or depth > _DEPTH:
        raise _Lost(f"{value.name!r} is not known")
    if side.picks(node):
        raise _Lost(f"which part of {node.inputs[0].name if node.inputs[0] else ''!r} is read depends on sizes")
    for operand in _moved(node):
        yield from _leaves(side, operand, known, depth + 1)


def _moved(node: ir.Node) -> list[ir.Value]:
    """Return the operands whose elements an operator moves."""
    inputs = [value for value in inputs_of(node) if value is not None]
    return inputs if kind(node) == "Concat" else inputs[:1]


def _between(side: Side, value: ir.Value, leaves: set[ir.Value]) -> Iterator[ir.Node]:
    node = value.producer()
    if node is None or value in leaves or side.is_constant(value):
        return
    yield node
    for operand in _moved(node):
        yield from _between(side, operand, leaves)


def _require_settled(
    relation: Relation,
    leaves: list[ir.Value],
    have: tuple[ir.Value, set[ir.Value]],
    want: tuple[ir.Value, set[ir.Value]],
) -> None:
    """Require that elements which land alike at the sizes that are followed do so at all others.

    Args:
        relation: the graphs. leaves: of the file. have, want: a value of the file and of the source, and where it
            comes from.

    Raises:
        _Lost: they may not.
    """
    if any(leaf in relation.file.opened or 0 in shape for leaf in leaves for shape in relation.file.shapes(leaf)):
        raise _Lost("how much it moves depends on what is fed")
    sides = ((relation.file, have), (relation.source, want))
    found = [[node for node in _between(side, *at) if cuts(side, node)] for side, at in sides]
    if len(found[0]) != len(found[1]):
        raise _Lost("what it moves at other sizes is not followed")
    for node, origin in zip(*found, strict=True):
        pairs = zip(inputs_of(origin)[1:], inputs_of(node)[1:], strict=False)
        same = kind(node) == kind(origin) and not difference(relation.source, origin, relation.file, node)
        same &= len(inputs_of(node)) == len(inputs_of(origin))
        if not same or any(key(relation.source, a) != key(relation.file, b) for a, b in pairs):
            raise _Lost("what it moves at other sizes is not followed")


def _read_by(relation: Relation, w: ir.Value, leaves: set[ir.Value]) -> dict[ir.Value, Claim]:
    """Return what stands for each value of the source that the elements of w come from."""
    found: dict[ir.Value, Claim] = {}

    def known(value: ir.Value) -> bool:
        claims = [claim for claim in relation.express(value) if claim.value in leaves]
        if claims:
            found[value] = min(claims, key=lambda claim: claim.assumed)
        return bool(claims)

    list(_leaves(relation.source, w, known, 0))
    return found


def _compare(
    relation: Relation, value: ir.Value, w: ir.Value, leaves: list[ir.Value], claims: dict[ir.Value, Claim], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift of w at one assignment of sizes."""
    identifiers: dict[ir.Value, Tensor] = {}
    start = 0
    for leaf in leaves:
        shape = relation.file.shapes(leaf)[k]
        count = int(np.prod(shape))
        identifiers[leaf] = torch.arange(start, start + count, dtype=torch.float64).reshape(shape)
        start += count
    if start > _MOST:
        raise _Lost("too many elements to follow")

    def of_source(pick: Callable[[ir.Value, Claim], Tensor]) -> Leaf:
        return lambda u: None if u not in claims else pick(u, claims[u])

    theirs = _run(relation.file, value, identifiers.get, k, marked=True)
    ours = _run(relation.source, w, of_source(lambda _, c: identifiers[c.value]), k, marked=True)
    if theirs.shape != ours.shape or not torch.equal(theirs, ours):
        raise _Lost("elements land elsewhere than in the source")
    if all(claim.is_identity for claim in claims.values()):
        if bool((theirs < 0).any()):
            _same_constants(relation, value, w, of_source(lambda _, c: identifiers[c.value] * 0), identifiers, k)
        ones = np.ones((1,) * ours.dim())
        return ones, ones * 0
    if bool((theirs < 0).any()):
        raise _Lost("constants are joined to what is scaled or shifted")
    parts: list[np.ndarray] = []
    for name in ("scale", "shift"):
        held = [getattr(claim, name) for claim in claims.values()]
        one = uniform(np.concatenate([array.reshape(-1) for array in held])) if held else None
        if one is not None:  # it is one number wherever it lands
            parts.append(np.full((1,) * ours.dim(), one))
            continue

        def full(u: ir.Value, claim: Claim, name: str = name) -> Tensor:
            array = np.broadcast_to(getattr(claim, name), relation.source.shapes(u)[k])
            return torch.from_numpy(np.array(array))

        parts.append(compress(_run(relation.source, w, of_source(full), k).numpy()))
    return parts[0], parts[1]


def _same_constants(
    relation: Relation, value: ir.Value, w: ir.Value, zeros: Leaf, identifiers: dict[ir.Value, Tensor], k: int
) -> None:
    have = _run(relation.file, value, lambda v: None if v not in identifiers else identifiers[v] * 0, k).numpy()
    want = _run(relation.source, w, zeros, k).numpy()
    if relation.file.type_of(value) in FLOATS:
        good = np.abs(have - want) <= radius(want, relation.file.type_of(value)) * (1 + 1e-6)
    else:
        good = have == want
    if not good.all():
        raise _Lost("constants that are joined differ")


def _run(side: Side, value: ir.Value, leaf: Leaf, k: int, *, marked: bool = False) -> Tensor:
    """Run movement on what leaves hold; constants as they are, or marked by -1."""
    found = leaf(value)
    if found is not None:
        return found
    constant = side.constant(value)
    if constant is not None:
        array = torch.from_numpy(np.array(constant, np.float64))
        return torch.full_like(array, -1.0) if marked else array
    node = value.producer()
    if node is None or kind(node) not in MOVES:
        raise _Lost(f"{value.name!r} is not known")
    moved = set(_moved(node))
    operands: list[Tensor | None] = []
    for operand in inputs_of(node):
        if operand is None:
            operands.append(None)
        elif operand in moved:
            operands.append(_run(side, operand, leaf, k, marked=marked))
        else:
            numbers = side.numbers(operand)
            if numbers is None:
                raise _Lost(f"{operand.name!r} depends on what is fed")
            operands.append(torch.from_numpy(np.array(numbers[k])))
    return evaluate_node(node, operands, opset_imports=side.imports)[value.index() or 0]


def returned(relation: Relation, w: ir.Value, v: ir.Value) -> Claim | None:
    """Return the claim for a value of the source whose elements moved, were scaled and shifted, and came back."""
    try:
        found = [_followed(relation, w, v, k, 0) for k in range(relation.file.assignments)]
    except (_Lost, GraphError, RuntimeError, ValueError):
        return None
    pairs = []
    for ids, scale, shift, _ in found:
        if not torch.equal(ids.reshape(-1), torch.arange(ids.numel(), dtype=torch.float64)):
            return None
        pairs.append((compress(scale.numpy()), compress(shift.numpy())))
    if not pairs or any(s.shape != pairs[0][0].shape or (s != pairs[0][0]).any() for s, _ in pairs):
        return None
    if any(t.shape != pairs[0][1].shape or (t != pairs[0][1]).any() for _, t in pairs):
        return None
    if relation.source.shapes(w) != relation.file.shapes(v):
        return None
    return Claim(v, *composed(pairs[0][0], pairs[0][1], np.ones(()), np.zeros(())), any(one[3] for one in found))


def _followed(relation: Relation, w: ir.Value, v: ir.Value, k: int, depth: int) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Return identifiers, scales and shifts of a value's elements, and whether that is only assumed."""
    side = relation.source
    for claim in relation.by_source.get(w, ()):
        if claim.value is v:
            shape = relation.file.shapes(v)[k]
            ids = torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape)
            scale, shift = (torch.from_numpy(np.array(np.broadcast_to(a, shape))) for a in (claim.scale, claim.shift))
            return ids, scale, shift, claim.assumed
    step, node = step_of(side, w), w.producer()
    shapes = side.shapes(w)
    if depth > _DEPTH or node is None or not shapes or 0 in shapes[k] or w in side.opened or cuts(side, node):
        raise _Lost(f"{w.name!r} is not known")
    if step is not None:
        ids, scale, shift, assumed = _followed(relation, step.value, v, k, depth + 1)
        total, moved = composed(step.scale, step.shift, scale.numpy(), shift.numpy())
        size = side.shapes(w)[k]
        both = [torch.from_numpy(np.array(np.broadcast_to(array, size))) for array in (total, moved)]
        return ids, both[0], both[1], assumed
    if kind(node) not in MOVES or kind(node) == "Concat" or node.inputs[0] is None:
        raise _Lost(f"{w.name!r} is not known")
    ids, scale, shift, assumed = _followed(relation, node.inputs[0], v, k, depth + 1)
    first = node.inputs[0]
    made = [_run(side, w, {first: part}.get, k) for part in (ids, scale, shift)]
    return made[0], made[1], made[2], assumed


def further(relation: Relation, w: ir.Value, v: ir.Value) -> Claim | None:
    """Return the claim for a value of the source that moving, not computing, makes of what v holds, or the reverse."""
    found = returned(relation, w, v)
    moved = confirm_moved(relation, v, w) if found is None else None
    return next((claim for _, claim in moved.claims), None) if isinstance(moved, Proof) else found
