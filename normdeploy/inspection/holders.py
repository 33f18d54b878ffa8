"""Checks of the eager model's objects: what ``state_dict()`` and ``eval()`` miss, norms without statistics.

Nothing is run; what shows only when the model runs is found by the other checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from normdeploy.array_types import Floats
from normdeploy.exporting.module.mode_flags import training_flags
from normdeploy.inspection.findings import Finding
from normdeploy.inspection.site import StoredNorm
from normdeploy.nn.object_walk import Reached, is_foreign, unregistered_tensors, walk

_STATISTIC = re.compile(r"mean|var|std|moment|running|moving|stat|avg", re.IGNORECASE)
_RUNNING = re.compile(r"running|moving|so_far|ema", re.IGNORECASE)
_DTYPES = {
    torch.float64: ir.DataType.DOUBLE,
    torch.float32: ir.DataType.FLOAT,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
}


def check_holders(model: nn.Module, used: set[str] | None = None) -> Iterator[Finding]:
    """Yield what is wrong or risky in how the model holds its tensors and modes.

    Args:
        model: the model.
        used: names of the tensors the traced graph reads, where there is one; others are then of no interest.
    """
    yield from _outside_state_dict(model, used)
    yield from _temporary_statistics(model, used)
    yield from _outside_eval(model)
    yield from running_layernorms(model)


def module_norms(model: nn.Module) -> Iterator[StoredNorm]:
    """Yield torch's own normalizations with stored statistics, read from the modules."""
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_var is not None:
            yield StoredNorm(
                where=path,
                variance=_double(module.running_var),
                epsilon=float(module.eps),
                mean=None if module.running_mean is None else _double(module.running_mean),
                scale=None if module.weight is None else _double(module.weight),
                shift=None if module.bias is None else _double(module.bias),
                dtype=_DTYPES.get(module.running_var.dtype, ir.DataType.FLOAT),
            )


def _double(tensor: torch.Tensor) -> Floats:
    return np.asarray(tensor.detach().double().cpu().numpy(), dtype=np.float64)


def _holder(path: str) -> str:
    return path.rpartition(".")[0]


def _outside_state_dict(model: nn.Module, used: set[str] | None) -> Iterator[Finding]:
    held: dict[str, dict[str, torch.Tensor]] = {}
    for path, tensor in unregistered_tensors(model).items():
        if tensor.is_floating_point() and (used is None or path in used) and not _is_cache(model, path, tensor):
            held.setdefault(_holder(path), {})[path.rpartition(".")[2]] = tensor
    for holder, tensors in held.items():
        # trained, or gathered in training: a reload gives other outputs. Constants come back from the constructor.
        learns = any(tensor.requires_grad for tensor in tensors.values()) or _learns(model, holder)
        trained = [
            name
            for name, tensor in tensors.items()
            if tensor.requires_grad or _RUNNING.search(name) or (learns and _STATISTIC.search(name))
        ]
        names = ", ".join(tensors)
        if trained:
            yield Finding(
                "warning",
                "outside-state-dict",
                holder,
                f"state_dict() misses {names}: after saving and loading, {', '.join(trained)} are what the constructor "
                "makes them, and deployed outputs are those of an untrained normalization; .to() misses them too",
                "make the holder an nn.Module with Parameters and register_buffer, or save "
                "normdeploy.nn.unregistered.full_state(model) instead of state_dict(); the export holds them",
                detail={"tensors": list(tensors)},
            )
        else:
            yield Finding(
                "note",
                "outside-state-dict",
                holder,
                f"state_dict() misses {names}; deployed outputs use the present values",
                "nothing if the constructor always makes the same values; otherwise register_buffer",
                detail={"tensors": list(tensors)},
            )


def _is_cache(model: nn.Module, path: str, tensor: torch.Tensor) -> bool:
    """Whether a tensor in a dict of a module holds nothing but elements of one of that module's parameters.

    Attention layers keep such a table of gathered biases; it is made anew where it is missing, so nothing is lost.
    """
    owner, _, name = path.rpartition(".")
    holder, _, attribute = owner.rpartition(".")
    try:
        module = model.get_submodule(holder)
    except AttributeError:
        return False
    held = vars(module).get(attribute)
    if not isinstance(held, dict) or name not in map(str, held) or tensor.requires_grad:
        return False
    if bool((tensor == tensor.reshape(-1)[:1]).all()):
        return False  # zeros or ones are everywhere
    return any(bool(torch.isin(tensor, own.detach()).all()) for own in module.parameters(recurse=False))


def _learns(model: nn.Module, holder: str) -> bool:
    """Whether the object that holds a plain tensor has parameters of its own, or a mode."""
    owner = next((found.value for found in walk(model) if found.path == holder), None)
    if isinstance(owner, nn.Module):
        return any(True for _ in owner.parameters(recurse=False))
    return isinstance(getattr(owner, "training", None), (bool, np.bool_))


