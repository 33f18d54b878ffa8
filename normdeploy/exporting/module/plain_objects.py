"""Tensors that plain objects hold, as a decoder's cache of keys and values: they are inputs and outputs like others.

What an object keeps for itself (names with an underscore) is neither; objects of libraries such as torch, modules and
functions are not looked into.
"""

from __future__ import annotations

import copy
import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from normdeploy.errors import InputError
from normdeploy.nn.object_walk import ATOMS, children, is_foreign

ObjectPath = tuple[str | int, ...]
"""Names of attributes and keys, and positions."""

_NOT_DATA = (nn.Module, types.FunctionType, types.MethodType, functools.partial)


def is_plain(value: object) -> bool:
    """Whether a value is an object of somebody's class: no number, container, module, function or library's object."""
    return not isinstance(value, (*ATOMS, *_NOT_DATA)) and not is_foreign(value)


def held_tensors(value: object, *, private: bool = False) -> Iterator[tuple[ObjectPath, torch.Tensor]]:
    """Yield path and tensor of each that an object holds, in attributes, containers and further objects.

    Args:
        value: the object; a tensor is its own, any other value holds none. private: those under names with an
            underscore, too.
    """
    if isinstance(value, torch.Tensor) or is_plain(value):
        yield from _held((), value, private, set())


def _held(path: ObjectPath, value: object, private: bool, above: set[int]) -> Iterator[tuple[ObjectPath, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if isinstance(value, (*ATOMS, *_NOT_DATA)) or id(value) in above:
        return
    above.add(id(value))  # an object that holds what holds it would have no end
    positions = isinstance(value, (list, tuple, deque)) and not hasattr(value, "_fields")
    for name, child, _ in children(value):
        if private or not name.startswith("_"):
            yield from _held((*path, int(name) if positions else name), child, private, above)
    above.discard(id(value))


def renewed(value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    """Return a copy of an object that holds other tensors; what a model does to it leaves the object as it is.

    Args:
        value: the object. tensors: id of a tensor that it holds to the one in its place; all others are kept.

    Raises:
        InputError: the object cannot be copied.
    """
    kept = {id(tensor): tensor for _, tensor in held_tensors(value, private=True)}
    try:
        return copy.deepcopy(value, {**kept, **tensors})
    except (TypeError, RuntimeError) as error:
        raise InputError(
            f"an argument is a {type(value).__name__}, which cannot be copied ({error}); expected tensors, plain "
            "Python values, or objects that copy.deepcopy takes: pass the tensors themselves"
        ) from error
