"""Sizes that became known because what computes them was evaluated: the channels of a part that a Slice cuts out.

A tracer writes ``x.chunk(2, 1)`` with a dynamic batch as Slices whose ends are computed from x.shape. onnx's inference
knows nothing of what such a Slice returns, nor of what is made of it. Once the ends are constants it does, and then the
sizes of what is made of the parts are constants, too, which other Slices may be computed from. Splits that take the way
over a sequence (:mod:`normdeploy.rewrite.sequence_splits`) tell the sizes of their parts once they are plain Splits.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from normdeploy.graph.dynamic_dims import names_of
from normdeploy.graph.walk import nodes_of
from normdeploy.rewrite.infer import infer_missing_types
from normdeploy.rewrite.sequence_splits import resolve_sequences
from normdeploy.rewrite.weights.evaluate_constants import EvaluateConstants


class FollowSizes(ir.passes.InPlacePass):
    """Infer the sizes that evaluated integers and plain Splits tell, and what follows from these, until no more do.

    Every value that is read has a type and a shape then, where onnx's inference knows one.

    Args:
        evaluate: the pass that has evaluated the constants.
    """

    def __init__(self, evaluate: EvaluateConstants) -> None:
        super().__init__()
        self._evaluate = evaluate

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Look at every operator that reads an evaluated integer, and at every sequence."""
        modified = cut = resolve_sequences(model)
        given = {name for value in model.graph.inputs for names in _computed(value) for name in names}
        while True:
            waiting = self._waiting(model, given)
            unknown = sum(_unknown(value, given) for value in waiting)
            told = self._evaluate.told
            if not infer_missing_types(model, anew=cut or told or bool(waiting)):
                break
            told = told or sum(_unknown(value, given) for value in waiting) != unknown
            cut = resolve_sequences(model)
            evaluated = told and self._evaluate(model).modified
            if not cut and not evaluated:
                break
            modified = True
        return ir.passes.PassResult(model, modified)

    def _waiting(self, model: ir.Model, given: set[str]) -> list[ir.Value]:
        """Return results of unknown size of the operators that read what the last evaluation found."""
        readers = (
            n for n in nodes_of(model) if any(v is not None and v.name in self._evaluate.integers for v in n.inputs)
        )
        return [value for node in readers for value in node.outputs if _unknown(value, given)]


def _unknown(value: ir.Value, given: set[str]) -> int:
    """Return how many sizes of a value are known neither as a number nor by the names of the graph's inputs' sizes."""
    return sum(not names or not given.issuperset(names) for names in _computed(value))


def _computed(value: ir.Value) -> Iterator[tuple[str, ...]]:
    """Yield the names that each size of a value is made of which is no number; none where nothing is known of it."""
    return (names_of(size) for size in value.shape or () if not isinstance(size, int))
