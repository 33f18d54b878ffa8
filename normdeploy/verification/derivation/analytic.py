"""Regions of operators that are analytic functions, such as a norm spelled out and the operator it became.

Sums, products, quotients, roots of what is positive, averages and norms are analytic in what they read, and so is what
is made of them. Two analytic functions that are not one differ almost everywhere: at points drawn from a continuous
distribution, equality is identity with probability 1. So both regions are evaluated in float64 at random points, some
of a spread near each epsilon. Constants of the file take part unrounded, as the derivation says they were; that is
believed only where each stored number is within half a unit in the last place of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import evaluate_node
from normdeploy.verification.derivation.gauges import Claim
from normdeploy.verification.derivation.moving import MOVES
from normdeploy.verification.derivation.numbers import Wrong
from normdeploy.verification.derivation.points import draw, points
from normdeploy.verification.derivation.relation import Finding, Proof, Relation, Target
from normdeploy.verification.derivation.side import Side, inputs_of, kind
from normdeploy.verification.derivation.unrounded import Constants, Unlike

ANALYTIC = MOVES | frozenset({
    "Add", "Sub", "Mul", "Div", "Neg", "Sum", "Mean", "Reciprocal", "Sqrt", "Pow", "ReduceMean", "ReduceSum",
    "ReduceSumSquare", "ReduceL2", "LayerNormalization", "RMSNormalization", "InstanceNormalization",
    "GroupNormalization", "BatchNormalization", "MatMul", "Gemm", "Conv", "ConvTranspose", "AveragePool",
    "GlobalAveragePool", "Cast", "CastLike", "Dropout", "Einsum", "LpNormalization", "MeanVarianceNormalization",
})  # fmt: skip
"""Operators that are analytic wherever they are defined; as few as make linear maps and norms."""

_ROOTS = frozenset({
    "Sqrt", "Pow", "Reciprocal", "Div", "ReduceL2", "LayerNormalization", "RMSNormalization", "InstanceNormalization",
    "GroupNormalization", "LpNormalization", "MeanVarianceNormalization",
})  # fmt: skip
"""Operators in which a number may count at some spreads alone, as an epsilon does; the others make polynomials."""

_MOST_NODES = 128
"""Operators of a region."""

_SCALES = (1.0, 1e-3, 1e-6, 30.0)
"""Spreads of the points, of a variance like the epsilons in use and far above it."""

_ROUNDED = 256 * 2.0**-24
"""Difference that stored constants explain which are rounded otherwise, or computed in their own precision."""

_TOLERANCE = 1e-9
"""Largest difference in units of the largest result: float64's rounding in a statistic, far below an epsilon's part."""


class _Outside(Exception):
    """A region reads what is not known, or holds what is not analytic."""


def confirm_analytic(relation: Relation, value: ir.Value, target: Target, constants: Constants) -> Finding:
    """Confirm that a region of the file is one of the source."""
    node = value.producer()
    if node is None or kind(node) not in ANALYTIC or (target.scale == 0).any():
        return ""
    try:
        leaves: dict[ir.Value, None] = {}
        theirs = _region(relation.file, value, lambda v: v in relation.by_file and v is not value, leaves)
        claims: dict[ir.Value, Claim] = {}
        ours = _region(relation.source, target.value, lambda w: _claimed(relation, w, leaves, claims), {})
    except _Outside as error:
        return f"{kind(node)}: {error}"
    if not ours and not any(claim.value in leaves for claim in claims.values()):
        return "nothing of the source is computed there"
    try:
        wrong = _compared(relation, value, target, (theirs, ours), leaves, claims, constants)
    except Unlike as error:
        return replace(error.wrong, parts=tuple(theirs))
    if wrong is not None:
        # what another rounding of some constant explains is told of one operator: no number is known to be wrong
        return Wrong(f"{kind(node)}: {wrong.text}", wrong.rounding, parts=() if wrong.rounding else tuple(theirs))
    assumed = any(claim.assumed for claim in claims.values())
    known = Claim(value, target.scale, target.shift, assumed)
    return Proof("analytic: equal at random points", ((target.value, known),), tuple(theirs))


def _compared(
    relation: Relation,
    value: ir.Value,
    target: Target,
    regions: tuple[list[ir.Node], list[ir.Node]],
    leaves: Mapping[ir.Value, None],
    claims: Mapping[ir.Value, Claim],
    constants: Constants,
) -> Wrong | None:
    """Return how two regions differ at random points; None if they do not."""
    theirs, ours = regions
    gauges = [target.scale, target.shift, *(array for c in claims.values() for array in (c.scale, c.shift))]
    spreads = _SCALES if any(kind(node) in _ROOTS for node in (*theirs, *ours)) else _SCALES[:1]
    for number, (k, shapes) in enumerate(points(relation, theirs, ours, list(leaves), gauges)):
        for scale in spreads if number == 0 else _SCALES[:1]:
            drawn = {leaf: draw(relation.file, leaf, shape, scale, k) for leaf, shape in shapes.items()}
            have = _evaluate(relation.file, theirs, value, drawn, k, constants)
            given = {w: _of(claim, drawn[claim.value]) for w, claim in claims.items()}
            want = _evaluate(relation.source, ours, target.value, given, k, None)
            have = have * torch.from_numpy(target.scale) + torch.from_numpy(target.shift)
            wrong = _differs(want, have)
            if wrong is not None:
                return wrong
    return None


def _claimed(relation: Relation, w: ir.Value, leaves: Mapping[ir.Value, None], claims: dict[ir.Value, Claim]) -> bool:
    found = [claim for claim in relation.by_source.get(w, ()) if claim.value in leaves]
    if found:
        claims[w] = min(found, key=lambda claim: claim.assumed)
    return bool(found)


def _region(
    side: Side, value: ir.Value, known: Callable[[ir.Value], bool], leaves: dict[ir.Value, None]
) -> list[ir.Node]:
    """Return the operators that compute a value from known ones, in order."""
    found: dict[ir.Node, None] = {}
    queue = [value]
    while queue:
        current = queue.pop()
        if known(current):
            leaves[current] = None
            continue
        if side.is_sized(current):
            continue
        node = current.producer()
        if node is None or kind(node) not in ANALYTIC:
            raise _Outside(f"{current.name!r} is not known")
        if side.picks(node):
            raise _Outside(f"which part of a constant is in {current.name!r} depends on sizes")
        if node not in found:
            found[node] = None
            queue += [read for read in inputs_of(node) if read is not None]
        if len(found) > _MOST_NODES:
            raise _Outside("the region is too large")
    if not leaves and not found:
        raise _Outside("it reads nothing")
    for node in found:
        cast = kind(node) in ("Cast", "CastLike")
        if cast and side.type_of(node.outputs[0]) != side.type_of(node.inputs[0] or node.outputs[0]):
            raise _Outside("a Cast rounds")
        if node.attributes.get_int("training_mode", 0):
            raise _Outside("a norm of the batch")
    order = {node: index for index, node in enumerate(side.nodes)}
    return sorted(found, key=lambda node: order[node])


def _of(claim: Claim, drawn: Tensor) -> Tensor:
    if not drawn.is_floating_point():
        return drawn
    return drawn * torch.from_numpy(claim.scale) + torch.from_numpy(claim.shift)


def _evaluate(
    side: Side,
    nodes: list[ir.Node],
    value: ir.Value,
    given: Mapping[ir.Value, Tensor],
    k: int,
    constants: Constants | None,
) -> Tensor:
    known = dict(given)
    for node in nodes:
        operands: list[Tensor | None] = []
        for index, read in enumerate(inputs_of(node)):
            if read is None or read in known:
                operands.append(None if read is None else known[read])
                continue
            unrounded = None if constants is None else constants.of(node, index)
            numbers = side.numbers(read)
            if unrounded is None and numbers is None:
                raise RuntimeError(f"{read.name!r} cannot be computed")
            array = unrounded
            if numbers is not None and array is None:
                array = numbers[k] if constants is None else constants.expression(read, k)
            operands.append(torch.from_numpy(np.array(array)))
        whole = node if constants is None else constants.operator(node)
        with torch.no_grad():
            found = evaluate_node(whole, operands, opset_imports=side.imports)
            known.update(zip(node.outputs, found, strict=False))
    if value not in known:
        raise RuntimeError(f"{value.name!r} cannot be computed")
    return known[value]


def _differs(want: Tensor, have: Tensor) -> Wrong | None:
    """Return how two results differ, each row of the last axes by its own size; None if they do not."""
    if want.shape != have.shape:
        return Wrong(f"its shape is {list(have.shape)}; expected {list(want.shape)}")
    if not bool(torch.isfinite(want).all() & torch.isfinite(have).all()):
        return Wrong("it is not finite")
    if not want.numel():
        return None
    axis = 1 if want.dim() > 2 else -1
    others = [i for i in range(want.dim()) if i != axis % want.dim()]
    size, off = (t.amax(others) if others else t for t in (want.abs(), (want - have).abs()))
    size = torch.maximum(size, 1e-3 * size.max())
    worst = float((off / size).nan_to_num(0.0).max())
    text = f"it differs by {worst:.3g} of its size"
    return None if worst <= _TOLERANCE else Wrong(text, worst <= _ROUNDED)
