"""The model's forward as a function of flat tensors: what torch.export understands without further registration.

Arguments may be nested in tuples, lists, dicts, registered types and plain objects, mixed with plain Python values
(which become constants); results may be dicts, (named) tuples, dataclasses and plain objects. The trace itself sees
tensors in, tensors out.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from normdeploy.errors import InputError, ModelError
from normdeploy.exporting.eager import forward_replaced
from normdeploy.exporting.module.data_attribute import DataFollowed
from normdeploy.exporting.module.known_state import KnownState, small_state
from normdeploy.exporting.module.plain_objects import ObjectPath, held_tensors, is_plain, renewed
from normdeploy.nn.object_walk import Snapshot


@dataclass(frozen=True)
class Arguments:
    """Example arguments, flattened.

    Args:
        names: one name per tensor: the parameter's, with keys and positions appended where it is nested.
        tensors: the tensors.
        paths: (parameter, key, ...) of each tensor.
        build: put tensors back in place: returns (args, kwargs) for ``forward``.
        constants: names of the plain Python values that the graph holds as constants.
    """

    names: list[str]
    tensors: list[torch.Tensor]
    paths: list[tuple[Any, ...]]
    build: Callable[[list[torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]
    constants: list[str]


def _key(entry: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return str(entry)


def split_arguments(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split example arguments as ``torch.onnx.export`` takes them, tensors moved to the model's device.

    Args:
        model: the model.
        args: a tensor or a tuple; a dict at the end of the tuple holds keyword arguments, where no ``kwargs`` are
            given and all its keys are names of parameters of ``forward``.
        kwargs: keyword arguments.
    """
    positional = args if isinstance(args, tuple) else (args,)
    named = dict(kwargs or {})
    last = positional[-1] if positional else None
    if kwargs is None and isinstance(last, dict) and len(positional) + len(last) > 1:
        # where its keys are no parameters, the dict is an argument itself
        with suppress(TypeError):
            inspect.signature(model.forward).bind(*positional[:-1], **last)
            positional, named = positional[:-1], dict(last)
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    device = devices.pop() if len(devices) == 1 else None

    def usable(leaf: Any) -> Any:
        if is_plain(leaf):
            return renewed(leaf, {id(tensor): usable(tensor) for _, tensor in held_tensors(leaf, private=True)})
        if not isinstance(leaf, torch.Tensor):
            return leaf
        _require_dense(leaf)
        with torch.inference_mode(False):  # a copy of an inference tensor can be traced, it cannot
            leaf = leaf.clone() if leaf.is_inference() else leaf
            leaf = leaf.contiguous()  # of a view of something larger no dynamic size tells strides, and ONNX has none
            return leaf if device is None else leaf.to(device)

    return cast("tuple[tuple[Any, ...], dict[str, Any]]", pytree.tree_map(usable, (positional, named)))


def _require_dense(tensor: torch.Tensor) -> None:
    """Require that an example has numbers, each in a place of its own, as a tensor of ONNX has.

    Raises:
        InputError: it is sparse, nested, quantized, or on device "meta".
    """
    if tensor.is_nested:
        what, remedy = "nested", "pad it, tensor.to_padded_tensor(0.0), and hand lengths over beside it"
    elif tensor.layout != torch.strided:
        what, remedy = f"of layout {tensor.layout}", "hand over tensor.to_dense()"
    elif tensor.is_quantized:
        what, remedy = "quantized", "hand over tensor.dequantize()"
    elif tensor.is_meta:
        what, remedy = "on device 'meta', which holds no numbers", "make it on a device"
    else:
        return
    raise InputError(f"an example argument is {what}; expected a dense tensor, which is what a file takes: {remedy}")


def flatten_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Flatten example arguments by the names of ``model.forward``'s parameters.

    Raises:
        InputError: they do not fit the signature, or hold no tensor.
    """
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"{len(args)} positional and {sorted(kwargs)} keyword arguments: {error}; expected what forward{signature} "
            "takes: correct args and kwargs"
        ) from error
    entries, spec = pytree.tree_flatten_with_path(dict(bound.arguments))
    names: list[str] = []
    paths: list[tuple[Any, ...]] = []
    constants: list[str] = []
    slots: list[tuple[int, int]] = []
    tensors: list[torch.Tensor] = []
    for number, (keys, leaf) in enumerate(entries):
        path = tuple(_key(entry) for entry in keys)
        if signature.parameters[path[0]].kind is inspect.Parameter.VAR_KEYWORD:
            path = path[1:]
        inner: dict[int, tuple[ObjectPath, torch.Tensor]] = {}
        for inside, tensor in held_tensors(leaf):
            inner.setdefault(id(tensor), (inside, tensor))
        for inside, tensor in inner.values():
            paths.append((*path, *inside))
            names.append(_identifier(_joined(paths[-1]), names))
            slots.append((number, id(tensor)))
            tensors.append(tensor)
        if not inner and leaf is not None:
            constants.append(_joined(path))
    if not slots:
        arrays = any(isinstance(leaf, np.ndarray) for _, leaf in entries)
        remedy = "turn its arrays into tensors, torch.from_numpy(array)" if arrays else "pass args as in model(*args)"
        raise InputError(f"the example arguments hold no tensor; expected at least one: {remedy}")
    values = [leaf for _, leaf in entries]

    def build(tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given: dict[int, dict[int, torch.Tensor]] = {}
        for (number, old), tensor in zip(slots, tensors, strict=True):
            given.setdefault(number, {})[old] = tensor
        filled = [_filled(value, given.get(number, {})) for number, value in enumerate(values)]
        arguments = inspect.BoundArguments(signature, pytree.tree_unflatten(filled, spec))
        return arguments.args, arguments.kwargs

    return Arguments(names, tensors, paths, build, constants)


def _filled(value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    """Return what stands for an example's leaf: another tensor, an object of other tensors, or the value itself."""
    if isinstance(value, torch.Tensor):
        return tensors[id(value)]
    return renewed(value, tensors) if is_plain(value) else value


