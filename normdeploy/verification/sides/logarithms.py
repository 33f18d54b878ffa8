"""The logarithm of a sigmoid or a softmax as the number it is, where float64 would have lost it.

log(sigmoid(-1000)) is -1000, and log(0) in float64. The exporter writes both as one operator that does not lose it
(:func:`normdeploy.exporting.translations.translation_table.log`), and the reference in float64 stands for real numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_LOG = frozenset({torch.log, Tensor.log})
_SIGMOID = frozenset({torch.sigmoid, Tensor.sigmoid, functional.sigmoid, torch.special.expit})
_SOFTMAX = frozenset({torch.softmax, Tensor.softmax, functional.softmax, torch.special.softmax})


class Logarithms:
    """Remembers, while they live, which tensors are sigmoids or softmaxes, and of what."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[weakref.ref[Tensor], tuple[int, int], Tensor, int | None]] = {}

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Remember the result of a call if it is a sigmoid or a softmax of a tensor."""
        if not isinstance(result, Tensor) or func not in _SIGMOID | _SOFTMAX or not args:
            return
        x, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
        if func in _SOFTMAX and not isinstance(dim, int):
            return
        key = id(result)
        gone = weakref.ref(result, lambda _: self._made.pop(key, None))
        self._made[key] = (gone, (result._version, x._version), x, dim if func in _SOFTMAX else None)

    def of(self, func: Any, args: Sequence[Any]) -> Tensor | None:
        """Return the logarithm that a call asks for, if it is that of a remembered tensor; None for any other call."""
        if func not in _LOG or not args or not isinstance(args[0], Tensor):
            return None
        if id(args[0]) not in self._made:
            return None
        made, versions, x, dim = self._made[id(args[0])]
        if made() is not args[0] or (args[0]._version, x._version) != versions:
            return None
        return functional.logsigmoid(x) if dim is None else torch.log_softmax(x, dim, dtype=args[0].dtype)
