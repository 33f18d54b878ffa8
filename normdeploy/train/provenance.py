"""What decides a training's result, as named parts: two trainings are the same where all parts are.

A part is a name for people ("train.lr", "code of layers", "data of train, targets") and a value that is compared. The
weights' header holds those of a recipe, so that `normdeploy build` knows what is up to date; a checkpoint holds those
and the network's own, so that no interrupted training is continued with other code, data or settings.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normdeploy.files import sha256_file
from normdeploy.nn.unregistered import full_state, trainable, walk_objects
from normdeploy.parsing.recipe import Recipe, TrainSection
from normdeploy.train.data import Splits
from normdeploy.train.source_files import files_of_file, files_of_source

Parts = dict[str, str]
TRAINED_BY = "normdeploy.trained_by"
"""Key of the weights' header under which the recipe's parts lie, as JSON."""

_SHOWN = 60
_MOST = 6
_BOOKKEEPING = frozenset(vars(nn.Module()))


def of_recipe(recipe: Recipe, splits: Splits | None) -> Parts:
    """Return what a recipe says decides its weights: sources, their code, arguments, data, and ``[train]``.

    Weights path, export, verify, bench and tune settings are not among it.

    Args:
        recipe: see `normdeploy.parsing.recipe.load_recipe`.
        splits: what its data function returned; None where it has none.

    Raises:
        SourceError: a source's file does not exist.
    """
    parts: Parts = {}
    for table, section in (("model", recipe.model), ("data", recipe.data)):
        if section is None:
            continue
        if section.source is None:
            continue  # files: their content is the data's own
        parts[f"{table}.source"] = section.source
        parts |= {f"{table}.arguments.{key}": _text(value) for key, value in section.arguments.items()}
        _add_files(parts, files_of_source(section.source, folder=recipe.folder))
    if splits is not None:
        parts |= of_data(splits)
    return parts | of_settings(recipe.train)


def of_settings(settings: TrainSection) -> Parts:
    """Return the ``[train]`` settings."""
    return {f"train.{key}": _text(value) for key, value in asdict(settings).items()}


def of_data(splits: Splits) -> Parts:
    """Return the data's content: digests of each split's tensors, with their dtypes and shapes, or of its files."""
    parts = {"task of the data": splits.task, "augmentation": _name(splits.augment)}
    for name in ("train", "valid", "test"):
        for what, digest in getattr(splits, name).digests().items():
            parts[f"data of {name}, {what}"] = digest
    return parts


def of_network(model: nn.Module, builder: object, splits: Splits) -> Parts:
    """Return what the network is: its objects' classes and plain attributes, its tensors' shapes, and its code.

    The values of tensors are not among it: a checkpoint brings them along.

    Args:
        model: freshly built.
        builder: what built it, or the model.
        splits: their augmentation is code, too.
    """
    parts: Parts = {}
    for path, owner in walk_objects(model):
        parts[f"network {path or '(itself)'}"] = _described(owner)
    learns = {path for path, _ in trainable(model)}
    for path, tensor in full_state(model).items():
        how = "trained" if path in learns else "kept"
        parts[f"tensor {path}"] = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} {how}"
    things = [type(owner) for _, owner in walk_objects(model)]
    for thing in dict.fromkeys([*things, _function(builder), _function(splits.augment)]):
        _add_code(parts, thing)
    return parts


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what differs, each as a phrase: "train.lr is 0.01, was 0.003"."""
    phrases = []
    for name in sorted(then.keys() | now.keys()):
        old, new = then.get(name), now.get(name)
        if old == new:
            continue
        if new is None:
            phrases.append(f"{name} is gone")
        elif old is None:
            phrases.append(f"{name} is new")
        elif max(len(old), len(new)) > _SHOWN:
            phrases.append(f"{name} changed")
        else:
            phrases.append(f"{name} is {new}, was {old}")
    return phrases


def summarize(phrases: list[str]) -> str:
    """Join the first few of `changes`."""
    more = f" and {len(phrases) - _MOST} more" if len(phrases) > _MOST else ""
    return "; ".join(phrases[:_MOST]) + more


