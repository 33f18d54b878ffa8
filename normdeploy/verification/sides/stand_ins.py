"""What stands for a module's own tensors in float64 while it runs: what is written to one is found in it later.

A forward may write to a buffer, to a slice of one or through another name of it (running averages, caches of keys), and
read it again. Each such tensor has one promoted copy, of which a slice is a slice. Parameters are promoted one call at
a time, so that memory stays flat, until a call hands out the tensor behind one (``weight.data``) or writes to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from normdeploy.nn.promoted import PROMOTED, promoted
from normdeploy.nn.wrapped import is_wrapped

_HANDS_OUT = frozenset({getattr(Tensor, "data").__get__, Tensor.detach, torch.detach})  # noqa: B009 - unknown to its stubs

_Key = tuple[int, int, torch.Size, tuple[int, ...], torch.dtype]


class StandIns:
    """Promoted tensors of a run, by where the tensors that they stand for lie in memory."""

    def __init__(self) -> None:
        self._held: dict[_Key, tuple[Tensor, int, Tensor]] = {}

    def of(self, value: Any, func: Any) -> Any:
        """Return what an argument of a call is promoted to; what is no low-precision tensor or dtype, as it is.

        Args:
            value: an argument. func: what is called.
        """
        key = _key(value)
        if key is None:
            return promoted(value)
        held = self._held.get(key)
        if held is not None and held[1] == _version(value):  # not written to in a way that nobody here saw
            return held[2]
        found = promoted(value)
        if not isinstance(value, Parameter) or func in _HANDS_OUT:
            self._held[key] = value, _version(value), found
        return found

    def write(self, target: Tensor, found: Tensor) -> None:
        """Round what was written in float64 into the tensor itself, and keep both.

        Args:
            target: the tensor. found: its promoted copy.
        """
        target.copy_(found)
        key = _key(target)
        if key is not None:
            self._held[key] = target, _version(target), found


def _key(value: Any) -> _Key | None:
    """Return where a low-precision tensor lies; None of anything else."""
    if type(value) not in (Tensor, Parameter) or value.dtype not in PROMOTED or value.layout is not torch.strided:
        return None
    if is_wrapped(value):  # it lies nowhere, and is itself alone
        return id(value), 0, value.shape, value.stride(), value.dtype
    storage = value.untyped_storage()._cdata
    return storage, value.storage_offset(), value.shape, value.stride(), value.dtype


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version