def _joined(path: Iterable[object]) -> str:
    return "_".join(map(str, path))


def _identifier(name: str, taken: list[str]) -> str:
    clean = "".join(char if char.isalnum() or char == "_" else "_" for char in name)
    if not clean or clean[0].isdigit():
        clean = f"input_{clean}"
    unique, number = clean, 1
    while unique in taken:
        unique, number = f"{clean}_{number}", number + 1
    return unique


@dataclass
class Outputs:
    """What ``forward`` returned: names of its tensors, and of what cannot be an output of a graph."""

    names: list[str]
    tensors: list[torch.Tensor]
    dropped: list[str]


def flatten_outputs(result: Any) -> Outputs:
    """Flatten the returned value: mappings by key, dataclasses and named tuples by field, sequences by position.

    Raises:
        ModelError: an object of unknown structure is returned, or no tensor at all.
    """
    found = Outputs([], [], [])
    _collect("", result, found)
    if not found.tensors:
        raise ModelError("forward returns no tensor; expected at least one: return what is to be deployed")
    return found


def _collect(name: str, value: Any, found: Outputs) -> None:
    def inner(key: object) -> str:
        return f"{name}_{key}" if name else str(key)

    if isinstance(value, torch.Tensor):
        found.names.append(name or "output")
        found.tensors.append(value)
    elif value is None:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect(inner(key), item, found)
    elif isinstance(value, (list, tuple)):
        fields = getattr(type(value), "_fields", None)
        for number, item in enumerate(value):
            _collect(inner(fields[number]) if fields else f"{name or 'output'}_{number}", item, found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _collect(inner(field.name), getattr(value, field.name), found)
    elif isinstance(value, (bool, int, float, str)):
        found.dropped.append(f"{name or 'output'}={value!r}")
    else:
        leaves, spec = pytree.tree_flatten(value)
        if not spec.is_leaf():
            _collect(name, leaves, found)
            return
        held = list(held_tensors(value))
        if not held:
            raise ModelError(
                f"forward returns a {type(value).__name__} at {name or 'the top'}; expected tensors in dicts, lists, "
                "tuples, dataclasses or plain objects: return the tensors themselves"
            )
        for path, tensor in held:
            _collect(inner(_joined(path)), tensor, found)


@contextmanager
def flat_forward(model: nn.Module, arguments: Arguments) -> Iterator[list[str]]:
    """Exchange ``model.forward``, for this instance and this block, by one that takes and returns flat tensors.

    Attributes that ``forward`` assigns on the way (a cached attention map, a plain object's last output) are put back
    after each call, so that no traced tensor stays in the model.

    Args:
        model: the model.
        arguments: from ``flatten_arguments``.

    Returns:
        A context manager that yields the list of attributes that ``forward`` assigned, filled while tracing.
    """
    original = model.forward
    numbers = small_state(model)
    assigned: list[str] = []

    @functools.wraps(original)
    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        snapshot = Snapshot(model, registries=False)
        args, kwargs = arguments.build(list(tensors))
        try:
            with DataFollowed(), KnownState(model, numbers):
                return tuple(flatten_outputs(original(*args, **kwargs)).tensors)
        finally:  # a run that failed half way leaves a size that no kept tensor has
            assigned.extend(name for name in snapshot.restore() if name not in assigned)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    # torch.export names its placeholders by the parameters, and takes one of a submodule's name for that submodule
    taken = [name for name, _ in (*model.named_children(), *model.named_parameters(), *model.named_buffers())]
    names: list[str] = []
    for name in arguments.names:
        names.append(_identifier(f"{name}_input" if name in taken else name, [*names, *taken]))
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    forward.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect.signature, unknown to the stub
    with forward_replaced(model, forward):
        yield assigned
