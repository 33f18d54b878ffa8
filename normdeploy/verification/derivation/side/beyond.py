"""What follows from sizes at sizes beyond those that are tried.

Numbers that follow from sizes are compared at a few assignments of these. That says what they are at all sizes only
where nothing decides between two formulas: min(n, 1000) is n as long as no size above is tried. So each comparison,
bound, quotient and cut is looked at: where all that was tried lies on one side of it, both graphs have to decide alike,
by the same operators on the same numbers.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph import FLOATS, compress
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.verification.derivation.side.body_graphs import bodies_of
from normdeploy.verification.derivation.side.operands import inputs_of, kind, without_leading
from normdeploy.verification.derivation.side.settled import shaping
from normdeploy.verification.derivation.side.size_bounds import INTEGERS, REALS, least, least_of_each, number_at

if TYPE_CHECKING:
    from normdeploy.verification.derivation.side.checked_side import Side


_EVEN = frozenset({
    "Gather", "GatherND", "GatherElements", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Identity", "Flatten",
    "Transpose", "Expand", "Tile", "ConstantOfShape", "Split", "Pad", "Resize", "Constant", "Where", "And", "Or",
    "Xor", "Not", "Add", "Sub", "Mul", "Neg", "Sum", "Mean", "Pow", "Sqrt", "Reciprocal", "Exp", "Log", "Sin",
    "Cos", "Tanh", "Sigmoid", "Erf", "Gelu", "Softplus", "Softmax", "LogSoftmax", "MatMul", "Gemm", "Conv",
    "ConvTranspose", "Einsum", "CumSum", "ReduceSum", "ReduceProd", "ReduceMean", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSumExp", "AveragePool", "GlobalAveragePool", "LayerNormalization", "RMSNormalization",
    "InstanceNormalization", "GroupNormalization", "BatchNormalization",
})  # fmt: skip
"""Operators that compute by one formula, whatever the sizes; a Where decides nothing that its condition does not."""

_COMPARES = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Min", "Max", "Clip"})
_AT_EQUALITY = {"GreaterOrEqual": (0,), "Less": (0,), "Greater": (1,), "LessOrEqual": (1,), "Equal": ()}
"""Places of the operand that decides alike whether it is the other or above it; of a bound, both."""

_QUOTIENTS = frozenset({"Div", "Mod"})
_ROUNDS = frozenset({"Floor", "Ceil", "Round", "Sign", "Cast", "CastLike", "Range"})
NO_END = 2**31 - 1
"""Bounds from here on are none."""

_WITHIN = {-1, 0, 1}
"""Bounds that no size moves: one is at least 1."""


def decides(side: Side, value: ir.Value | None) -> bool:
    """Tell whether a number that follows from sizes is one formula of them at all that were tried, and may be another.

    Args:
        side: the graph. value: the number; what is none decides nothing.
    """
    if value is None or len(side.runs) < 2 or side.is_constant(value):
        return False
    if value not in side.decided:
        side.decided[value] = False  # a graph has no circles
        side.decided[value] = _decides(side, value)
    return side.decided[value]


def _decides(side: Side, value: ir.Value) -> bool:
    node = value.producer()
    if node is None:
        return False
    if kind(node) in ("Shape", "Size"):
        return is_cut(side, node.inputs[0])
    if not side.follows(value):
        return False
    return any(decides(side, read) for read in inputs_of(node)) or is_one_sided(side, node)


def is_cut(side: Side, value: ir.Value | None) -> bool:
    """Tell whether the shape of a value depends on a cut that was seen from one side."""
    if not side.cut_known:
        side.cut_known = True
        for node in side.nodes:
            read = [v for v in inputs_of(node) if v is not None]
            if any(v in side.cut for v in read) or _cuts_sizes(side, node):
                side.cut.update(node.outputs)
    return value in side.cut


def _cuts_sizes(side: Side, node: ir.Node) -> bool:
    """Tell whether the sizes of what an operator returns depend on a number that decides: what it adds is no size."""
    if bodies_of(node) or not is_standard(node):
        return cuts(side, node)
    if kind(node) == "Slice" and len(side.runs) > 1 and _slices(side, node):
        return True
    return any(read is not None and side.follows(read) and decides(side, read) for read in shaping(node))


def cuts(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator that moves elements may move others at sizes beyond those that were tried."""
    if len(side.runs) < 2:
        return False
    inputs = inputs_of(node)
    if any(read is not None and side.follows(read) and decides(side, read) for read in inputs[1:]):
        return True
    return kind(node) == "Slice" and _slices(side, node)


