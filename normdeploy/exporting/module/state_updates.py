"""State that a model updates in evaluation mode: a file has none, so that the updates are lost.

Counters, caches, running statistics kept by hand: each call of the eager model finds what the call before left. A graph
computes every call with the values that were there when it was exported. Found in two ways, because each sees what the
other does not: by comparing contents around a run (an update under a condition that held), and in the traced program's
signature (an update that happened to leave the value as it was).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from normdeploy.nn.contents import same_numbers
from normdeploy.nn.object_walk import unregistered_tensors


@dataclass(frozen=True)
class Updated:
    """A tensor that a run in evaluation mode changes.

    Args:
        where: path of the module that holds it; "" is the model itself.
        kind: that module's class.
        name: the tensor's name in it.
    """

    where: str
    kind: str
    name: str

    def __str__(self) -> str:
        subject = f"module {self.where!r} ({self.kind})" if self.where else f"the model itself ({self.kind})"
        return f"{subject} updates {self.name!r} in evaluation mode"


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_buffers(remove_duplicate=False)), **unregistered_tensors(model)}


@contextmanager
def updates_seen(model: nn.Module) -> Iterator[list[Updated]]:
    """Compare buffers and tensors in plain attributes around the block; yields the list that is filled at its end.

    What was not there before the block is no state of the model, and what is exchanged for a tensor of another shape is
    a result kept (an attention map), told of as an assignment.
    """
    before = {path: tensor.detach().clone() for path, tensor in _state(model).items()}
    registered = {path for path, _ in model.named_buffers(remove_duplicate=False)}
    found: list[Updated] = []
    yield found
    for path, now in _state(model).items():
        was = before.get(path)
        if was is None or (path not in registered and was.shape != now.shape):
            continue
        if not same_numbers(was, now):
            found.append(_named(model, path))


def updates_traced(model: nn.Module, program: torch.export.ExportedProgram) -> list[Updated]:
    """Return the buffers that a traced program writes."""
    return [_named(model, path) for path in program.graph_signature.buffers_to_mutate.values()]


def _named(model: nn.Module, path: str) -> Updated:
    where, _, name = path.rpartition(".")
    try:
        kind = type(model.get_submodule(where)).__name__
    except AttributeError:  # held by a plain object
        kind = "plain object"
    return Updated(where, kind, name)
