"""Tensors and modes that ``nn.Module`` does not see.

People write normalizations as plain Python classes, or keep running statistics in plain attributes. Then
``state_dict()``, ``parameters()``, ``.to()`` and ``.eval()`` of the network pass them by. The functions here walk the
whole object tree: registered modules, and every plain object, list, tuple or dict they hold.

An *unregistered tensor* is a tensor reachable from the network that its ``state_dict()`` would lose. Its path is
spelled as ``state_dict()`` would spell it (``norms.0.running_mean``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from normdeploy.errors import ModelError, WeightsError
from normdeploy.nn.object_walk import is_foreign, named_unregistered, unregistered_tensors, walk


def walk_objects(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield ``(path, object)`` for every module and every plain object of the user's reachable from ``model``, once.

    The network itself comes first and has the path ``""``.
    """
    for found in walk(model):
        value = found.value
        if isinstance(value, nn.Module) or (
            hasattr(value, "__dict__") and not isinstance(value, Tensor) and not is_foreign(value)
        ):
            yield found.path, value


def assign(path: str, held: Tensor, value: Tensor) -> None:
    """Copy ``value`` into the tensor that a model holds at ``path``: an optimizer or a closure may know that tensor.

    Raises:
        WeightsError: a tensor with gradient has another shape. Running statistics may change theirs.
    """
    if held.requires_grad and held.shape != value.shape:
        raise WeightsError(
            f"{path} has shape {tuple(value.shape)} in the weights; the model has {tuple(held.shape)}: "
            "use weights made by this definition of the model"
        )
    held.data = value.detach().to(device=held.device, dtype=held.dtype, copy=True)


def trainable(model: nn.Module) -> list[tuple[str, Tensor]]:
    """List ``(path, tensor)`` of what can be trained: parameters, then unregistered leaves, with gradient."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return named + [(path, t) for path, t in unregistered_tensors(model).items() if t.requires_grad and t.is_leaf]


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """Return ``state_dict()`` and the unregistered tensors, detached, by path (views of the live tensors, not copies).

    Raises:
        ModelError: an unregistered tensor has the path of a visible one.
    """
    state = {key: value.detach() for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    for path, tensor in named_unregistered(model):
        if path in state:
            raise ModelError(
                f"two tensors are both called {path}; expected one name each: rename one of the attributes"
            )
        state[path] = tensor.detach()
    return state


def load_full_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load what :func:`full_state` returned: every tensor, none missing, none left over.

    Unregistered running statistics may come with another shape than the freshly built ones (some authors' grow a
    dimension at the first update); anything else must match.

    Raises:
        WeightsError: names the missing, unexpected and misshapen keys.
    """
    visible = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
    unregistered = unregistered_tensors(model)
    missing = sorted((visible.keys() | unregistered.keys()) - state.keys())
    unexpected = sorted(state.keys() - visible.keys() - unregistered.keys())
    misshapen = [
        f"{key} {tuple(state[key].shape)} instead of {tuple(value.shape)}"
        for key, value in visible.items()
        if key in state and state[key].shape != value.shape
    ]
    if missing or unexpected or misshapen:
        parts = [
            f"{word}: {', '.join(keys)}"
            for word, keys in (("missing", missing), ("unexpected", unexpected), ("other shape", misshapen))
            if keys
        ]
        raise WeightsError(
            f"the weights do not fit {type(model).__name__} ({'; '.join(parts)}); expected exactly its "
            f"{len(visible) + len(unregistered)} tensors: use weights made by this definition of the model, or "
            "train it again"
        )
    if unlike := unlike_tensors(state, unregistered | visible):
        raise WeightsError(
            f"the weights hold other numbers than {type(model).__name__} computes with ({'; '.join(unlike)}); expected "
            "dense tensors of the same kind: use weights made by this definition of the model"
        )
    model.load_state_dict({key: state[key] for key in visible}, strict=False)
    for path, held in unregistered.items():
        assign(path, held, state[path])


def unlike_tensors(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Say which given tensors are of another kind than one's own, so that copying them would change or lose numbers.

    Kinds are floating point, complex, whole numbers and truth values; a whole number may come in another width that
    holds the same values. A sparse or quantized tensor is no dense one.
    """
    reasons = ((key, _unlike(value, own[key])) for key, value in given.items() if key in own)
    return [f"{key}: {reason}" for key, reason in reasons if reason]


def _unlike(given: Tensor, own: Tensor) -> str:
    words = [str(tensor.dtype).removeprefix("torch.") for tensor in (given, own)]
    if given.layout != own.layout or given.is_quantized != own.is_quantized:
        return f"{'quantized' if given.is_quantized else str(given.layout).removeprefix('torch.')} for a dense tensor"
    if _kind(given) != _kind(own):
        return f"{words[0]} for {words[1]}"
    if _kind(own) == "whole number" and given.dtype != own.dtype and given.numel():
        limits, values = torch.iinfo(own.dtype), given.detach().cpu().numpy()
        if values.min() < limits.min or values.max() > limits.max:
            return f"values of {words[0]} that {words[1]} does not hold"
    return ""


def _kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "truth value"
    return "complex" if tensor.is_complex() else "float" if tensor.is_floating_point() else "whole number"


def move(model: nn.Module, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
    """Move the network, unregistered tensors included, in place; ``dtype`` applies to floating-point tensors only."""
    model.to(device=device, dtype=dtype)
    for _, tensor in named_unregistered(model):
        tensor.data = tensor.data.to(device=device, dtype=dtype if tensor.is_floating_point() else None)
        if tensor.grad is not None:
            tensor.grad = None


def set_mode(model: nn.Module, training: bool) -> None:
    """Set training or evaluation everywhere: ``model.train()`` and every plain object's bool called ``training``."""
    model.train(training)
    for _, owner in walk_objects(model):
        if isinstance(owner, nn.Module):
            owner.training = training
        elif isinstance(vars(owner).get("training"), bool):
            owner.training = training  # type: ignore[attr-defined]  # just seen in its __dict__


@contextmanager
def mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Set the mode as :func:`set_mode` does and give every object its own mode back afterwards."""
    before = [
        (owner, vars(owner)["training"])
        for _, owner in walk_objects(model)
        if isinstance(vars(owner).get("training"), bool)
    ]
    set_mode(model, training)
    try:
        yield
    finally:
        for owner, value in before:
            owner.training = value  # type: ignore[attr-defined]  # just seen in its __dict__
