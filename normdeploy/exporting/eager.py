"""The eager model itself: taken out of what torch wraps around it, and run as its author wrote it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from normdeploy.errors import ModelError

_REMEDIES = (
    (torch.export.ExportedProgram, "hand over its module, program.module()"),
    (torch.jit.ScriptModule, "hand over the model that it was scripted or traced from"),
    (type, "call the class, and hand over what it builds"),
    (Mapping, "build the model, and load these weights into it"),
    ((str, os.PathLike), "build the model, and load its weights into it"),
)


def eager_module(model: Any) -> nn.Module:
    """Return a model without ``torch.compile``'s, DataParallel's or DistributedDataParallel's wrapper.

    Raises:
        ModelError: it is no eager ``torch.nn.Module``, or holds a part that is none.
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        remedy = next((text for kind, text in _REMEDIES if isinstance(model, kind)), "wrap what computes in a module")
        raise ModelError(f"model is of class {type(model).__name__}; expected an eager torch.nn.Module: {remedy}")
    inner = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    if isinstance(inner, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        inner = inner.module
    inner = getattr(inner, "_orig_mod", inner)  # compiled before it was distributed
    found = inner if isinstance(inner, nn.Module) else model
    for name, part in found.named_modules():
        if isinstance(part, torch.jit.ScriptModule):  # which runs in another interpreter, where nothing follows it
            raise ModelError(
                f"{name!r} is of class {type(part).__name__}; expected an eager torch.nn.Module in its place: put what "
                "it was scripted or traced from there"
            )
    return found


def require_numbers(model: nn.Module) -> None:
    """Require that every parameter and buffer holds its numbers, all of them.

    Raises:
        ModelError: one lies on device "meta", which has shapes alone, or a lazy module has not made it yet, or this
            process holds a part of it.
    """
    # what has not been imported has sharded nothing, and importing it takes a second
    tensors, wrappers = sys.modules.get("torch.distributed.tensor"), sys.modules.get("torch.distributed.fsdp")
    sharded = ""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise ModelError(
                f"{name!r} has no size yet; expected trained weights: run the model once, which makes what its lazy "
                "modules are to hold, and load all of its state"
            )
        if tensor.is_meta:
            raise ModelError(
                f"{name!r} lies on device 'meta', which holds no numbers; expected trained weights: build the model "
                "without that device, or call model.to_empty(device='cpu') and load all of its state"
            )
        if tensors is not None and isinstance(tensor, tensors.DTensor):  # FSDP's second form
            sharded = sharded or repr(name)
    for name, module in model.named_modules():
        if wrappers is not None and isinstance(module, wrappers.FullyShardedDataParallel):  # its first
            sharded = sharded or (repr(name) if name else "the model")
    if sharded:
        raise ModelError(
            f"{sharded} is sharded among processes; expected whole weights in one: load get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True)), both of torch.distributed.checkpoint.state_dict, into a "
            "model that is not"
        )


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run what ``torch.compile`` has compiled, wherever in a model that is, as it was written.

    Compiled code computes in another order, so that its rounding is no measure for a file's, and it is compiled anew
    for each way in which a model is watched.
    """
    if "torch._dynamo" not in sys.modules:  # torch.compile loads it: nothing is compiled
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def unscripted() -> Iterator[None]:
    """Run functions that ``torch.jit.script`` compiled as they were written: a trace follows Python, not TorchScript.

    torch keeps what was written beside the compiled function, for its own compiler.
    """
    kind = torch.jit.ScriptFunction
    compiled = kind.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        written = getattr(self, "_torchdynamo_inline", None)
        return compiled(self, *args, **kwargs) if written is None else written(*args, **kwargs)

    with mock.patch.object(kind, "__call__", call):
        yield


@contextmanager
def forward_replaced(model: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module have another forward in the block; one that it had of its own is given back."""
    own = vars(model).get("forward")
    model.forward = forward
    try:
        yield
    finally:
        del vars(model)["forward"]
        if own is not None:
            model.forward = own
