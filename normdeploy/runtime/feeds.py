"""Arrays that are fed to a model: checked against what it declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from normdeploy.array_types import Array
from normdeploy.errors import InputError
from normdeploy.ort.specs import TensorSpec
from normdeploy.runtime.casting import cast, expectation


def _plain_array(spec: TensorSpec, value: Any) -> Array:
    """Return an array of the input's dtype for Python numbers and lists, of its own dtype for everything else."""
    try:
        if hasattr(value, "detach"):  # a torch tensor, possibly one that requires gradients or lives on a GPU
            return np.asarray(value.detach().cpu())
        if not isinstance(value, (list, tuple, int, float, bool)):
            return np.asarray(value)
        array = np.asarray(value, dtype=object if spec.dtype == "object" else None)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:  # numpy's and torch's words for "no array"
        kind = getattr(value, "dtype", type(value).__name__)
        raise InputError(
            f"input {spec.name!r} is {kind} and cannot become an array ({error}); expected {spec}: "
            "pass a regular array, or a tensor of the input's own type"
        ) from error
    if spec.dtype == "object":
        return array
    if array.dtype.kind not in "biuf":
        raise InputError(f"input {spec.name!r} holds {array.dtype} values and cannot become {spec}; expected numbers")
    array, wrong = cast(array, spec.dtype)
    if wrong is not None:
        first = np.asarray(value)[wrong].ravel()[0]
        raise InputError(
            f"input {spec.name!r} holds {first} and cannot become {spec}; expected {expectation(spec.dtype)}: "
            "convert it where it is made"
        )
    return array


def check_array(spec: TensorSpec, value: Any) -> Array:
    """Return ``value`` as an array that fits ``spec`` (dynamic dimensions accept any size).

    Arrays and tensors must have the input's dtype: a silent cast would hide that the caller prepared other data than
    the network was trained on. Python numbers and nested lists have no dtype and take the input's, where it holds them.

    Raises:
        InputError: another dtype, rank or fixed size; the message gives both and the remedy.
    """
    array = _plain_array(spec, value)
    if array.dtype != np.dtype(spec.dtype):
        raise InputError(
            f"input {spec.name!r} is {array.dtype}; expected {spec.dtype}: "
            f"convert it where it is made, for example with .astype({spec.dtype!r})"
        )
    if not spec.takes(array.shape):
        raise InputError(
            f"input {spec.name!r} has shape {list(array.shape)}; expected {spec}: "
            + ("add the batch dimension" if len(array.shape) + 1 == len(spec.shape) else "reshape or resize it")
        )
    return array


def check_feeds(specs: tuple[TensorSpec, ...], inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Return checked arrays for all of ``specs``; sizes named by the same word must agree between inputs.

    Raises:
        InputError: a missing or unknown name, or an array that does not fit.
    """
    names = [spec.name for spec in specs]
    missing = [name for name in names if name not in inputs]
    unknown = [name for name in inputs if name not in names]
    if missing or unknown:
        raise InputError(
            f"inputs are named {sorted(inputs)}; expected {names}"
            + (f": add {missing[0]!r}" if missing else f": leave out {unknown[0]!r}")
        )
    feeds = {spec.name: check_array(spec, inputs[spec.name]) for spec in specs}
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        for word, size in zip(spec.shape, feeds[spec.name].shape, strict=True):
            if not isinstance(word, str):
                continue
            first, where = sizes.setdefault(word, (size, spec.name))
            if first != size:
                raise InputError(
                    f"dimension {word!r} is {first} in input {where!r} and {size} in {spec.name!r}; "
                    "expected the same size in both: check which samples belong together"
                )
    return feeds


def fill_up(array: Array, rows: int) -> Array:
    """Return ``array`` with copies of its last row behind it, so that it has at least ``rows``."""
    missing = rows - len(array)
    return array if missing <= 0 else np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
