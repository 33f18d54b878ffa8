"""Einsum of computed values: scales multiply, cell by cell, for every index that is summed over; no shift is left.

But where it averages by weights that sum to one, as Softmax writes them, a shift passes that is one for all of them;
and of a constant v, such as the vector of a MatMul, any: sum_k (s x'_k + t_k) v_k has the shift sum_k t_k v_k.

s_y[out] = s_a[a] s_b[b] ... for all values of the labels that stand in no result, so that what an operand's scale
varies along and the sum runs over is tied. An Einsum with a constant is a product before it comes here
(:mod:`normdeploy.rewrite.einsum_to_product`), where it can be one; else the constant takes what the others leave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import is_constant
from normdeploy.graph.einsum_letters import averaged_by, letters_of, placed
from normdeploy.graph.operator_inputs import required
from normdeploy.graph.summed_axis import summed_axis
from normdeploy.graph.weight import fixed_weight
from normdeploy.rewrite.gauge.equations.expression_rows import Rows
from normdeploy.rewrite.gauge.gauge import MOST_CELLS, Gauge
from normdeploy.rewrite.gauge.rules.merged_axis import multiplied
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed, known_dims

_UNRANKED = "has an operand of unknown rank"

_MOST_SHIFTS = 1 << 14
"""Terms of a sum of shifts that are looked at each by itself."""


def tie(node: ir.Node, ties: Ties) -> Gauge:
    """Tie a sum of products of computed values: an Einsum, or a MatMul."""
    known_dims(node.outputs[0], _UNRANKED)
    sizes = [known_dims(required(node, index), _UNRANKED) for index in range(len(node.inputs))]
    letters = letters_of(node, [len(dims) for dims in sizes])
    if letters is None:
        raise Unfollowed("has an equation that is not followed: a diagonal, or a sum over an ellipsis")
    terms, written = letters
    weighs = _weighs(node, terms, written)
    averages = averages_of(node, terms, written) if weighs is None else None
    passes = {one.data for one in (weighs, averages) if one is not None}  # of this the result carries a shift
    gauges: list[Gauge] = []
    why = Tie(node, "multiplies, which leaves no place for a shift")
    for index, (term, dims) in enumerate(zip(terms, sizes, strict=True)):
        large = math.prod(size if isinstance(size, int) else 1 for size in dims) > MOST_CELLS
        gauge = ties.operand(node, index, () if large else [2] * len(term), repeats=True, clause=_UNRANKED)
        if gauge.rank != len(term):
            raise Unfollowed(_UNRANKED)
        if index not in passes:
            gauge = ties.no_shift(gauge, why)
        elif averages is not None:
            ties.along_shift(
                gauge, [term.index(averages.letter)], Tie(node, "averages over the axis along which it varies")
            )
        gauges.append(ties.narrowed(gauge))
    gauges = multiplied(node, ties, terms, written, gauges)
    labels = [*written, *(label for label in dict.fromkeys("".join(terms)) if label not in written)]
    sums = Tie(node, "sums over the axis along which it varies, with a value computed at run time")
    sums = Tie(node) if any(map(is_constant, node.inputs)) else sums  # a constant takes what varies along it
    whole = _whole(labels, terms, gauges)
    if math.prod(whole) > MOST_CELLS:
        apart = [[at for at, label in enumerate(term) if not all(label in other for other in terms)] for term in terms]
        inner = [[at for at, label in enumerate(term) if label not in written] for term in terms]
        axes = [sorted({*one, *other}) for one, other in zip(apart, inner, strict=True)]
        gauges = [ties.along(gauge, along, sums) for gauge, along in zip(gauges, axes, strict=True)]
        whole = _whole(labels, terms, gauges)
    result = ties.fresh_scale(whole[: len(written)])
    if averages is not None:
        term, gauge = terms[averages.data], gauges[averages.data]
        one = gauge.first([term.index(averages.letter)])
        passed = _placed(one, term, labels).each(lambda array: array.reshape(array.shape[: len(written)]))
        result = replace(passed.spread(result.cells), scale_of=result.scale_of)
    elif weighs is not None:
        data = _placed(gauges[weighs.data], terms[weighs.data], labels)
        result = _weighed(node, ties, result, data, placed(weighs.array, terms[1 - weighs.data], labels))
    factors = [_placed(gauge, term, labels) for gauge, term in zip(gauges, terms, strict=True)]
    summed = range(len(written), len(labels))
    first = [gauge.first(summed) for gauge in factors]
    told = math.prod(whole[len(written) :]) > 1 and ties.alike(factors, first, sums)
    whole_result = result.each(lambda array: array.reshape(*array.shape, *(1,) * len(summed)))
    cells = whole_result.cells
    ties.product(whole_result, [(gauge.spread(cells), 1.0) for gauge in first], sums if told else Tie(node))
    return result


@dataclass(frozen=True)
class Averages:
    """Which operand is averaged by rows that sum to one, and over which letter."""

    data: int
    letter: str


def averages_of(node: ir.Node, terms: tuple[str, ...], written: str) -> Averages | None:
    """Return what a product of these letters averages; None where it sums otherwise."""
    for weights in range(min(2, len(terms))):
        axis = summed_axis(node.inputs[weights])
        letter = None if axis is None else averaged_by(terms, written, weights, axis)
        if letter is not None:
            return Averages(1 - weights, letter)
    return None


@dataclass(frozen=True)
class _Weighs:
    """Which operand is summed up by the numbers of a constant, and these."""

    data: int
    array: Floats


def _weighs(node: ir.Node, terms: tuple[str, ...], written: str) -> _Weighs | None:
    """Return what a product of two weighs by a constant that has all letters that are summed over; None otherwise."""
    for weights in range(2 if len(terms) == 2 else 0):
        found = fixed_weight(required(node, weights))
        if found is None or fixed_weight(required(node, 1 - weights)) is not None:
            continue
        array = found.array()
        summed = set("".join(terms)) - set(written)
        sizes = [array.shape[terms[weights].index(letter)] for letter in summed if letter in terms[weights]]
        spread = node.op_type != "MatMul" and 1 in sizes  # an Einsum may spread it over more elements
        return _Weighs(1 - weights, array) if len(sizes) == len(summed) and not spread else None
    return None


def _weighed(node: ir.Node, ties: Ties, result: Gauge, data: Gauge, by: Floats) -> Gauge:
    """Return the result's gauge with the shift sum_k t_k v_k.

    Args:
        result: without a shift. data: what is summed up. by: the constant; both with the result's axes, and behind them
            those that are summed over.
    """
    summed = range(result.rank, data.rank)
    by = by.sum(axis=tuple(axis for axis in summed if data.cells[axis] == 1), keepdims=True)
    cells = np.broadcast_shapes(data.cells, by.shape)
    if math.prod(cells) > _MOST_SHIFTS:
        ties.no_shift(data, Tie(node, "sums up too many shifts, each by a number of its own"))
        return result
    terms, by = data.spread(cells), np.broadcast_to(by, cells)
    cells = cells[: result.rank]
    shift = ties.shifts.new(cells)
    unknowns, factors = terms.shift_of.reshape(*cells, -1), (terms.factor * by).reshape(*cells, -1)
    rows = Rows.of(
        (shift, 1.0), *((unknowns[..., k], -factors[..., k]) for k in range(unknowns.shape[-1])), constant=0.0
    )
    ties.shifts.state(rows, Tie(node))
    whole = result.spread(np.broadcast_shapes(result.cells, cells))
    return Gauge(whole.scale_of, np.broadcast_to(shift, whole.cells), np.ones(whole.cells))


def _whole(labels: list[str], terms: tuple[str, ...], gauges: list[Gauge]) -> tuple[int, ...]:
    """Return the cells along each label."""
    sizes = dict.fromkeys(labels, 1)
    for term, gauge in zip(terms, gauges, strict=True):
        for label, size in zip(term, gauge.cells, strict=True):
            sizes[label] = max(sizes[label], size)
    return tuple(sizes[label] for label in labels)


def _placed(gauge: Gauge, term: str, labels: list[str]) -> Gauge:
    return gauge.each(lambda array: placed(array, term, labels))