def to_header(parts: Parts) -> dict[str, str]:
    """Return the weights' header entry that holds ``parts``."""
    return {TRAINED_BY: json.dumps(parts, sort_keys=True)}


def from_header(metadata: Mapping[str, str]) -> Parts | None:
    """Return the parts that a weights file was trained by; None where its header does not tell."""
    try:
        parts = json.loads(metadata.get(TRAINED_BY, "null"))
    except (ValueError, RecursionError):
        return None
    return parts if are_parts(parts) else None


def are_parts(value: Any) -> bool:
    """Tell whether ``value``, read from a file, is what `changes` compares: words by name."""
    return isinstance(value, dict) and all(isinstance(word, str) for pair in value.items() for word in pair)


def _add_files(parts: Parts, files: Mapping[str, Path]) -> None:
    """Add files' digests; two of one name stand beside each other."""
    for name, path in files.items():
        digest, key, number = sha256_file(path), f"code of {name}", 2
        while parts.get(key, digest) != digest:
            key, number = f"code of {name} ({number})", number + 1
        parts[key] = digest


def _add_code(parts: Parts, thing: Any) -> None:
    """Add the files that define a class or function, or the code itself where no file holds it."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is None or module.__name__.partition(".")[0] in ("builtins", "torch", "normdeploy"):
        return
    file = getattr(module, "__file__", None)
    if file is None:
        if module.__name__ == "__main__":
            parts[f"code of {_name(thing)}"] = _code_digest(thing)
        return
    spec = getattr(module, "__spec__", None)  # a script's is None; "python -m pack.net" has its real name there
    given = "" if spec is None or spec.name.startswith("_normdeploy_source_") else str(spec.name)
    alone = not given
    # a script is called as it would be where another imports it: how it was started decides nothing
    name = given or Path(file).stem
    home = Path(file).parent if alone else Path.cwd()
    _add_files(parts, files_of_file(Path(file), name, package="" if alone else module.__package__ or "", home=home))


def _described(owner: object) -> str:
    """Return an object's class and its attributes of plain types; tensors and other objects stand by themselves."""
    skipped = _BOOKKEEPING if isinstance(owner, nn.Module) else {"training"}
    held = {key: _plain(value) for key, value in sorted(vars(owner).items()) if key not in skipped}
    given = ", ".join(f"{key}={value}" for key, value in held.items() if value is not None)
    return f"{type(owner).__qualname__}({given})"


def _plain(value: object) -> str | None:
    """Return a plain value's text, a container's of plain values, a function's name; None for anything else."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        parts = [_plain(entry) for entry in value]
        return f"({', '.join(part for part in parts if part is not None)})"
    if isinstance(value, (set, frozenset)):
        return f"({', '.join(sorted(part for part in map(_plain, value) if part is not None))})"
    if isinstance(value, Mapping):
        return f"({', '.join(f'{key}: {_plain(entry)}' for key, entry in value.items())})"
    if isinstance(value, functools.partial):
        return f"{_name(value.func)}{_plain(value.args)}{_plain(value.keywords)}"
    function = isinstance(value, type) or (callable(value) and not isinstance(value, nn.Module))
    return _name(value) if function else None


def _function(thing: object) -> object:
    """Return the class or function behind a partial, a bound method, a callable object or a module."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    thing = getattr(thing, "__func__", thing)
    return thing if isinstance(thing, (type, types.FunctionType)) else type(thing)


def _name(thing: object) -> str:
    return "none" if thing is None else str(getattr(thing, "__qualname__", type(thing).__qualname__))


def _code_digest(thing: Any) -> str:
    """Digest what a class's or function's code computes, for those typed in by hand."""
    digest = hashlib.sha256()

    def take(code: types.CodeType) -> None:
        inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        atoms = [repr(constant) for constant in code.co_consts if not isinstance(constant, types.CodeType)]
        digest.update(code.co_code + repr((code.co_names, code.co_varnames, atoms)).encode())
        for constant in inner:
            take(constant)

    functions = [thing] if isinstance(thing, types.FunctionType) else list(vars(thing).values())
    for function in functions:
        if isinstance(function := getattr(function, "__func__", function), types.FunctionType):
            take(function.__code__)
    return digest.hexdigest()


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
