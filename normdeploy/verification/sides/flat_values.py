"""Flat, named arrays in and out of a model, whatever containers it takes and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor, nn

from normdeploy.array_types import Array, Arrays
from normdeploy.errors import InputError
from normdeploy.exporting.module.forward import flatten_arguments
from normdeploy.graph import Evaluator
from normdeploy.nn.as_numpy import to_numpy

Feeds = Mapping[str, Array]

UNIT_ROUNDOFF: dict[str, float] = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST_NORMAL: dict[str, float] = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
}
"""u of a stored format, and its smallest number of full precision."""


def as_array(value: Any, what: str) -> Array:
    """Return the user's array, list or tensor (on any device, bfloat16 included) as NumPy.

    Args:
        value: what was given. what: what it is, for the message.

    Raises:
        InputError: NumPy has no numbers for it.
    """
    try:
        array = to_numpy(value) if isinstance(value, Tensor) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError, OverflowError) as error:
        kind = getattr(value, "dtype", type(value).__name__)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{what} is {kind} and cannot become an array ({reason}); expected numbers in a regular array: convert "
            "it where it is made, for example with .float()"
        ) from error
    if array.dtype.kind not in "biufcSUT" and array.dtype.name != "bfloat16":
        raise InputError(
            f"{what} holds {array.dtype} values; expected numbers in a regular array: convert it where it is made"
        )
    return array


def to_torch(array: Array) -> Tensor:
    """Return an array's values as a tensor that owns its memory, bfloat16 included."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def run_evaluator(evaluator: Evaluator, feeds: Feeds, **options: Any) -> Arrays:
    """Evaluate and return NumPy arrays, without gradients."""
    with torch.no_grad():
        return {k: to_numpy(v) for k, v in evaluator.run(dict(feeds), **options).items()}


class Signature:
    """How named feeds become a model's ``*args, **kwargs``.

    Args:
        model: the module, for the names of its forward's parameters.
        args: the example positional arguments (a tensor or a tuple, as in torch.onnx.export).
        kwargs: the example keyword arguments.
        names: the graph's input names, in the order of the tensors in ``(args, kwargs)``.

    Raises:
        InputError: the graph has another number of inputs than the arguments have tensors.
    """

    def __init__(self, model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, names: Sequence[str]) -> None:
        positional = args if isinstance(args, tuple) else (args,)
        self._arguments = flatten_arguments(model, positional, dict(kwargs or {}))
        self.names = list(names)
        if len(self._arguments.tensors) != len(self.names):
            raise InputError(
                f"the arguments hold {len(self._arguments.tensors)} tensors ({', '.join(self._arguments.names)}) "
                f"but the graph has {len(self.names)} inputs ({', '.join(self.names)}); expected one tensor "
                "per graph input: pass the arguments used at export"
            )

    @property
    def feeds(self) -> Arrays:
        """The example arguments as named arrays."""
        return {name: to_numpy(t) for name, t in zip(self.names, self._arguments.tensors, strict=True)}

    def bind(self, feeds: Feeds) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return fresh ``(args, kwargs)`` that hold ``feeds`` in place of the example tensors."""
        tensors = [
            to_torch(feeds[name]).to(old.device) for name, old in zip(self.names, self._arguments.tensors, strict=True)
        ]
        return self._arguments.build(tensors)

    def dynamic_shapes(self, declared: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]] | None:
        """Return declared dynamic axes by parameter, as torch.onnx.export takes them.

        None where the axes are the default (a batch in front; fixing every size is not), a name is no identifier, or
        arguments are nested.

        Args:
            declared: axis to name, by graph input.
        """
        paths = self._arguments.paths
        found = {str(path[0]): dict(declared.get(name, {})) for path, name in zip(paths, self.names, strict=True)}
        plain = all(len(path) == 1 for path in paths)
        words = all(word.isidentifier() for axes in found.values() for word in axes.values())
        default = any(found.values()) and all(set(axes) <= {0} for axes in found.values())
        return found if plain and words and not default else None
