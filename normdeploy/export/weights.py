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
_NESTED_UNDER = ("state_dict", "model_state_dict", "model")


def read_weights(path: str | os.PathLike[str], *, unsafe_pickle: bool = False) -> dict[str, torch.Tensor]:
    """Read tensors by name from ``.safetensors``, or from what ``torch.save`` wrote.

    Args:
        path: the file. Checkpoints that hold the state dict under "state_dict", "model_state_dict" or "model" are
            looked into.
        unsafe_pickle: allow a pickle that runs code when it is read; otherwise only tensors and containers are.

    Raises:
        WeightsError: the file is missing, damaged or holds something else than tensors by name.
    """
    file = Path(path)
    if not file.is_file():
        raise WeightsError(f"{file} does not exist; expected a weights file: correct the path")
    content: Any
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
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
    for key in _NESTED_UNDER:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise WeightsError(
            f"{file} holds a {type(content).__name__}, not tensors by name; expected a state dict: "
            "save model.state_dict()"
        )
    return {str(key): value for key, value in content.items()}


def load_weights(model: nn.Module, weights: str | os.PathLike[str] | Mapping[str, torch.Tensor]) -> list[str]:
    """Load weights in place: every tensor of ``state_dict()`` must be there and fit, nothing may be left over.

    Tensors that ``state_dict()`` does not see (plain objects' and plain attributes') are loaded by their path
    ("bn.running_mean") where the weights have them; see ``normdeploy.nn.hidden.full_state``. A prefix "module." on
    every key (from DistributedDataParallel) is dropped.

    Args:
        model: the model.
        weights: a file for ``read_weights``, or tensors by name.

    Returns:
        Paths of the tensors that ``state_dict()`` does not see and that the weights do not have: they stay as the
        model's constructor left them.

    Raises:
        WeightsError: naming missing, unexpected and misshapen keys. The model is then unchanged.
    """
    origin = "a state dict" if isinstance(weights, Mapping) else os.fspath(weights)
    given = dict(weights) if isinstance(weights, Mapping) else read_weights(weights)
    own = {key: value for key, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    hidden = {place.path: place for place in hidden_tensors(model)}
    if given and all(key.startswith("module.") for key in given) and not any(key.startswith("module.") for key in own):
        given = {key.removeprefix("module."): value for key, value in given.items()}
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
            "state_dict(): give the weights this model was trained to, and build it with the same arguments"
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


def _short(keys: Sequence[str]) -> str:
    if not keys:
        return "none"
    return "[" + ", ".join(keys[:_SHOWN]) + (f", ... {len(keys) - _SHOWN} more]" if len(keys) > _SHOWN else "]")