def _temporary_statistics(model: nn.Module, used: set[str] | None) -> Iterator[Finding]:
    for path, module in model.named_modules():
        names = [name for name in sorted(module._non_persistent_buffers_set) if _STATISTIC.search(name)]
        names = [name for name in names if used is None or (f"{path}.{name}" if path else name) in used]
        names = [name for name in names if (buffer := module._buffers.get(name)) is not None and buffer.numel() > 1]
        if names:
            yield Finding(
                "warning",
                "outside-state-dict",
                path,
                f"{', '.join(names)} are buffers with persistent=False: state_dict() leaves them out, and a reloaded "
                "model gives other outputs",
                "register them with persistent=True",
                detail={"tensors": names},
            )


def _outside_eval(model: nn.Module) -> Iterator[Finding]:
    everything = list(walk(model))
    for found in everything:
        value = found.value
        if isinstance(value, nn.Module):
            if not found.registered and any(True for _ in value.parameters()) and _is_root(found, everything):
                yield Finding(
                    "warning",
                    "outside-eval",
                    found.path,
                    f"this {type(value).__name__} is kept in a plain container: eval(), to(), parameters() and "
                    "state_dict() of the model miss it; normdeploy switches it for the export",
                    "use nn.ModuleList or nn.ModuleDict",
                )
        elif not isinstance(value, torch.Tensor) and not is_foreign(value):
            flag: Any = getattr(value, "training", None)
            if isinstance(flag, (bool, np.bool_)):
                yield _unreached(found.path, value, "training", bool(flag))
        if isinstance(value, nn.Module) or not (isinstance(value, torch.Tensor) or is_foreign(value)):
            for other in training_flags(value):
                yield _unreached(found.path, value, other.name, other.value)


def _unreached(path: str, value: object, name: str, held: object) -> Finding:
    what = type(value).__name__ if isinstance(value, nn.Module) else f"plain {type(value).__name__}"
    return Finding(
        "warning",
        "outside-eval",
        path,
        f"this {what} has a `{name}` attribute (now {held!r}) that the model's eval() does not reach: run eagerly it "
        "may use batch statistics; normdeploy switches it for the export",
        "make it an nn.Module whose mode is `self.training`, or set its attribute wherever eval() is called",
    )


def _is_root(found: Reached, everything: list[Reached]) -> bool:
    """Whether no other unregistered module holds this one as a registered child."""
    return not any(
        isinstance(other.value, nn.Module)
        and not other.registered
        and other.value is not found.value
        and any(part is found.value for part in other.value.modules())
        for other in everything
    )


def untracked(model: nn.Module) -> Iterator[Finding]:
    """Yield torch's own batch normalizations that keep no running statistics."""
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_var is None:
            yield Finding(
                "error",
                "batch-statistics",
                path,
                f"this {type(module).__name__} keeps no running statistics: in evaluation too it normalizes with the "
                "batch it is given, so that one sample's deployed output depends on the others",
                "build it with track_running_stats=True and estimate its statistics",
            )


def running_layernorms(model: nn.Module) -> Iterator[Finding]:
    """Yield layers that keep running statistics per row, of shape (*, 1), beside a scale over the features."""
    for found in walk(model):
        value = found.value
        if isinstance(value, torch.Tensor) or (not isinstance(value, nn.Module) and is_foreign(value)):
            continue
        tensors = _own_tensors(value)
        rows = {name: tensor for name, tensor in tensors.items() if _per_row(name, tensor)}
        # a normalization over channels first has its scale of the same (C, 1)
        affine = [name for name, tensor in tensors.items() if name not in rows and tensor.ndim and tensor.shape[-1] > 1]
        if len(rows) >= 2 and affine:
            shape = tuple(next(iter(rows.values())).shape)
            yield running_layernorm(found.path, list(rows), shape)


def running_layernorm(where: str, names: list[str], shape: tuple[int, ...]) -> Finding:
    """Return the finding for a layer normalization that evaluates with running statistics."""
    return Finding(
        "error",
        "running-layernorm",
        where,
        f"it keeps running statistics of shape {list(shape)} ({', '.join(names)}), one per row of the last training "
        "batch, and evaluates with them: a LayerNorm computes its statistics from each row. Deployed outputs depend on "
        "the order of the last training batches, and only inputs of that shape are accepted",
        "compute mean and variance over the last axis in evaluation as in training, without running statistics "
        "(torch.nn.LayerNorm); then train again",
        detail={"shape": list(shape), "tensors": names},
    )


def _own_tensors(value: object) -> dict[str, torch.Tensor]:
    held: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    if isinstance(value, nn.Module):
        held = {**held, **value._parameters, **value._buffers}
    return {name: item for name, item in held.items() if isinstance(item, torch.Tensor) and item.is_floating_point()}


def _per_row(name: str, tensor: torch.Tensor) -> bool:
    return bool(_STATISTIC.search(name)) and tensor.ndim >= 2 and tensor.shape[-1] == 1 and tensor.numel() > 1
