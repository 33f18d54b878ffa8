"""Models built or loaded under ``torch.inference_mode()``: their tensors can be neither traced, updated nor trained.

Such a tensor keeps no version counter, and torch raises wherever it needs one. An ordinary copy holds the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from normdeploy.nn.object_walk import REGISTRIES, Reached, is_foreign, slots_of, walk


def leave_inference(model: nn.Module, reached: Iterable[Reached] | None = None) -> int:
    """Exchange every inference tensor that a model holds for an ordinary copy, shared ones for one; return how many.

    Args:
        model: changed in place: parameters, buffers, and tensors in attributes, slots, lists and dicts.
        reached: what is reached from it (`object_walk.walk`), where that is known.
    """
    copies: dict[int, Tensor] = {}
    with torch.inference_mode(False), torch.no_grad():
        for held, put in list(_places(walk(model) if reached is None else reached)):
            if held.is_inference():
                copy = copies.get(id(held))
                if copy is None:
                    copy = held.clone()
                    if isinstance(held, nn.Parameter):
                        copy = nn.Parameter(copy, requires_grad=held.requires_grad)
                    copies[id(held)] = copy
                put(copy)
    return len(copies)


def _places(reached: Iterable[Reached]) -> Iterator[tuple[Tensor, Callable[[Tensor], None]]]:
    """Yield (tensor, what puts another in its place)."""
    for found in reached:
        value: Any = found.value
        stores: list[Any] = []
        if isinstance(value, (dict, list)):
            stores.append(value)
        elif isinstance(value, nn.Module) or not (isinstance(value, Tensor) or is_foreign(value)):
            stores.append(getattr(value, "__dict__", {}))
            if isinstance(value, nn.Module):
                stores += [vars(value)[name] for name in REGISTRIES]
            for name in slots_of(value):
                if isinstance(getattr(value, name, None), Tensor):
                    yield getattr(value, name), _setter(object.__setattr__, value, name)
        for store in stores:
            for key, item in list(store.items() if isinstance(store, dict) else enumerate(store)):
                if isinstance(item, Tensor):
                    yield item, _setter(type(store).__setitem__, store, key)


def _setter(method: Callable[..., Any], holder: Any, key: Any) -> Callable[[Tensor], None]:
    return lambda tensor: method(holder, key, tensor)
