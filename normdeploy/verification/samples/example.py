"""Inputs of a graph that brings none: random, of the dtypes and shapes that it declares."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from normdeploy.array_types import Arrays
from normdeploy.errors import InputError
from normdeploy.graph.onnx_files import declared
from normdeploy.graph.sizes_of_inputs import asked_sizes
from normdeploy.ort.made_inputs import make_inputs
from normdeploy.ort.specs import TensorSpec
from normdeploy.verification.samples.roles import hides_scores


def example_from_file(model: ir.Model, *, seed: int = 0, sizes: Mapping[str, int] | None = None) -> Arrays:
    """Return random inputs of a graph's declared dtypes and shapes, for references that bring no example.

    Args:
        model: the graph.
        seed: of the random numbers.
        sizes: size per dynamic dimension's name; by default what constants ask of it, or 3 for one that is some input's
            first, 8 elsewhere.

    Raises:
        InputError: an input's dtype or rank is not declared.
    """
    inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    unknown = next((value for value in inputs if value.dtype is None or value.shape is None), None)
    if unknown is not None:
        raise InputError(
            f"input {unknown.name!r} declares no dtype or shape; expected both in the graph: pass example inputs (args)"
        )
    specs = [declared(value) for value in inputs]
    known = {**asked_sizes(model.graph), **(sizes or {})}
    first = {spec.shape[0] for spec in specs if spec.shape and not isinstance(spec.shape[0], int)}

    def size_of(spec: TensorSpec, axis: int) -> int:
        word = spec.shape[axis]
        return known.get(str(word), 3 if axis == 0 or word in first else 8)

    hidden = {str(value.name): 0.7 for value in inputs if hides_scores(value)}
    return make_inputs(specs, size_of, seed=seed, ones=hidden)
