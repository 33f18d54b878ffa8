"""Trained weights into a model, with messages that name what does not fit."""

from __future__ import annotations

import copy
import difflib
import os
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from normdeploy.errors import WeightsError
from normdeploy.exporting.module.weight_names import as_the_model_names_them, named
from normdeploy.nn.object_walk import unregistered_tensors
from normdeploy.nn.unregistered import assign, unlike_tensors
from normdeploy.nn.weight_files import read_weights
from normdeploy.nn.weight_shards import one_of_several


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
    ("bn.running_mean") where the weights have them; see ``normdeploy.nn.unregistered.full_state``. A prefix under which
    all of the model's names are ("module.", "model.", one of the author's own) is taken off, names of wrappers around
    inner modules ("_orig_mod") too. Counters of batches, which evaluation does not read, may be missing. Names that
    only hooks of the modules understand are left to them.

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
    counters = _batch_counters(model)
    given = as_the_model_names_them(given, own.keys() - counters or unregistered.keys(), notes, origin)
    spared = tuple(f"{path.rstrip('.')}." for path in allow_missing)
    for path, prefix in zip(allow_missing, spared, strict=True):
        if not any(f"{key}.".startswith(prefix) for key in (*own, *unregistered, *given)):
            modules = [name for name, _ in model.named_modules() if name]
            near = difflib.get_close_matches(path, modules, 1)
            hint = f": did you mean {near[0]}?" if near else ": correct the path, or leave it out"
            raise WeightsError(
                f"{path!r} may be missing and is no module of {type(model).__name__}; expected one with weights, such "
                f"as {named(modules)}{hint}"
            )
    unfit = [
        key
        for key in {**own, **given}
        if f"{key}.".startswith(spared or ("\0",))
        and (key not in given or (key not in own and key not in unregistered) or _misfits(given[key], own.get(key)))
    ]
    if unfit:
        notes.append(f"not loaded, as allowed: {named(unfit)}")
        given = {key: value for key, value in given.items() if key not in unfit}
        own = {key: value for key, value in own.items() if key not in unfit}
    uncounted = [key for key in counters & own.keys() if key not in given or unlike_tensors({key: given[key]}, own)]
    if uncounted:
        notes.append(f"counters of batches stay as they are, evaluation does not use them: {named(sorted(uncounted))}")
        given = {key: value for key, value in given.items() if key not in uncounted}
        own = {key: value for key, value in own.items() if key not in uncounted}
    missing = [key for key in own if key not in given]
    unexpected = [key for key in given if key not in own and key not in unregistered]
    # a plain object's running tensors may change shape at their first update; registered ones may not
    misshapen = [
        f"{key} {list(value.shape)} instead of {list(own[key].shape)}"
        for key, value in given.items()
        if key in own and value.shape != own[key].shape
    ]
    by_hooks = bool(missing or unexpected or misshapen)
    if by_hooks and not _taken_by_hooks(model, _visible(given, unregistered)):
        raise WeightsError(
            f"{origin} does not fit {type(model).__name__}: missing {named(missing)}, "
            f"unexpected {named(unexpected)}, wrong shape {named(misshapen)}; expected exactly the keys of its "
            "state_dict(): give the weights this model was trained to, build it with the same arguments, or allow "
            "those of a new head to be missing (--allow-missing MODULE, allow_missing=[...])"
            f"{_weight_norms(missing, unexpected)}{one_of_several(origin)}"
        )
    held = unregistered | own
    if unlike := unlike_tensors(given, held):
        raise WeightsError(
            f"{origin} holds other numbers than {type(model).__name__} computes with: {named(unlike)}; expected dense "
            "tensors of the same kind (floating point, complex, whole numbers or truth values): convert them where "
            "they are made"
        )
    model.load_state_dict(_visible(given, unregistered) if by_hooks else {key: given[key] for key in own}, strict=False)
    for path, tensor in unregistered.items():
        if path in given:
            assign(path, tensor, given[path])
    return [path for path in unregistered if path not in given]


def _misfits(value: torch.Tensor, held: torch.Tensor | None) -> bool:
    return held is not None and value.shape != held.shape


def _visible(given: Mapping[str, torch.Tensor], unregistered: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: value for key, value in given.items() if key not in unregistered}


def _batch_counters(model: nn.Module) -> set[str]:
    """Return the names of ``num_batches_tracked`` of torch's own normalizations."""
    norms = [(path, module) for path, module in model.named_modules() if isinstance(module, _NormBase)]
    return {
        f"{path}.num_batches_tracked".lstrip(".") for path, module in norms if module.num_batches_tracked is not None
    }


def _taken_by_hooks(model: nn.Module, given: Mapping[str, torch.Tensor]) -> bool:
    """Tell whether torch, with hooks of the modules that rename what they load, takes all of it and misses nothing."""
    try:
        copy.deepcopy(model).load_state_dict(given, strict=True)
    except RuntimeError:  # of a module that is not copied, or keys and shapes that do not fit
        return False
    return True


def _weight_norms(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Return what to say where the file has a weight by direction and length, and the model the weight itself."""
    weights = set(missing)
    found = [name for name in unexpected if name.endswith("_g") and name.removesuffix("_g") in weights]
    parts = [name for name in unexpected if name.endswith(".original0")]
    found += [n for n in parts if n.removesuffix(".original0").replace("parametrizations.", "") in weights]
    if not found:
        return ""
    return (
        f"; {named(found)} are of weight_norm: call torch.nn.utils.parametrizations.weight_norm on these modules where "
        "the model is built"
    )
