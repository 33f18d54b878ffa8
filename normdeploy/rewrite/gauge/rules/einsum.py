"""Einsum of computed values: scales multiply, cell by cell, for every index that is summed over; no shift is left.

s_y[out] = s_a[a] s_b[b] ... for all values of the labels that stand in no result, so that what an operand's scale
varies along and the sum runs over is tied. An Einsum with a constant is a product before it comes here
(:mod:`normdeploy.rewrite.einsum_to_product`), where it can be one; else the constant takes what the others leave.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from normdeploy.rewrite.affine.axes import dims_of
from normdeploy.rewrite.gauge.gauge import MOST_CELLS, Gauge, Tie, Ties


def tie(node: ir.Node, ties: Ties) -> bool:
    """Tie Einsum."""
    left, arrow, written = node.attributes.get_string("equation", "").replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in left or len(terms) != len(node.inputs):
        return ties.refuse(node, "has an equation that is not followed: an ellipsis, or no result named")
    if any(len(set(term)) < len(term) for term in (*terms, written)):
        return ties.refuse(node, "has an equation that is not followed: a diagonal")
    gauges: list[Gauge] = []
    why = Tie(node, "multiplies computed values, which leaves no place for a shift")
    for index, term in enumerate(terms):
        gauge = ties.operand(node, index, [2] * len(term))
        if gauge is None or gauge.rank != len(term) or dims_of(node.outputs[0]) is None:
            return ties.refuse(node, "has an operand of unknown rank")
        gauges.append(ties.no_shift(gauge, why))
    labels = [*written, *(label for label in dict.fromkeys("".join(terms)) if label not in written)]
    sums = Tie(node, "sums over the axis along which it varies, with a value computed at run time")
    whole = _whole(labels, terms, gauges)
    if math.prod(whole) > MOST_CELLS:
        gauges = [ties.along(gauge, range(gauge.rank), sums) for gauge in gauges]
        whole = _whole(labels, terms, gauges)
    result = Gauge(ties.fresh(whole[: len(written)]).scale_of, *_nothing(whole[: len(written)]))
    padded = result.each(lambda array: array.reshape(*array.shape, *(1,) * (len(whole) - array.ndim)))
    factors = [(_placed(gauge, term, labels).spread(whole), 1.0) for gauge, term in zip(gauges, terms, strict=True)]
    ties.product(padded.spread(whole), factors, sums)
    ties.of[node.outputs[0]] = result
    return True


def _nothing(cells: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(cells, np.int64), np.zeros(cells)


def _whole(labels: list[str], terms: list[str], gauges: list[Gauge]) -> tuple[int, ...]:
    """Return the cells along each label."""
    sizes = dict.fromkeys(labels, 1)
    for term, gauge in zip(terms, gauges, strict=True):
        for label, size in zip(term, gauge.cells, strict=True):
            sizes[label] = max(sizes[label], size)
    return tuple(sizes[label] for label in labels)


def _placed(gauge: Gauge, term: str, labels: list[str]) -> Gauge:
    """Return an operand's gauge with one axis per label, of size 1 for those that it does not have."""
    order = [term.index(label) for label in labels if label in term]
    cells = [gauge.cells[term.index(label)] if label in term else 1 for label in labels]
    return gauge.each(lambda array: array.transpose(order).reshape(cells))
