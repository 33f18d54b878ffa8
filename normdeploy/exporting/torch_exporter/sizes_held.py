"""Dimensions that a trace calls dynamic though the graph holds for the example's size, or for some sizes, alone.

``int(x.shape[0] / 4)``, a number made of one that is no integer, is the example's from then on: the trace notes that it
must be so, which torch's own program asks at each call, and torch's exporter to ONNX drops. So it does with the sizes
that an ``if x.shape[0] > 4`` leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped] # it has no types
import torch

_TIMES = 8  # larger sizes that are tried: who asks for odd ones, or for multiples of four, finds some

_LEAST = 2
_MOST = 1 << 10  # what a batch that is tried may be, in rows


class SizeHeldError(Exception):
    """A dynamic dimension, of which the trace made the example's number."""


class OneRowError(SizeHeldError):
    """A dynamic dimension, of which forward does something else where it is 1; a trace takes it for 2 at least."""


def require_free_sizes(program: Any) -> None:
    """Require that no number that a trace took for the example's is computed of a dynamic size.

    Args:
        program: a ``torch.export.ExportedProgram``.

    Raises:
        SizeHeldError: what the trace notes of such numbers holds at no multiple of the example's size, nor behind them.
    """
    hints = {size.node.expr: size.node.hint for size in _sizes(program) if size.node.expr.is_Symbol}
    if not hints:
        return
    environment = next(size.node.shape_env for size in _sizes(program))
    asked = (row for rows in environment.deferred_runtime_asserts.values() for row in rows)
    numbers = [row.expr for row in (*environment.guards, *asked) if _is_a_number(row.expr)]
    for symbol, size in hints.items():
        mine = [found for found in numbers if symbol in found.free_symbols]
        others = (*(size * times for times in range(2, _TIMES)), *range(size * _TIMES, (size + 1) * _TIMES))
        if mine and not any(all(_holds(found, hints | {symbol: other}) for found in mine) for other in others):
            raise SizeHeldError(
                "a Python number is made of it, as int(x.shape[0] / 4) does, and the trace keeps the example's"
            )


def sizes_left_out(program: Any) -> list[int]:
    """Return the sizes next to those that a trace holds for, and 1 where that is below.

    A trace takes every dynamic size for 2 at least, which is no decision of forward.
    """
    found: set[int] = set()
    for size in _sizes(program):
        limits = program.range_constraints.get(size.node.expr)
        if limits is None:
            continue
        if limits.lower > _LEAST:
            found |= {1, int(limits.lower) - 1}
        if limits.upper <= _MOST:
            found.add(int(limits.upper) + 1)
    return sorted(found)


def _is_a_number(found: Any) -> bool:
    """Whether it says what number an expression of sizes is."""
    return isinstance(found, sympy.Eq) and any(side.is_Integer for side in found.args)


def _holds(found: Any, sizes: Mapping[Any, int]) -> bool:
    return bool(found.xreplace({symbol: sympy.Integer(size) for symbol, size in sizes.items()}) == sympy.true)


def _sizes(program: Any) -> Iterator[Any]:
    """Yield the sizes of a program's inputs that it calls dynamic."""
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            sizes: Sequence[Any] = value.shape  # typed as numbers
            yield from (size for size in sizes if isinstance(size, torch.SymInt))
