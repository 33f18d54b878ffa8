"""Questions that forward asks of the model's own state, answered while it is traced.

Hand-written layers keep flags and counters in buffers, and decide by them::

    if self.initialized == 0: ...    if self.step < self.warmup: ...    n = int(self.heads)    pad(x, (self.left, 0))

A traced tensor has no numbers, and torch.export gives up at such an `if`. But the file holds the state as it is now, so
the answer is what eager torch would say now. Each small parameter and buffer is followed by a copy of its numbers, and
so is what is computed of nothing else; a tensor into which anything else is written is no longer known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from types import EllipsisType, NoneType
from typing import Any

import torch
import torch.utils._python_dispatch as dispatch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

_SMALL = 4096
"""Elements up to which a tensor is followed: flags, counters and what is kept per channel, no weights of products."""
_ANSWERS = frozenset({
    Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__contains__, Tensor.item,
    Tensor.tolist, torch.is_nonzero, torch.equal, torch.allclose, Tensor.is_nonzero, Tensor.equal, Tensor.allclose,
})  # fmt: skip
_BY_NUMBERS = frozenset({
    nn.functional.pad, torch.reshape, torch.narrow, torch.tile, torch.roll, Tensor.reshape, Tensor.view, Tensor.expand,
    Tensor.repeat, Tensor.narrow, Tensor.tile, Tensor.roll, Tensor.__getitem__,
})  # fmt: skip
"""Functions that take a tensor of one number behind their first argument for a size or a place, as they take an int."""
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
"""Not uint8: as an index it is a mask."""
_SETTLED = (
    int, float, complex, str, NoneType, EllipsisType, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
"""Arguments that are what they are while a model is traced; sizes may not be."""
_DRAWN = ("rand", "normal", "uniform", "bernoulli", "multinomial", "poisson", "exponential", "dropout", "empty")
"""Parts of the names of functions that give something else each time."""
_OUTSIDE = getattr(dispatch, "_disable_current_modes", None)
"""Leaves the trace for a block; a torch that has it no more traces without answers."""
_MAKERS = frozenset({torch.tensor, torch.as_tensor, torch.zeros, torch.ones, torch.full, torch.arange})


class KnownState(TorchFunctionMode):
    """Follows the numbers of a model's state through its forward.

    Args:
        model: the model as it is traced: what its registries hold now stands for ``numbers``.
        numbers: tensors with numbers, by their names in the model.
    """

    def __init__(self, model: nn.Module, numbers: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._known: dict[int, _Known] = {}
        traced = [(tensor, numbers[name]) for name, tensor in _state(model) if name in numbers]
        plain = [pair for pair in traced if pair[1].layout is torch.strided]  # others lie in more than one memory
        pairs = [(tensor, real) for tensor, real in plain if tensor is not real and _OUTSIDE is not None]
        for (tensor, _), real in zip(pairs, _run(_copies, ([real for _, real in pairs],), {}), strict=True):
            self._known[id(tensor)] = _Known(tensor, real)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer a question of known tensors; follow everything else."""
        del types
        kwargs = dict(kwargs or {})
        if torch.compiler.is_dynamo_compiling():  # of the bodies of torch.cond and its kin, which it follows itself
            return func(*args, **kwargs)
        if func in _BY_NUMBERS:
            args, kwargs = (*args[:1], *self._as_numbers(args[1:])), self._as_numbers(kwargs)
        leaves = tree_leaves((args, kwargs))
        known = [self._known[id(leaf)] for leaf in leaves if id(leaf) in self._known]
        settled = len(known) + sum(map(_is_settled, leaves)) == len(leaves) and not _draws(func)
        if not known and not (settled and func in _MAKERS and _OUTSIDE):
            return func(*args, **kwargs)
        if not settled:
            if known and (_writes(func, kwargs) or any(leaf is True for leaf in leaves)):  # training=, inplace=
                self._forget(known)
            return func(*args, **kwargs)
        real_args, real_kwargs = tree_map_only(Tensor, lambda leaf: self._known[id(leaf)].real, (args, kwargs))
        if func in _ANSWERS:
            return _run(func, real_args, real_kwargs)
        result = func(*args, **kwargs)
        if isinstance(result, (Tensor, tuple, list)) or _writes(func, kwargs):
            self._follow(result, func, real_args, real_kwargs)
        return result

    def _as_numbers(self, arguments: Any) -> Any:
        """Return arguments with the numbers in place of known tensors of one integer; inside of slices, too."""

        def number(leaf: Any) -> Any:
            if isinstance(leaf, slice):
                return slice(number(leaf.start), number(leaf.stop), number(leaf.step))
            found = self._known.get(id(leaf))
            whole = found is not None and not found.real.dim() and found.real.dtype in _INTEGERS
            return found.real.item() if found is not None and whole else leaf

        return tree_map(number, arguments)

    def _follow(self, result: object, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        with suppress(Exception):  # what does not work on numbers alone is not known
            for traced, real in zip(tree_leaves(result), tree_leaves(_run(func, args, kwargs)), strict=True):
                if isinstance(traced, Tensor) and id(traced) not in self._known and real.numel() <= _SMALL:
                    self._known[id(traced)] = _Known(traced, real)

    def _forget(self, written: Iterable[_Known]) -> None:
        """Forget tensors, with all that lie in the same memory."""
        places = {one.place for one in written}
        self._known = {key: one for key, one in self._known.items() if one.place not in places}


class _Known:
    """A traced tensor, which is kept so that its id stays its own, its numbers, and where these lie."""

    def __init__(self, tensor: Tensor, real: Tensor) -> None:
        self.tensor, self.real, self.place = tensor, real, real.untyped_storage().data_ptr()


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _run(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a function on numbers, outside of the trace."""
    with _OUTSIDE() if _OUTSIDE is not None else nullcontext():
        return func(*args, **kwargs)


def _is_settled(leaf: object) -> bool:
    if isinstance(leaf, slice):
        return all(isinstance(part, _SETTLED) for part in (leaf.start, leaf.stop, leaf.step))
    return isinstance(leaf, _SETTLED)


def _draws(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return any(part in name for part in _DRAWN)


def _writes(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a function writes into one of its arguments, by torch's names: add_, __iadd__, out=."""
    name = getattr(func, "__name__", "")
    inside = name.startswith("__i") and name.endswith("__") and name not in ("__int__", "__index__", "__invert__")
    return "out" in kwargs or name in ("__setitem__", "__set__") or inside or (name.endswith("_") and name[-2:] != "__")


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def small_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's parameters and buffers that are worth following, by name."""
    return {name: tensor for name, tensor in _state(model) if tensor.numel() <= _SMALL}
