"""Powers: Pow by one number, Sqrt, Reciprocal. (s x)^p = s^p x^p, where s > 0 or p is whole; a shift does not pass.

With p = a / b that is s_x = r^b and s_y = r^a: whole exponents, as the equations have them. Below 0 a root is NaN with
or without s, and 0 stays 0 or infinite. A scale of 0 does not pass: where x is below 0, a root of 0 x is 0 and one of x
is none.
"""

from __future__ import annotations

from fractions import Fraction

import onnx_ir as ir

from normdeploy.graph import constant64
from normdeploy.graph.exponents import POWERS, exponents_of
from normdeploy.graph.operator_inputs import required
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.ties import Tie, Ties, Unfollowed, known_dims

_LARGEST = 16
"""Largest exponent by which a scale is raised: what is more leaves the range of numbers for scales near 1 already."""

_FINEST = 4
"""Largest denominator of an exponent: 1 / 3 as a float is no third."""


def tie(node: ir.Node, ties: Ties) -> Gauge:
    """Tie Pow, Sqrt, Reciprocal."""
    power = _exponent(node)
    gauge = ties.operand(node, 0).wider(len(known_dims(node.outputs[0])))
    gauge = ties.no_shift(gauge, Tie(node, "raises to a power, which leaves no place for a shift"))
    root, result = gauge, ties.fresh_scale(gauge.cells)
    if power.denominator > 1:
        ties.positive(gauge, Tie(node, "takes a root, and needs a scale above 0: those of numbers below 0 are none"))
        root = ties.fresh_scale(gauge.cells)
        ties.positive(root, Tie(node))
        ties.product(gauge, [(root, power.denominator)], Tie(node))
    ties.product(result, [(root, power.numerator)], Tie(node))
    return result


def takes_power(node: ir.Node) -> bool:
    """Tell whether an operator raises what it reads to a power."""
    return is_standard(node, *POWERS)


def _exponent(node: ir.Node) -> Fraction:
    numbers = exponents_of(node, constant64)
    if constant64(required(node, 0)) is not None or numbers is None:
        raise Unfollowed("has an exponent that is computed at run time")
    if numbers.size != 1 or not 0 < abs(float(numbers[0])) <= _LARGEST:
        raise Unfollowed("has exponents of several elements, or one that is 0 or very large")
    power = Fraction(float(numbers[0]))
    if power.denominator > _FINEST:
        raise Unfollowed("has an exponent that is no whole number, half or quarter")
    return power