def is_one_sided(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator on numbers that follow from sizes decides, and did so alike at all that were tried."""
    name, inputs = kind(node), inputs_of(node)
    inputs = inputs[:1] if name == "CastLike" else inputs  # of the other only its type is read
    if name in _EVEN:
        return False
    if name == "Slice":
        return _slices(side, node)
    found = [number_at(side, value) for value in inputs if value is not None]
    if any(one is None for one in found):
        return True
    read = [one for one in found if one is not None]
    if not any(map(_varies, read)) or (_of_numbers(node) and all(map(_is_one_number, read))):
        return False
    if has(node, Trait.POINTWISE) and not any(_varies([compress(array) for array in one]) for one in read):
        return False  # the same numbers at all sizes, repeated as often as these say: a mask for each of a batch
    made = number_at(side, node.outputs[0])
    if name in _COMPARES and len(inputs) > 1:
        return any(_apart(side, node, read, pair) for pair in combinations(range(len(read)), 2))
    if name in ("Abs", "Relu"):
        return least(side, inputs[0]) < 0
    if name in _QUOTIENTS:
        if side.type_of(node.outputs[0]) in FLOATS:
            return False
        return all((np.abs(a) < np.abs(b)).all() for a, b in zip(*read, strict=True))
    if name in ("Cast", "CastLike"):
        types = side.type_of(node.outputs[0]), None if inputs[0] is None else side.type_of(inputs[0])
        if types[0] in REALS or (types[0] in INTEGERS and types[1] in (*INTEGERS, ir.DataType.BOOL)):
            return False
        wide = types[0] in (*INTEGERS, ir.DataType.BOOL)
        if not wide and (made is None or all(map(np.array_equal, made, read[0]))):
            return True  # what a narrow type wraps, or rounds, is beyond what was tried
    if name in _ROUNDS:
        return made is None or not _varies(made) or _is_one_number(made)
    if name == "Trilu" and made is not None:
        return all(map(np.array_equal, made, read[0])) or not any(array.any() for array in made)
    return True


def _of_numbers(node: ir.Node) -> bool:
    """Tell whether an operator makes one number of one number, in whatever shape."""
    return has(node, Trait.POINTWISE) or (has(node, Trait.REDUCES) and has(node, Trait.EXACT))


def _varies(arrays: list[Array]) -> bool:
    return any(not np.array_equal(array, arrays[0]) for array in arrays[1:])


def _is_one_number(arrays: list[Array]) -> bool:
    """Tell whether all elements are the same number at each assignment, however many there are."""
    one = arrays[0].reshape(-1)[:1]
    return bool(one.size) and all(array.size and (array == one).all() for array in arrays)


def _apart(side: Side, node: ir.Node, read: list[list[Array]], pair: tuple[int, int]) -> bool:
    """Tell whether one of two operands was always on one side of the other, and need not be."""
    first, second = pair
    off = [np.asarray(a, np.float64) - b for a, b in zip(read[first], read[second], strict=True)]
    every = np.concatenate([array.reshape(-1) for array in off])
    if not every.size or ((every > 0).any() and (every < 0).any()) or (every == every[0]).all():
        return False
    inputs, at_equality = inputs_of(node), _AT_EQUALITY.get(kind(node), pair)
    pairs = [(inputs[a], read[b], a in at_equality) for a, b in (pair, pair[::-1])]
    for one, other, settled in pairs:
        most = max(float(array.max()) for array in other if array.size)
        if not _varies([compress(array) for array in other]) and _is_above(least(side, one), most, settled=settled):
            return False
    if any(array.shape != off[0].shape for array in (*off, *read[first], *read[second])):
        return True
    # a target of Expand is compared to -1, which says of one size that it stays: the others are sizes, and above it
    clear = [
        _is_above(least_of_each(side, one), other[0], settled=settled)
        & np.all([array == other[0] for array in other], axis=0)
        for one, other, settled in pairs
    ]
    return bool((np.any([array != off[0] for array in off], axis=0) & ~np.any(clear, axis=0)).any())


def _is_above(low: Array | float, number: Array | float, *, settled: bool) -> Any:
    """Tell whether numbers from ``low`` on are above another; where equality decides alike (``settled``), or at it."""
    return low >= number if settled else low > number


def _slices(side: Side, node: ir.Node) -> bool:
    """Tell whether a bound of a Slice was always beyond a size, or always within it."""
    inputs = inputs_of(node)
    shapes = () if inputs[0] is None else side.shapes(inputs[0])
    given = [None if value is None else number_at(side, value) for value in inputs[1:4]]
    if not shapes or len(given) < 2 or given[0] is None or given[1] is None:
        return True
    axes = given[2][0].reshape(-1) if len(given) > 2 and given[2] is not None else np.arange(given[0][0].size)
    for bounds in given[:2]:
        assert bounds is not None
        for index, axis in enumerate(axes):
            ends = [int(array.reshape(-1)[index]) for array in bounds]
            sizes = [shape[int(axis)] for shape in shapes]
            off = [end - size if end >= 0 else end + size for end, size in zip(ends, sizes, strict=True)]
            free = all(abs(end) >= NO_END for end in ends) or set(ends) <= _WITHIN or len(set(off)) == 1
            if not free and len(set(sizes)) > 1 and not (min(off) < 0 < max(off)):
                return True
    return False


def key(side: Side, value: ir.Value | None, *, spread: bool = False) -> Hashable:
    """Return how a number follows from sizes: by its decisions, and the numbers between which they decide.

    Args:
        side: the graph. value: the number.
        spread: what reads it brings it to the size of others, so that it is alike however often it holds the same.
    """
    if value is None:
        return None
    node, numbers = value.producer(), number_at(side, value)
    if node is None or not decides(side, value) or kind(node) in ("Shape", "Size"):
        arrays = [_once(array) for array in numbers or ()] if spread else numbers or ()
        told = [(array.shape, array.astype(np.float64).tobytes()) for array in arrays]
        return (decides(side, value), *told) if told else value
    if kind(node) == "Identity" or keeps_type(side, node) or _keeps_sizes(side, node):
        return key(side, node.inputs[0], spread=spread)
    said = tuple(sorted((name, str(a.value)) for name, a in node.attributes.items()))
    each = has(node, Trait.BROADCASTS)
    return kind(node), said, value.index(), tuple(key(side, read, spread=each) for read in inputs_of(node))


def _once(array: Array) -> Array:
    """Return what an operator that brings operands to one size reads of one: each number once."""
    held = compress(array)
    return held.reshape(without_leading(held.shape))


def keeps_type(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator is a Cast to the very type that it reads: other tools leave it out."""
    read, made = node.inputs[0] if node.inputs else None, side.type_of(node.outputs[0])
    return kind(node) in ("Cast", "CastLike") and read is not None and made is not None and side.type_of(read) == made


def _keeps_sizes(side: Side, node: ir.Node) -> bool:
    """Tell whether an operator brings what it reads to the sizes that it has, at all sizes: torch expands masks so."""
    if kind(node) not in ("Expand", "Reshape") or len(node.inputs) < 2 or node.inputs[0] is None:
        return False
    read, target = node.inputs
    assert read is not None
    shapes = side.shapes(read)
    told = bool(shapes) and not is_cut(side, read) and not decides(side, target)
    return told and shapes == side.shapes(node.outputs[0])


def alike_beyond(ours: Side, w: ir.Value | None, theirs: Side, v: ir.Value | None) -> bool:
    """Tell whether two numbers that are the same at the sizes that were tried are so at all others."""
    if not decides(ours, w) and not decides(theirs, v):
        return True
    return key(ours, w) == key(theirs, v)
