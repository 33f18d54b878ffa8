"""``int``, ``float`` and ``len``, which make the example's number of a size in a trace: found, and kept in another.

While torch runs a model with sizes that are symbols, ``int(x.shape[0] / 4)``, as the first Swin transformers have it,
is the example's number from then on, and what reads it, too; so are ``float(x.shape[0])`` and ``len(x)``. Python allows
no other answer of them; but a module's global name ``int`` may stand for something else, which keeps the symbol.
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

Place = tuple[dict[str, Any], str]
"""The globals of some code, and the name in them that makes numbers of sizes there."""


def _keeping(kind: type, kept: Callable[[Any], Any]) -> type:
    """Return what stands for a type of numbers, of which a size stays a size.

    Args:
        kind: the type: what is one, and what is made of all but sizes, is the type's own answer.
        kept: makes a symbol of that type of a size.
    """

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, kind)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return kept(args[0]) if len(args) == 1 and isinstance(args[0], _SIZES) else kind(*args, **kwargs)

    return Kind(kind.__name__, (kind,), {})


def _length(value: Any, /) -> Any:
    """Return ``len``, of a tensor its first size as it is."""
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else builtins.len(value)


_KEEPING = {"int": _keeping(int, torch.sym_int), "float": _keeping(float, torch.sym_float), "len": _length}
_ASKED_FOR = {"__int__": ("int",), "__float__": ("float",), "__index__": ("len", "float")}
"""What Python asks of a size, and the names by which code may have made it ask."""


@contextmanager
def numbers_made_of_sizes() -> Iterator[list[Place]]:
    """Yield a list of the places in all code, torch's own left out, that make a number of a size in this block."""
    found: list[Place] = []

    def noted(original: Callable[[Any], Any], names: Sequence[str]) -> Callable[[Any], Any]:
        def number(size: Any) -> Any:
            frame = sys._getframe(1)  # who asks: an operator of Python's own has no frame
            if _TORCH not in Path(frame.f_code.co_filename).parents:
                for name in names:
                    place = frame.f_globals, name
                    if name in frame.f_code.co_names and not is_among(place, found):
                        found.append(place)
            return original(size)

        return number

    with ExitStack() as stack:
        for kind in _SIZES:
            for method, names in _ASKED_FOR.items():
                if original := getattr(kind, method, None):
                    stack.enter_context(mock.patch.object(kind, method, noted(original, names)))
        yield found


def is_among(place: Place, places: Sequence[Place]) -> bool:
    """Tell whether a place is one of these."""
    return any(place[0] is known and place[1] == name for known, name in places)


@contextmanager
def sizes_kept(places: Sequence[Place]) -> Iterator[None]:
    """Let ``int``, ``float`` and ``len`` keep sizes as symbols, in this block, at these places."""
    put = [(known, name) for known, name in places if name not in known]
    for known, name in put:
        known[name] = _KEEPING[name]
    try:
        yield
    finally:
        for known, name in put:
            del known[name]
