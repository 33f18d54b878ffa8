"""Everything a model holds: modules, plain Python objects, containers and tensors, each with its path.

``nn.Module`` walks only what was registered. Hand-written layers are often plain classes, kept in plain lists, with
tensors as plain attributes: this walk follows attributes, slots, lists, tuples, dicts, closures and bound methods too,
each object once (cycles are safe).
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

# dicts of nn.Module that hold registered things; the entries' names are the paths
REGISTRIES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
# bookkeeping of nn.Module itself
_MODULE_INTERNALS = frozenset(
    {
        *REGISTRIES,
        "_non_persistent_buffers_set",
        "_backward_pre_hooks",
        "_backward_hooks",
        "_is_full_backward_hook",
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)
ATOMS = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    types.ModuleType,
    torch.Tensor,
    np.ndarray,
    np.generic,
)
# attributes of these libraries' objects hold no layers of the user's, and their graphs of references are endless
_FOREIGN = frozenset(sys.stdlib_module_names - {"types", "collections", "functools", "dataclasses"}) | {
    *("torch", "numpy", "onnx", "onnx_ir", "onnxruntime", "pandas", "PIL", "matplotlib"),
    # who trains a model, or logs it, hangs on it afterwards with its data and with a mode of its own
    *(
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "torchmetrics",
        "accelerate",
        "ignite",
        "fastai",
        "composer",
    ),
    *("wandb", "tensorboard", "tensorboardX", "mlflow", "comet_ml", "neptune", "clearml"),
}


@dataclass(frozen=True)
class Reached:
    """One object reachable from a model.

    Args:
        path: dotted path from the model ("bn.running_mean", "layers.0.gamma"); "" for the model itself.
        value: the object.
        registered: true for modules, parameters and buffers that ``nn.Module`` itself would find from the root.
    """

    path: str
    value: Any
    registered: bool


def is_foreign(value: object) -> bool:
    """Whether an object belongs to a library whose objects hold no layers of the user's."""
    root = type(value).__module__.partition(".")[0]
    # a script run by hand is __main__; types defined in builtins are atoms or containers
    return root in _FOREIGN or root == "builtins"


def slots_of(value: object) -> list[str]:
    """Return the names of an object's slots over its whole class hierarchy."""
    names: list[str] = []
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            # private slots are mangled with the class that declares them
            mangled = name.startswith("__") and not name.endswith("__")
            names.append(f"_{cls.__name__.lstrip('_')}{name}" if mangled else name)
    return names


