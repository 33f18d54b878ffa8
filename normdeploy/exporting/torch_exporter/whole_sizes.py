"""``int`` of a size, which makes the example's number of it while torch traces: found, and kept in another trace.

While torch runs a model with sizes that are symbols, ``int(x.shape[0] / 4)``, as the first Swin transformers have it,
is the example's number from then on, and what reads it, too. Python allows no other answer of ``int``; but a module's
global name ``int`` may stand for something else: ``torch.sym_int``, which keeps the symbol.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

_TORCH = Path(torch.__file__).parent
_SIZES = (torch.SymInt, torch.SymFloat)

Globals = dict[str, Any]


class _Kind(type):
    """What ``int`` is asked: whether something is one, and for one."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, builtins.int)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], _SIZES):
            return torch.sym_int(args[0])  # type: ignore[no-untyped-call] # torch leaves it unannotated
        return builtins.int(*args, **kwargs)


class _Whole(int, metaclass=_Kind):
    """``int``, of which a size stays a size."""


@contextmanager
def numbers_made_of_sizes() -> Iterator[list[Globals]]:
    """Yield a list of the globals of all code, torch's own left out, that makes a number of a size in this block."""
    found: list[Globals] = []

    def noted(original: Callable[[Any], int]) -> Callable[[Any], int]:
        def number(size: Any) -> int:
            frame = sys._getframe(1)  # who asks: an operator of Python's own has no frame
            if _TORCH not in Path(frame.f_code.co_filename).parents and all(
                known is not frame.f_globals for known in found
            ):
                found.append(frame.f_globals)
            return original(size)

        return number

    with ExitStack() as stack:
        for kind in _SIZES:
            stack.enter_context(mock.patch.object(kind, "__int__", noted(kind.__int__)))
        yield found


@contextmanager
def int_keeps_sizes(places: Sequence[Globals]) -> Iterator[None]:
    """Let ``int`` keep sizes as symbols, in this block, in the code that has these globals."""
    free = [place for place in places if "int" not in place]
    for place in free:
        place["int"] = _Whole
    try:
        yield
    finally:
        for place in free:
            del place["int"]
