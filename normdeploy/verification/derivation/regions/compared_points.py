"""At which points two regions are compared: random ones, as few and as small as show every difference.

Convolutions and maps channel by channel do the same at every place, but at borders: a picture that holds each border
once, with the same rest by the strides, shows what a larger one does, and one sample what several do. What looks at
rows one by one is compared at a few; what looks them up in tables first, at every row there is.

Two assignments of sizes are enough for what is not computed from sizes: by a number that was written for one of them,
such as 1 / n, the other differs. A number that a file computes from sizes is compared at both, which have no divisor in
common; a polynomial that vanishes at both, (n - 3)(n - 7) say, slips through, and check ``dynamic`` runs at others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array, Floats, Shape
from normdeploy.graph import FLOATS
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.laws.element_moves import FOLLOWED
from normdeploy.verification.derivation.related.relation import Relation
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind
from normdeploy.verification.derivation.side.reduced_axes import reduced

_MOST = 1 << 23
"""Elements of what a region reads."""

_ROWS = 8
"""Rows of random numbers where one row is looked at at a time."""

_KEPT = 4
"""Draws that are kept for the next region, of at most twice :data:`_MOST` numbers each."""

_LOCAL = frozenset({"BatchNormalization", "Identity", "Add", "Sub", "Mul", "Div", "Neg", "Sum"})

Regions = Sequence[tuple[Side, Sequence[ir.Node]]]


def points(
    relation: Relation,
    theirs: Sequence[ir.Node],
    ours: Sequence[ir.Node],
    leaves: Sequence[ir.Value],
    gauges: Sequence[Floats],
    *,
    whole: bool = False,
) -> Iterator[tuple[int, Mapping[ir.Value, Shape]]]:
    """Return assignments of sizes, the smallest first, and the shapes to draw at.

    Args:
        theirs, ours: operators of the regions. leaves: what the file's reads. gauges: of all that enters and leaves.
        whole: of the sizes that they have, no fewer.

    Raises:
        RuntimeError: what is read is too large, or of no known size.
    """
    regions = ((relation.file, theirs), (relation.source, ours))
    rows = _rows(regions, leaves)
    if rows is None and any(relation.file.type_of(leaf) not in FLOATS for leaf in leaves):
        raise RuntimeError("integers are read by more than the rows of one table")
    seen: list[dict[ir.Value, Shape]] = []
    for k in range(min(relation.file.assignments, FOLLOWED)):
        shapes = {leaf: relation.file.shapes(leaf)[k] for leaf in leaves if relation.file.shapes(leaf)}
        if len(shapes) < len(leaves):
            raise RuntimeError("what it reads is of no known size")
        if rows is not None:
            shapes = {leaf: (*(1,) * (len(shape) - 1), rows) for leaf, shape in shapes.items()}
        window = _window(regions, leaves, gauges)
        if whole:
            pass
        elif rows is None and _row_by_row(regions, list(shapes.values()), gauges):
            shapes = {
                leaf: (*(1,) * (len(shape) - 2), min(_ROWS, shape[-2]), shape[-1]) for leaf, shape in shapes.items()
            }
        elif window is not None:
            shapes = {leaf: _small(shape, *window) for leaf, shape in shapes.items()}
        seen.append(shapes)
    if any(math.prod(shape) == 0 for shapes in seen for shape in shapes.values()):
        raise RuntimeError("it reads nothing at some sizes")
    counted = sorted((sum(math.prod(shape) for shape in shapes.values()), k) for k, shapes in enumerate(seen))
    if counted and counted[0][0] > _MOST:
        raise RuntimeError("what it reads is too large")
    tried: list[Mapping[ir.Value, Shape]] = []
    for count, k in counted:
        if count <= _MOST and seen[k] not in tried:
            tried.append(seen[k])
            yield k, seen[k]


def draw(side: Side, shapes: Mapping[ir.Value, Shape], scale: float, seed: int) -> dict[ir.Value, Tensor]:
    """Return elements of values: random numbers, others for each, or each index once."""
    floats = [leaf for leaf in shapes if side.type_of(leaf) in FLOATS]
    drawn = dict(zip(floats, _normal(tuple(shapes[leaf] for leaf in floats), seed), strict=True))
    return {
        leaf: scale * drawn[leaf] if leaf in drawn else torch.arange(math.prod(shape)).reshape(shape)
        for leaf, shape in shapes.items()
    }


def _normal(shapes: Sequence[Shape], seed: int) -> list[Tensor]:
    """Return normal random numbers, others for each shape: they follow from the shapes and the seed alone."""
    ends = [0, *accumulate(math.prod(shape) for shape in shapes)]
    pool = _pool(ends[-1].bit_length(), seed)
    return [pool[start:end].reshape(shape) for start, end, shape in zip(ends, ends[1:], shapes, strict=False)]


@lru_cache(maxsize=_KEPT)
def _pool(size: int, seed: int) -> Tensor:
    """Return two to the power of ``size`` normal random numbers: regions of about one size begin at the same ones."""
    return torch.randn(1 << size, generator=torch.Generator().manual_seed(20 + seed), dtype=torch.float64)


def _window(regions: Regions, leaves: Sequence[ir.Value], gauges: Sequence[Floats]) -> tuple[int, int] | None:
    """Return how far operators look around, and what strides make together; None where they are not local."""
    rank = 0 if len(leaves) != 1 else len(regions[0][0].shapes(leaves[0])[0])
    if rank < 3 or any(n != 1 for array in gauges for n in array.shape[2:]):
        return None
    reach, strides = 0, 1
    for side, nodes in regions:
        for node in nodes:
            inputs = [value for value in inputs_of(node) if value is not None]
            constants = [side.constant(value) for value in inputs if side.is_sized(value)]
            if kind(node) == "Conv" and constants and constants[0] is not None and len(inputs) - len(constants) == 1:
                at = {name: tuple(node.attributes.get_ints(name, ())) or (1,) for name in ("dilations", "strides")}
                pads = tuple(node.attributes.get_ints("pads", ())) or (0,)
                reach += max((n - 1) * d for n in constants[0].shape[2:] for d in at["dilations"]) + max(pads)
                strides *= math.prod(at["strides"])
            elif kind(node) == "Pad" and (widths := _widths(side, node)) is not None:
                reach += int(abs(widths).max(initial=0))
            elif kind(node) not in _LOCAL or (kind(node) != "BatchNormalization" and not _by_channel(constants, rank)):
                return None
    return reach, strides


def _widths(side: Side, node: ir.Node) -> Array | None:
    """Return how much a Pad of zeros, or of what lies beside the border, adds; None for any other."""
    others = [value for value in inputs_of(node)[1:] if value is not None]
    if node.attributes.get_string("mode", "constant") == "wrap" or not all(map(side.is_constant, others)):
        return None
    return side.constant(others[0])


def _by_channel(constants: Sequence[Array | None], rank: int) -> bool:
    """Tell whether constants are the same at every place of a picture."""
    return all(
        c is not None and (c.size == 1 or (c.ndim > rank - 2 and set(c.shape[2 - rank :]) == {1})) for c in constants
    )


def _small(shape: Shape, reach: int, strides: int) -> Shape:
    """Return a picture's shape that holds each border once, with the same rest by the strides."""
    least = (2 * reach + 2) * strides
    return (1, *shape[1:2], *(min(n, least + (n - least) % strides) for n in shape[2:]))