def children(value: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield (name, child, whether nn.Module registers it) of a module, a container, a function or a plain object."""
    if isinstance(value, nn.Module):
        state = vars(value)
        for registry in REGISTRIES:
            for name, child in state.get(registry, {}).items():
                yield name, child, True
        for registry in _HOOKS:
            for key, child in state.get(registry, {}).items():
                yield f"{registry}.{key}", child, False
        for name, child in list(state.items()):
            if name not in _MODULE_INTERNALS:
                yield name, child, False
    elif isinstance(value, Mapping):
        for key, child in list(value.items()):
            yield str(key), child, False
    elif isinstance(value, (list, tuple, deque)):
        names = getattr(type(value), "_fields", None)  # a named tuple's
        for number, child in enumerate(list(value)):
            yield (names[number] if names else str(number)), child, False
    elif isinstance(value, functools.partial):
        yield "func", value.func, False
        yield "args", value.args, False
        yield "keywords", value.keywords, False
    elif isinstance(value, types.MethodType):
        yield "__self__", value.__self__, False
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                child = cell.cell_contents
            except ValueError:  # a cell not filled yet
                continue
            yield name, child, False
    elif not is_foreign(value):
        for name, child in list(getattr(value, "__dict__", {}).items()):
            yield name, child, False
        for name in slots_of(value):
            if hasattr(value, name):
                yield name, getattr(value, name), False


def walk(root: nn.Module) -> Iterator[Reached]:
    """Yield every module, plain object, container and tensor reachable from ``root``, each once, parents first.

    Registered modules come before what plain attributes hold, so that an object reachable both ways is reported as
    registered, under its registered path.

    Args:
        root: the model.

    Returns:
        ``Reached`` rows; numbers, strings, classes and library objects are left out.
    """
    seen = {id(root)}
    # two queues: what is registered is exhausted before what is merely attached
    registered: deque[Reached] = deque([Reached("", root, True)])
    attached: deque[Reached] = deque()
    while registered or attached:
        current = registered.popleft() if registered else attached.popleft()
        if not current.registered:
            if id(current.value) in seen:
                continue
            seen.add(id(current.value))
        yield current
        if isinstance(current.value, ATOMS):
            continue
        for name, child, by_module in children(current.value):
            if isinstance(child, ATOMS) and not isinstance(child, torch.Tensor):
                continue
            path = f"{current.path}.{name}" if current.path else name
            if by_module and current.registered and child is not None:
                if id(child) not in seen:
                    seen.add(id(child))
                    registered.append(Reached(path, child, True))
            else:
                attached.append(Reached(path, child, False))


def named_unregistered(
    model: nn.Module, reached: Iterable[Reached] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield ``(path, tensor)`` of :func:`unregistered_tensors`, two of one path both."""
    for found in walk(model) if reached is None else reached:
        if isinstance(found.value, torch.Tensor) and not found.registered:
            yield found.path, found.value


def unregistered_tensors(model: nn.Module, reached: Iterable[Reached] | None = None) -> dict[str, torch.Tensor]:
    """Return the tensors a model holds that ``state_dict()``, ``parameters()`` and ``.to()`` do not see, by path.

    They are attributes of plain objects, plain tensor attributes of modules, and everything of modules kept in plain
    Python lists or dicts.

    Args:
        model: the model. reached: what is reached from it (:func:`walk`), where that is known.

    Returns:
        path -> tensor, in the order of reach; not copies.
    """
    return dict(named_unregistered(model, reached))


def _same(left: Mapping[Any, Any], right: Mapping[Any, Any]) -> bool:
    return list(left) == list(right) and all(map(operator.is_, left.values(), right.values()))


class Snapshot:
    """What every object reachable from a model holds, so that it can be given back as it was.

    Shallow per object: attributes, slots, list and dict entries by identity; tensors' contents are not copied.

    Args:
        model: the model.
        registries: also keep nn.Module's own dicts of parameters, buffers and modules. Left out while torch.export
            has swapped their contents for its own.
        reached: what is reached from it (:func:`walk`), where that is known.
    """

    def __init__(self, model: nn.Module, *, registries: bool = True, reached: Iterable[Reached] | None = None) -> None:
        self._dicts: list[tuple[str, dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[str, list[Any] | deque[Any], list[Any]]] = []
        self._slots: list[tuple[str, Any, dict[str, Any]]] = []
        for found in walk(model) if reached is None else reached:
            value = found.value
            if isinstance(value, dict):
                self._dicts.append((found.path, value, dict(value)))
            elif isinstance(value, (list, deque)):
                self._lists.append((found.path, value, list(value)))
            elif isinstance(value, (torch.Tensor, types.FunctionType, types.MethodType, functools.partial, tuple)):
                continue
            elif isinstance(value, nn.Module) or not is_foreign(value):
                state = getattr(value, "__dict__", None)
                if isinstance(state, dict):
                    self._dicts.append((found.path, state, dict(state)))
                if isinstance(value, nn.Module) and registries:
                    for registry in REGISTRIES:
                        inner = vars(value)[registry]
                        self._dicts.append((found.path, inner, dict(inner)))
                names = [name for name in slots_of(value) if hasattr(value, name)]
                if names:
                    self._slots.append((found.path, value, {name: getattr(value, name) for name in names}))

    def restore(self) -> list[str]:
        """Give every object back what it held; return the paths of what had changed."""
        changed: list[str] = []
        for path, live, kept in self._dicts:
            if not _same(live, kept):
                names = [key for key in {**live, **kept} if live.get(key, self) is not kept.get(key, self)]
                changed += [f"{path}.{name}".lstrip(".") for name in names]
                live.clear()
                live.update(kept)
        for path, entries, saved in self._lists:
            if len(entries) != len(saved) or any(a is not b for a, b in zip(entries, saved, strict=True)):
                changed.append(path)
                entries.clear()
                entries.extend(saved)
        for path, holder, values in self._slots:
            for name, value in values.items():
                if getattr(holder, name, self) is not value:
                    changed.append(f"{path}.{name}".lstrip("."))
                    object.__setattr__(holder, name, value)
        return changed
