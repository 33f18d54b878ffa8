"""Which integers of the file a value of the source stands for: w = step (v - zero)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

import onnx_ir as ir

from normdeploy.graph import FLOATS
from normdeploy.verification.derivation.integers.integer_values import number
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind

Range = tuple[int, int]


@dataclass(frozen=True)
class Known:
    """w = step (v - zero), for every input.

    Args:
        value: v, integers of the file. step, zero: one number each; exact: in float64.
        assumed: it was not confirmed, or follows from what was not.
    """

    value: ir.Value
    step: float
    zero: int
    exact: bool = True
    assumed: bool = False


@dataclass
class Whole:
    """What is known of integers.

    Args:
        source: the source.
        by_file: per value of the file, the source's values that it stands for. ranges: of the file's integers.
    """

    source: Side
    by_file: dict[ir.Value, dict[ir.Value, Known]] = field(default_factory=dict)
    ranges: dict[ir.Value, Range] = field(default_factory=dict)

    def add(self, w: ir.Value, known: Known) -> None:
        """Take a fact, and what it says of all that only restores, copies or scales the value."""
        queue = [(w, known)]
        for value, fact in queue:
            held = self.by_file.setdefault(fact.value, {})
            if value in held and (fact.assumed or not held[value].assumed):
                continue
            held[value] = fact
            for usage in value.uses():
                further = self._restored(usage.node, usage.idx, fact)
                if further is not None:
                    queue.append((usage.node.outputs[0], further))

    def _restored(self, node: ir.Node, index: int, fact: Known) -> Known | None:
        """Return what integers the result of an operator stands for that reads what stands for them."""
        inputs = inputs_of(node)
        if kind(node) in ("Identity", "Cast", "CastLike") and index == 0:
            return fact if kind(node) == "Identity" or fact.step == 1 or self._is_float(node) else None
        if kind(node) == "DequantizeLinear" and index == 0 and node.attributes.get_int("block_size", 0) == 0:
            step = number(self.source, inputs[1])
            zero = number(self.source, inputs[2]) if len(inputs) > 2 else 0.0
            if step is None or zero is None or fact.step != 1 or step <= 0:
                return None
            exact = fact.exact and self.source.stored_in(inputs[1]) is not None
            return replace(fact, step=step, zero=fact.zero + int(zero), exact=exact)
        if kind(node) in ("Mul", "Div") and len(inputs) == 2 and (index == 0 or kind(node) == "Mul"):
            factor = number(self.source, inputs[1 - index])
            if factor is None or factor <= 0 or not self._is_float(node):
                return None
            step = fact.step * factor if kind(node) == "Mul" else fact.step / factor
            whole = (
                Fraction(fact.step) * Fraction(factor)
                if kind(node) == "Mul"
                else Fraction(fact.step) / Fraction(factor)
            )
            stored = self.source.stored_in(inputs[1 - index]) is not None
            return replace(fact, step=step, exact=fact.exact and stored and whole == Fraction(step))
        return None

    def _is_float(self, node: ir.Node) -> bool:
        """Tell whether a result is of a floating-point type: nothing is cut off or wraps around there."""
        return self.source.type_of(node.outputs[0]) in FLOATS
