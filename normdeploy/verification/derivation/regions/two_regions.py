"""Two regions of operators at drawn points, and whether each number in them counts at one of these.

A number that counts for nothing wherever the regions were compared was not compared. So each small and each large
one is moved a little: where no result moves, points are drawn at spreads at which it may count, and where it counts
at none of them either, that the regions are one is not decided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Shape
from normdeploy.graph import FLOATS, evaluate_node
from normdeploy.graph.operator_evaluation import as_operand
from normdeploy.verification.derivation.gauges import Claim
from normdeploy.verification.derivation.regions.compared_points import draw
from normdeploy.verification.derivation.regions.differences import TOLERANCE, differs
from normdeploy.verification.derivation.regions.vast_scales import brought, held_by_file, read_by_source, wanted
from normdeploy.verification.derivation.related.relation import Relation, Target
from normdeploy.verification.derivation.related.stored_rounding import Wrong
from normdeploy.verification.derivation.related.unrounded import Constants
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind, with_attributes

_MOVED = 1 + 2.0**-20
"""By what a number is multiplied to see whether it counts: what is off by less is off by rounding."""

_PLAIN = (1e-3, 1e3)
"""Numbers between these count at points of the usual spreads, if anywhere."""

_GUARD = 1e-30
"""A number below this stands in for none: it keeps a quotient of float32 finite where nothing else would."""

_UNREAD = frozenset({"Dropout", "CastLike", "BatchNormalization"})
"""Operators whose numbers are not read where they are evaluated, or meet constants alone."""


@dataclass(frozen=True)
class Point:
    """A point of a spread, and the results there: want of the source's region, have of the file's, brought to it."""

    k: int
    spread: float
    drawn: Mapping[ir.Value, Tensor]
    want: Tensor
    have: Tensor


@dataclass(frozen=True)
class _Number:
    """A number of a region: an operand, by its place, or an attribute, by its name; or what the region reads."""

    node: ir.Node | None
    which: int | str | ir.Value
    size: float

    @property
    def name(self) -> str:
        """What it is called where it counts for nothing."""
        read = self.which.name if isinstance(self.which, ir.Value) else None
        return repr(read) if self.node is None else f"{self.size:.3g} in {kind(self.node)}"


@dataclass(frozen=True)
class Regions:
    """A region of the file and one of the source.

    Args:
        relation: the graphs. value: the file's result. target: what it may stand for.
        theirs, ours: their operators. claims: what the source's reads, by what the file's reads.
        constants: unrounded ones of the file. moves: what makes of what the file's reads something that is claimed.
    """

    relation: Relation
    value: ir.Value
    target: Target
    theirs: Sequence[ir.Node]
    ours: Sequence[ir.Node]
    claims: Mapping[ir.Value, Claim]
    constants: Constants
    moves: Mapping[ir.Value, ir.Node]

    def drawn(self, shapes: Mapping[ir.Value, Shape], k: int, scale: float) -> Iterator[Point]:
        """Yield a point of a spread, at one assignment of sizes."""
        given = draw(self.relation.file, shapes, scale, k)
        yield Point(k, scale, given, self.want(given, k), self.have(given, k))

    def unseen(self, points: Sequence[Point]) -> Wrong | str:
        """Return which number counts at no point, how the regions differ where it does, or "" for neither."""
        if not any(tensor.is_floating_point() for tensor in points[0].drawn.values()):
            return ""  # each row of a table was looked up: there is no other point
        numbers = [*self._numbers(self.relation.file, self.theirs), *self._numbers(self.relation.source, self.ours)]
        if any(number.size > _PLAIN[1] for number in numbers):  # beside which what is read may be lost
            numbers += [
                _Number(None, leaf, 1.0) for leaf, tensor in points[0].drawn.items() if tensor.is_floating_point()
            ]
        left = [number for number in numbers if not any(self._counts(number, p) for p in _likeliest(number, points))]
        if not left:
            return ""
        shapes = {leaf: tuple(tensor.shape) for leaf, tensor in points[0].drawn.items()}
        sizes = {number.size for number in numbers}
        spreads = {way(size) for size in sizes for way in (float, math.sqrt, _inverse, lambda n: _inverse(n) ** 0.5)}
        for spread in sorted(spreads):
            for point in self.drawn(shapes, points[0].k, spread):
                if self.is_noise(point):
                    continue
                wrong = differs(point.want, point.have)
                if wrong is not None:
                    return wrong
                left = [number for number in left if not self._counts(number, point)]
            if not left:
                return ""
        return f"{left[0].name} counts at no point that is drawn"

    def _numbers(self, side: Side, nodes: Sequence[ir.Node]) -> Iterator[_Number]:
        """Yield the numbers of a region that points of usual spreads may not show."""
        for node in nodes:
            if kind(node) in _UNREAD:
                continue
            for index, read in enumerate(inputs_of(node)):
                found = None if read is None or side.type_of(read) not in FLOATS else side.constant(read)
                if found is not None and found.size == 1 and _is_far(float(found.reshape(-1)[0])):
                    yield _Number(node, index, abs(float(found.reshape(-1)[0])))
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.FLOAT and _is_far(float(attribute.value)):
                    yield _Number(node, attribute.name, abs(float(attribute.value)))

    def _counts(self, number: _Number, point: Point) -> bool:
        if isinstance(number.which, ir.Value):
            moved = {**point.drawn, number.which: point.drawn[number.which] * _MOVED}
            pairs = ((point.want, self.want(moved, point.k)), (point.have, self.have(moved, point.k)))
            return all(differs(a, b) is not None for a, b in pairs)
        if number.node in self.theirs:
            return differs(point.have, self.have(point.drawn, point.k, number)) is not None
        return differs(point.want, self.want(point.drawn, point.k, number)) is not None

    def is_noise(self, point: Point) -> bool:
        """Tell whether rounding moves results at a point, or whether they leave the range of numbers there."""
        if not bool(torch.isfinite(point.want).all() & torch.isfinite(point.have).all()):
            return True
        moved = self.want(point.drawn, point.k, noise=True), self.have(point.drawn, point.k, noise=True)
        return any(
            differs(a, b, TOLERANCE / 16) is not None for a, b in zip((point.want, point.have), moved, strict=True)
        )

    def want(
        self,
        drawn: Mapping[ir.Value, Tensor],
        k: int,
        moved: _Number | None = None,
        *,
        noise: bool = False,
        lost: tuple[float, int] | None = None,
    ) -> Tensor:
        """Return the results of the source's region, of what it reads where the file's reads what was drawn.

        Args:
            moved: a number that is moved a little. noise: each result is rounded at random.
            lost: what lost digits is read as it was drawn, whatever its gauge, and is off by this unit of rounding
                of that, by signs along an axis.
        """
        given: dict[ir.Value, Tensor] = {}
        for w, claim in self.claims.items():
            move = self.moves.get(claim.value)
            held = drawn[claim.value] if move is None else evaluate_node(move, [drawn[v] for v in move.inputs if v])[0]
            held = held.reshape(self.relation.source.shapes(w)[k]) if claim.rows else self._held(claim.value, held)
            found = _of(claim, held) if lost is None or not claim.tells_less else _off(held, claim, *lost)
            given[w] = read_by_source(claim, held, found, self.moves, len(given))
        return wanted(
            self.target,
            self._evaluate(self.relation.source, self.ours, self.target.value, given, k, moved, None, noise=noise),
        )

    def have(
        self,
        drawn: Mapping[ir.Value, Tensor],
        k: int,
        moved: _Number | None = None,
        *,
        noise: bool = False,
        stored: bool = False,
    ) -> Tensor:
        """Return the results of the file's region, brought to the source's; with its constants as they are stored."""
        constants = None if stored else self.constants
        given = {value: self._held(value, tensor) for value, tensor in drawn.items()}
        found = self._evaluate(self.relation.file, self.theirs, self.value, given, k, moved, constants, noise=noise)
        if self.target.rows:
            found = found.reshape(self.relation.source.shapes(self.target.value)[k])
        return brought(self.target, found)

    def _held(self, value: ir.Value, drawn: Tensor) -> Tensor:
        return held_by_file(self.claims.values(), value, drawn, self.moves)

    def _evaluate(
        self,
        side: Side,
        nodes: Sequence[ir.Node],
        value: ir.Value,
        given: Mapping[ir.Value, Tensor],
        k: int,
        moved: _Number | None,
        constants: Constants | None,
        *,
        noise: bool,
    ) -> Tensor:
        known = dict(given)
        generator = torch.Generator().manual_seed(k)
        for node in nodes:
            which = moved.which if moved is not None and moved.node is node else None
            operands: list[Tensor | None] = []
            for index, read in enumerate(inputs_of(node)):
                if read is None or read in known:
                    operands.append(None if read is None else known[read])
                    continue
                number = as_operand(self._constant(side, constants, node, index, read, k))
                operands.append(number * _MOVED if which == index else number)
            whole = node if constants is None else constants.operator(node)
            if isinstance(which, str):
                whole = _with_moved(whole, which)
            with torch.no_grad():
                found = evaluate_node(whole, operands, opset_imports=side.imports)
            if noise:
                found = [
                    t * (1 + 2.0**-52 * torch.randn(t.shape, generator=generator, dtype=torch.float64))
                    if t.is_floating_point()
                    else t
                    for t in found
                ]
            known.update(zip(node.outputs, found, strict=False))
        if value not in known:
            raise RuntimeError(f"{value.name!r} cannot be computed")
        return known[value]

    def _constant(
        self, side: Side, constants: Constants | None, node: ir.Node, index: int, read: ir.Value, k: int
    ) -> np.ndarray:
        """Return what an operator reads that follows from sizes, of the file unrounded where that is known."""
        unrounded = None if constants is None else constants.of(node, index)
        if unrounded is not None:
            return unrounded
        numbers = side.numbers(read)
        found = None if numbers is None else numbers[k] if constants is None else constants.expression(read, k)
        if found is None:
            raise RuntimeError(f"{read.name!r} cannot be computed")
        return found


def _likeliest(number: _Number, points: Sequence[Point]) -> list[Point]:
    """Return points, first those of whose variance an epsilon of this size would be most, and the smaller ones."""
    root = math.log(number.size) / 2
    return sorted(points, key=lambda point: (abs(math.log(point.spread) - root), point.want.numel()))


def _is_far(number: float) -> bool:
    return abs(number) >= _GUARD and math.isfinite(number) and not _PLAIN[0] <= abs(number) <= _PLAIN[1]


def _inverse(number: float) -> float:
    return 1 / number


def _with_moved(node: ir.Node, name: str) -> ir.Node:
    kept = [ir.AttrFloat32(name, a.value * _MOVED) if a.name == name else a for a in node.attributes.values()]
    return with_attributes(node, kept)


def _of(claim: Claim, drawn: Tensor) -> Tensor:
    if not drawn.is_floating_point():
        return drawn
    return drawn * torch.from_numpy(claim.scale) + torch.from_numpy(claim.shift)


def _off(given: Tensor, claim: Claim, unit: float, axis: int) -> Tensor:
    axis = max(axis, -given.dim())
    shape = [1] * given.dim()
    shape[axis] = -1
    signs = torch.randn(given.shape[axis], generator=torch.Generator().manual_seed(axis)).sign().reshape(shape)
    return given + unit * torch.from_numpy(np.asarray(claim.lost)) * signs
