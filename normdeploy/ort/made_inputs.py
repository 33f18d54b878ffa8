"""Inputs made from what a model declares: the only place where whole inputs are drawn."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from normdeploy.array_types import Array
from normdeploy.errors import InputError, UsageError
from normdeploy.ort.specs import TensorSpec

Sizes = Callable[[TensorSpec, int], int]
"""(input, axis) -> the size of a dimension that the model leaves open."""

SHARE = 1 / 8
"""Of the machine's memory for inputs made up from declared sizes: running and judging take several times as much."""


def make_inputs(
    specs: Sequence[TensorSpec],
    size_of: Sizes,
    *,
    seed: int = 0,
    ones: Mapping[str, float] | None = None,
    ids: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """Draw an array for every input: N(0, 1) for floats, 0 or 1 for integers and booleans.

    Args:
        specs: the inputs, of any of NumPy's types and bfloat16.
        size_of: decides the sizes that the model leaves open.
        seed: of the draws.
        ones: share of ones, by name, of inputs of any type that are masks: 0 and 1 is all they hold.
        ids: number of ids, by name, that an integer input may hold: 0 to that number less one.

    Raises:
        UsageError: an input holds text.
        InputError: the inputs are larger than an eighth of this machine's memory.

    >>> specs = [TensorSpec("x", "float32", ("rows", 3)), TensorSpec("word", "int64", ("rows",))]
    >>> made = make_inputs(specs, lambda spec, axis: 2, ids={"word": 100})
    >>> {name: (str(array.dtype), array.shape) for name, array in made.items()}
    {'x': ('float32', (2, 3)), 'word': ('int64', (2,))}
    """
    random, made = np.random.default_rng(seed), dict[str, Array]()
    shapes = [
        [size if isinstance(size, int) else size_of(spec, axis) for axis, size in enumerate(spec.shape)]
        for spec in specs
    ]
    require_memory(specs, shapes)
    for spec, shape in zip(specs, shapes, strict=True):
        if spec.dtype == "object":
            raise UsageError(f"input {spec} holds text; expected example inputs: texts cannot be made up")
        dtype = np.dtype(spec.dtype)
        share = (ones or {}).get(spec.name, 0.5 if dtype.kind == "b" else None)
        if share is not None:
            drawn: Array = random.random(shape) < share
        elif dtype.kind in "iu":
            drawn = random.integers(0, (ids or {}).get(spec.name, 2), shape)
        else:
            drawn = np.asarray(random.standard_normal(shape))
        made[spec.name] = drawn.astype(dtype)
    return made


def require_memory(specs: Sequence[TensorSpec], shapes: Sequence[Sequence[int]]) -> None:
    """Refuse, before any is asked for, inputs that together take more than :data:`SHARE` of this machine's memory.

    Raises:
        InputError: they do, drawn in float64; names the largest.
    """
    # an axis of no rows counts as one: NumPy makes no array whose other axes ask for more than it can address
    sizes = [8 * prod(max(1, size) for size in shape) for shape in shapes]
    most = int(_memory() * SHARE)
    if sum(sizes) > most:
        at = sizes.index(max(sizes))
        raise InputError(
            f"input {specs[at].name!r} has the shape {list(shapes[at])}, {sizes[at] / 2**30:.3g} GiB in float64; "
            f"expected what fits an eighth of this machine's memory, {most / 2**30:.3g} GiB for all inputs: give "
            "smaller sizes"
        )


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # a system that does not say: refuse what no machine holds
        return 2**42
