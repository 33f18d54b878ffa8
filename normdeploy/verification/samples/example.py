"""Inputs of a graph that brings none: random, of the dtypes and shapes that it declares."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from normdeploy.errors import InputError
from normdeploy.inputs import require_memory
from normdeploy.verification.samples.roles import hides_scores
from normdeploy.verification.sides.values import Arrays


def example_from_file(model: ir.Model, *, seed: int = 0, sizes: Mapping[str, int] | None = None) -> Arrays:
    """Return random inputs of a graph's declared dtypes and shapes, for references that bring no example.

    Args:
        model: the graph.
        seed: of the random numbers.
        sizes: size per dynamic dimension's name; by default 3 for one that is some input's first, 8 elsewhere.

    Raises:
        InputError: an input's dtype or rank is not declared.
    """
    rng = np.random.default_rng(seed)
    feeds: Arrays = {}
    first = {str(v.shape[0]) for v in model.graph.inputs if v.shape and not isinstance(v.shape[0], int)}
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        if value.dtype is None or value.shape is None:
            raise InputError(
                f"input {value.name!r} declares no dtype or shape; expected both in the graph: "
                "pass example inputs (args)"
            )
        shape = []
        for axis, dim in enumerate(value.shape):
            if isinstance(dim, int):
                shape.append(dim)
            else:
                shape.append((sizes or {}).get(str(dim.value), 3 if axis == 0 or str(dim) in first else 8))
        dtype = value.dtype.numpy()
        name = str(value.name)
        require_memory(f"input {name!r}", shape)
        if hides_scores(value):
            feeds[name] = (rng.random(shape) < 0.7).astype(dtype)
        elif np.issubdtype(dtype, np.floating) or value.dtype.is_floating_point():
            feeds[name] = rng.standard_normal(shape).astype(dtype)
        elif dtype == np.bool_:
            feeds[name] = rng.random(shape) < 0.5
        else:
            feeds[name] = rng.integers(0, 2, shape).astype(dtype)
    return feeds