def _row_by_row(regions: Regions, shapes: Sequence[Shape], gauges: Sequence[Floats]) -> bool:
    """Tell whether operators look at one row at a time, all at the same one, and none at its place."""
    if not shapes or len(shapes[0]) < 2 or any(shape[:-1] != shapes[0][:-1] for shape in shapes):
        return False
    if any(n != 1 for array in gauges for n in array.shape[:-1]):
        return False
    return all(_by_row(side, node) or _by_matrix(side, node) for side, nodes in regions for node in nodes)


def _by_matrix(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator multiplies rows by a matrix."""
    matrix = side.constant(node.inputs[1]) if kind(node) == "MatMul" else None
    return matrix is not None and matrix.ndim == 2


def _rows(regions: Regions, leaves: Sequence[ir.Value]) -> int | None:
    """Return how many rows tables have where a region looks up rows and goes on row by row; None where it does not."""
    if len(leaves) != 1 or regions[0][0].type_of(leaves[0]) in FLOATS:
        return None
    counts = set()
    for side, nodes in regions:
        for node in nodes:
            table = side.constant(node.inputs[0]) if kind(node) == "Gather" else None
            if table is not None and node.attributes.get_int("axis", 0) == 0:
                counts.add(len(table))
            elif not _by_row(side, node) or any(
                v is not None and not side.is_sized(v) and side.type_of(v) not in FLOATS for v in node.inputs
            ):
                raise RuntimeError("indices are read by more than rows of tables")
    return counts.pop() if len(counts) == 1 else None


def _by_row(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator looks at one row, along the last axis, at a time, and has a row for each."""
    shapes = [] if node.inputs[0] is None else side.shapes(node.inputs[0])
    last = len(shapes[0]) - 1 if shapes else -1
    if has(node, Trait.BY_ROW):
        return bool(shapes) and node.attributes.get_int("axis", -1) in (-1, last)
    if has(node, Trait.REDUCES) and not has(node, Trait.POOLS):
        return bool(shapes) and node.attributes.get_int("keepdims", 1) != 0 and reduced(side, node, last + 1) == (last,)
    constants = [side.constant(v) for v in inputs_of(node) if v is not None and side.is_sized(v)]
    return has(node, Trait.POINTWISE) and all(c is not None and c.ndim <= 1 for c in constants)
