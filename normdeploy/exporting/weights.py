"""Trained weights from a file into a model, with messages that name what does not fit."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from normdeploy.errors import WeightsError
from normdeploy.nn.hidden import hidden_tensors, unlike_tensors

_SHOWN = 6
_NESTED_UNDER = (
    "state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params",
    "model_ema", "ema", "ema_state_dict", "state_dict_ema", "teacher", "student",
)  # fmt: skip
# of DistributedDataParallel, torch.compile, Lightning modules and the like
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.", "ema_model.", "ema.")


def read_weights(
    path: str | os.PathLike[str],
    *,
    unsafe_pickle: bool = False,
    key: str | None = None,
    notes: list[str] | None = None,
) -> dict[str, torch.Tensor]:
    """Read tensors by name from ``.safetensors``, or from what ``torch.save`` wrote.

    Args:
        path: the file. Checkpoints that hold the state dict under a usual name ("state_dict", "model", "model_ema",
            "ema") are looked into.
        unsafe_pickle: allow a pickle that runs code when it is read; otherwise only tensors and containers are.
        key: the name under which to look; by default the first of the usual ones that is there.
        notes: appended to where something was chosen.

    Raises:
        WeightsError: the file is missing, damaged or holds something else than tensors by name.
    """
    file = Path(path)
    if not file.is_file():
        raise WeightsError(f"{file} does not exist; expected a weights file: correct the path")
    content: Any
    try:
        if file.suffix == ".safetensors":
            content = load_file(file)
            if key is None:
                return dict(content)
            raise WeightsError(
                f"{file} is safetensors and holds one set of tensors; expected no key, and {key!r} was asked for: "
                "leave it out"
            )
        content = torch.load(file, map_location="cpu", weights_only=not unsafe_pickle)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{file} holds Python objects or is not from torch.save; expected tensors by name: save model.state_dict() "
            "as safetensors, or pass --unsafe-pickle if you trust whoever wrote the file (reading it can run any code)"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise WeightsError(
            f"{file} cannot be read: {lines[0]}; expected safetensors, or torch.save of a state_dict (tensors only): "
            "save model.state_dict() again"
        ) from error
    content = _nested(content, file, key, [] if notes is None else notes)
    if not isinstance(content, Mapping) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise WeightsError(
            f"{file} holds a {type(content).__name__}, not tensors by name; expected a state dict: "
            "save model.state_dict()"
        )
    return {str(key): value for key, value in content.items()}


def _nested(content: Any, file: Path, key: str | None, notes: list[str]) -> Any:
    """Return the state dict in a checkpoint: under ``key``, or under the first usual name that is there."""
    found = _NESTED_UNDER if key is None else (key,)
    while isinstance(content, Mapping):
        held = [name for name, value in content.items() if isinstance(value, Mapping) and value]
        names = [name for name in found if name in held]
        if key is not None and not names:
            raise WeightsError(
                f"{file} holds nothing under {key!r}; expected a key that holds tensors by name: choose one of "
                f"{', '.join(map(str, held)) or 'none (leave the key out)'}"
            )
        if not names:
            break
        others = [name for name in held if name in _NESTED_UNDER and name != names[0]]
        if others and key is None:
            notes.append(
                f"it holds {', '.join(map(repr, [names[0], *others]))}: {names[0]!r} is loaded; another one is chosen "
                "by --weights-key (key=)"
            )
        content, key, found = content[names[0]], None, _NESTED_UNDER
    return content


def _without_prefixes(given: dict[str, torch.Tensor], own: Sequence[str], notes: list[str]) -> dict[str, torch.Tensor]:
    """Take the prefixes of wrappers off the keys, where the model has none of them; say which."""
    known, dropped = set(own), ""
    if not known or known <= given.keys():
        return given
    while not known & given.keys():
        prefix = next((p for p in _PREFIXES if any(key.startswith(p) for key in given)), None)
        if prefix is None:
            return given
        inside = {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
        outside = [key for key in given if not key.startswith(prefix)]
        if outside and not known <= inside.keys() and not known & inside.keys():
            return given
        given, dropped = inside, dropped + prefix
        if outside:
            notes.append(f"left out, because they have no prefix {prefix!r}: {_short(outside)}")
    if dropped:
        notes.append(f"the prefix {dropped!r} is taken off its keys")
    return given


def load_weights(
    model: nn.Module,
    weights: str | os.PathLike[str] | Mapping[str, torch.Tensor],
    *,
    allow_missing: Sequence[str] = (),
    notes: list[str] | None = None,
) -> list[str]:
    """Load weights in place: every tensor of ``state_dict()`` must be there and fit, nothing may be left over.

    Tensors that ``state_dict()`` does not see (plain objects' and plain attributes') are loaded by their path
    ("bn.running_mean") where the weights have them; see ``normdeploy.nn.hidden.full_state``. Prefixes of wrappers
    ("module.", "_orig_mod.", "model." and the like) are taken off.

    Args:
        model: the model.
        weights: a file for ``read_weights``, or tensors by name.
        allow_missing: paths of modules whose weights may be missing, left over or of another shape: what does not fit
            there stays as the constructor left it.
        notes: appended to where something was understood or left.

    Returns:
        Paths of the tensors that ``state_dict()`` does not see and that the weights do not have: they stay as the
        model's constructor left them.

    Raises:
        WeightsError: naming missing, unexpected and misshapen keys. The model is then unchanged.
    """
    origin = "a state dict" if isinstance(weights, Mapping) else os.fspath(weights)
    notes = [] if notes is None else notes
    given = dict(weights) if isinstance(weights, Mapping) else read_weights(weights, notes=notes)
    own = {key: value for key, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    hidden = {place.path: place for place in hidden_tensors(model)}
    given = _without_prefixes(given, [*own, *hidden], notes)
    spared = tuple(f"{path.rstrip('.')}." for path in allow_missing)
    unfit = [
        key
        for key in {**own, **given}
        if f"{key}.".startswith(spared or ("\0",))
        and (key not in given or (key not in own and key not in hidden) or _misfits(given[key], own.get(key)))
    ]
    if unfit:
        notes.append(f"not loaded, as allowed: {_short(unfit)}")
        given = {key: value for key, value in given.items() if key not in unfit}
        own = {key: value for key, value in own.items() if key not in unfit}
    missing = [key for key in own if key not in given]
    unexpected = [key for key in given if key not in own and key not in hidden]
    # a plain object's running tensors may change shape at their first update; registered ones may not
    misshapen = [
        f"{key} {list(value.shape)} instead of {list(own[key].shape)}"
        for key, value in given.items()
        if key in own and value.shape != own[key].shape
    ]
    if missing or unexpected or misshapen:
        raise WeightsError(
            f"{origin} does not fit {type(model).__name__}: missing {_short(missing)}, "
            f"unexpected {_short(unexpected)}, wrong shape {_short(misshapen)}; expected exactly the keys of its "
            "state_dict(): give the weights this model was trained to, build it with the same arguments, or allow "
            "those of a new head to be missing (--allow-missing MODULE, allow_missing=[...])"
        )
    held = {path: place.tensor for path, place in hidden.items()} | own
    if unlike := unlike_tensors(given, held):
        raise WeightsError(
            f"{origin} holds other numbers than {type(model).__name__} computes with: {_short(unlike)}; expected dense "
            "tensors of the same kind (floating point, complex, whole numbers or truth values): convert them where "
            "they are made"
        )
    model.load_state_dict({key: given[key] for key in own}, strict=False)
    for path, place in hidden.items():
        if path in given:
            place.assign(given[path])
    return [path for path in hidden if path not in given]


def _misfits(value: torch.Tensor, held: torch.Tensor | None) -> bool:
    return held is not None and value.shape != held.shape


def _short(keys: Sequence[str]) -> str:
    if not keys:
        return "none"
    return "[" + ", ".join(keys[:_SHOWN]) + (f", ... {len(keys) - _SHOWN} more]" if len(keys) > _SHOWN else "]")
