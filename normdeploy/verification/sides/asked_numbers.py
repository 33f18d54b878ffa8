"""Numbers that a file takes as inputs: torch's older exporter makes one of each float and integer of forward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from normdeploy.exporting.module.forward import flatten_arguments, split_arguments


def with_numbers(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, names: Sequence[str]
) -> tuple[Any, Mapping[str, Any] | None]:
    """Return arguments with numbers, given or by default, as tensors of no axis, where the file has as many inputs.

    Args:
        model: the module. args, kwargs: its example arguments. names: the file's inputs.

    Returns:
        ``args, kwargs`` as they were where these are as many as the file takes, or numbers make no such number either.
    """
    positional, named = split_arguments(model, args, kwargs)
    if len(flatten_arguments(model, positional, named).tensors) == len(names):
        return args, kwargs
    bound = inspect.signature(model.forward).bind(*positional, **named)
    bound.apply_defaults()
    for name, value in bound.arguments.items():
        if type(value) in _STORED_AS:
            bound.arguments[name] = torch.tensor(value, dtype=_STORED_AS[type(value)])
    fits = len(flatten_arguments(model, bound.args, bound.kwargs).tensors) == len(names)
    return (bound.args, bound.kwargs) if fits else (args, kwargs)


_STORED_AS: Mapping[type, torch.dtype] = {float: torch.float64, int: torch.int64}
