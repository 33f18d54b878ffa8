"""Dynamic dimensions: the names that they are made of, and the size that an expression such as ``9*batch`` takes.

Both are asked for each value of a graph again, of few expressions; sympy takes 0.1 ms and more for an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import onnx_ir as ir

_KEPT = 1 << 12
"""Answers that are kept."""


def names_of(dim: int | ir.SymbolicDim) -> tuple[str, ...]:
    """Return the names that a dimension is made of; a name that is no expression stands for itself.

    Empty for a number, and where nothing is known of the dimension ("?", which some tools write for every such one).
    """
    if isinstance(dim, int) or dim.value is None:
        return ()
    if dim.value.isidentifier():  # no expression, so that none has to be read
        return (dim.value,)
    return _names(dim.value)


def size_at(dim: ir.SymbolicDim, sizes: Mapping[str, int]) -> int | None:
    """Return the size of a dimension where its names have ``sizes``; None where these, or more, do not say it."""
    if dim.value is None:
        return None
    if dim.value in sizes:
        return sizes[dim.value]
    names = names_of(dim)
    return _size(dim.value, tuple((name, sizes[name]) for name in names if name in sizes))


@lru_cache(maxsize=_KEPT)
def _names(text: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(ir.SymbolicDim(text).free_symbols())) or (text,)
    except ValueError:  # what other tools write: "batch size"
        return (text,) if any(character.isalnum() for character in text) else ()


@lru_cache(maxsize=_KEPT)
def _size(text: str, sizes: tuple[tuple[str, int], ...]) -> int | None:
    try:
        found = ir.SymbolicDim(text).evaluate(dict(sizes))
    except ValueError:  # no expression
        return None
    return found if isinstance(found, int) else None
