"""Trained weights into a model, with messages that name what does not fit."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from normdeploy.errors import WeightsError
from normdeploy.nn.object_walk import unregistered_tensors
from normdeploy.nn.unregistered import assign, unlike_tensors
from normdeploy.nn.weight_files import read_weights

_SHOWN = 6
# of DistributedDataParallel, torch.compile, Lightning modules and the like
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.", "ema_model.", "ema.")


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
    origin: str | os.PathLike[str] = "a state dict",
) -> list[str]:
    """Load weights in place: every tensor of ``state_dict()`` must be there and fit, nothing may be left over.

    Tensors that ``state_dict()`` does not see (plain objects' and plain attributes') are loaded by their path
    ("bn.running_mean") where the weights have them; see ``normdeploy.nn.unregistered.full_state``. Prefixes of wrappers
    ("module.", "_orig_mod.", "model." and the like) are taken off.

    Args:
        model: the model.
        weights: a file for ``read_weights``, or tensors by name.
        allow_missing: paths of modules whose weights may be missing, left over or of another shape: what does not fit
            there stays as the constructor left it.
        notes: appended to where something was understood or left.
        origin: what tensors by name are called in errors: the file that they were read from.

    Returns:
        Paths of the tensors that ``state_dict()`` does not see and that the weights do not have: they stay as the
        model's constructor left them.

    Raises:
        WeightsError: naming missing, unexpected and misshapen keys. The model is then unchanged.
    """
    origin = os.fspath(origin if isinstance(weights, Mapping) else weights)
    notes = [] if notes is None else notes
    given = dict(weights) if isinstance(weights, Mapping) else read_weights(weights, notes=notes)
    own = {key: value for key, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    unregistered = unregistered_tensors(model)
    given = _without_prefixes(given, [*own, *unregistered], notes)
    spared = tuple(f"{path.rstrip('.')}." for path in allow_missing)
    for path, prefix in zip(allow_missing, spared, strict=True):
        if not any(f"{key}.".startswith(prefix) for key in (*own, *unregistered, *given)):
            modules = [name for name, _ in model.named_modules() if name]
            near = difflib.get_close_matches(path, modules, 1)
            hint = f": did you mean {near[0]}?" if near else ": correct the path, or leave it out"
            raise WeightsError(
                f"{path!r} may be missing and is no module of {type(model).__name__}; expected one with weights, such "
                f"as {_short(modules)}{hint}"
            )
    unfit = [
        key
        for key in {**own, **given}
        if f"{key}.".startswith(spared or ("\0",))
        and (key not in given or (key not in own and key not in unregistered) or _misfits(given[key], own.get(key)))
    ]
    if unfit:
        notes.append(f"not loaded, as allowed: {_short(unfit)}")
        given = {key: value for key, value in given.items() if key not in unfit}
        own = {key: value for key, value in own.items() if key not in unfit}
    missing = [key for key in own if key not in given]
    unexpected = [key for key in given if key not in own and key not in unregistered]
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
    held = unregistered | own
    if unlike := unlike_tensors(given, held):
        raise WeightsError(
            f"{origin} holds other numbers than {type(model).__name__} computes with: {_short(unlike)}; expected dense "
            "tensors of the same kind (floating point, complex, whole numbers or truth values): convert them where "
            "they are made"
        )
    model.load_state_dict({key: given[key] for key in own}, strict=False)
    for path, tensor in unregistered.items():
        if path in given:
            assign(path, tensor, given[path])
    return [path for path in unregistered if path not in given]


def _misfits(value: torch.Tensor, held: torch.Tensor | None) -> bool:
    return held is not None and value.shape != held.shape


def _short(keys: Sequence[str]) -> str:
    if not keys:
        return "none"
    return "[" + ", ".join(keys[:_SHOWN]) + (f", ... {len(keys) - _SHOWN} more]" if len(keys) > _SHOWN else "]")
