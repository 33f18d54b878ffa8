"""How hand-written layers say that they are in training: flags and words, in attributes of the usual names.

``training`` is torch's own. Layers that are no nn.Module, or whose author did not know of it, keep
``is_training = True`` or ``mode = "train"``, which ``eval()`` does not reach.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

_TRAINING = ("is_training", "is_train", "in_training", "train_mode", "training_mode", "training_phase")
_EVALUATION = ("is_eval", "eval_mode", "evaluating", "is_inference", "inference_mode", "inference")
_WORDS = ("mode", "phase", "stage", "run_mode", "train_or_eval", "train_or_test")
_TRAINING_WORDS = frozenset({"train", "training", "fit"})
# in the order in which they are looked for in the author's code; the first is used where none stands there
_EVALUATION_WORDS = (
    "eval",
    "evaluation",
    "test",
    "testing",
    "inference",
    "infer",
    "predict",
    "valid",
    "validation",
    "val",
)


@dataclass(frozen=True)
class Flag:
    """One attribute that says that its object is in training.

    Args:
        name: the attribute.
        value: what it holds.
        evaluation: what it holds in evaluation.
    """

    name: str
    value: object
    evaluation: object


def is_flag(value: object) -> bool:
    """Tell whether a value is a truth value, as a Python or NumPy bool, an int or a tensor of one element."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and value.dtype in (torch.bool, torch.uint8, torch.int64, torch.int32)
    return isinstance(value, (bool, np.bool_, int))


def training_flags(value: Any) -> Iterator[Flag]:
    """Yield the attributes by which an object says that it is in training, ``training`` itself left out.

    Args:
        value: a module, or a plain object of the user's.
    """
    for names, when in ((_TRAINING, True), (_EVALUATION, False)):
        for name in names:
            held = _held(value, name)
            if isinstance(held, (bool, np.bool_)) and bool(held) is when and not _goes_with_layers(value, name):
                yield Flag(name, held, not when)
    for name in _WORDS:
        held = _held(value, name)
        if isinstance(held, str) and held.lower() in _TRAINING_WORDS:
            yield Flag(name, held, _word(type(value), held))


_LOOKED_UP: dict[str, object] = {
    "__getattr__": nn.Module.__getattr__,
    "__getattribute__": object.__getattribute__,
}
"""How attributes of modules are looked up, where their class does not do it in its own way."""


def _held(value: Any, name: str) -> object:
    """Return an attribute, None where there is none.

    What a module registers is a tensor or a module, and no flag. To be told by torch that there is none takes longer
    than all else that is asked of a module.
    """
    kind = type(value)
    plain = isinstance(value, nn.Module) and all(getattr(kind, way) is usual for way, usual in _LOOKED_UP.items())
    if plain and name not in vars(value) and not hasattr(kind, name):
        return None
    return getattr(value, name, None)


def _goes_with_layers(value: Any, name: str) -> bool:
    """Tell whether a method sets a flag and replaces or deletes a layer of the module too.

    MobileOne's ``inference_mode`` says that its branches have been merged into one convolution: set alone, it has the
    module pass over all its weights.
    """
    layers = {layer for layer, _ in value.named_children()} if isinstance(value, nn.Module) else set()
    methods = (pair for kind in type(value).__mro__ for pair in vars(kind).items() if layers)
    for method, item in methods:
        if isinstance(item, types.FunctionType) and method != "__init__" and name in item.__code__.co_names:
            steps = dis.get_instructions(item)
            stored = {step.argval for step in steps if step.opname in ("STORE_ATTR", "DELETE_ATTR")}
            if name in stored and layers & {*stored, *_strings(item)}:
                return True
    return False


def _word(kind: type, held: str) -> str:
    """Return the word for evaluation that the class itself knows, in the case of the one it holds."""
    known = {word for cls in kind.__mro__ for item in vars(cls).values() for word in _strings(item)}
    chosen = next((word for word in _EVALUATION_WORDS if word in {item.lower() for item in known}), "eval")
    spelled = [item for item in known if item.lower() == chosen]
    if spelled:
        return min(spelled)
    return chosen.upper() if held.isupper() else chosen


def _strings(item: object) -> Iterator[str]:
    code = getattr(item, "__code__", None)
    if isinstance(item, property):
        for part in (item.fget, item.fset):
            yield from _strings(part)
    elif isinstance(code, types.CodeType):
        stack: list[object] = [code]
        while stack:
            constant = stack.pop()
            if isinstance(constant, types.CodeType):
                stack.extend(constant.co_consts)
            elif isinstance(constant, (tuple, frozenset)):
                stack.extend(constant)
            elif isinstance(constant, str):
                yield constant
