"""Inputs from files, and made-up ones that fit a model's description, for timing and warming up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normdeploy.array_types import Array
from normdeploy.damaged_files import NUMPY_FILE_ERRORS, arrays_in, numpy_says
from normdeploy.errors import InputError, UsageError
from normdeploy.files import lies_at, not_a_file
from normdeploy.ort.made_inputs import make_inputs
from normdeploy.ort.specs import TensorSpec
from normdeploy.parsing.amounts import require_count
from normdeploy.runtime.feeds import check_feeds


def make_samples(
    specs: Sequence[TensorSpec], batch: int, *, sizes: Mapping[str, int] | None = None, seed: int = 0
) -> dict[str, Array]:
    """Make one feed: N(0, 1) for floats, 0 or 1 for integers and booleans.

    Args:
        specs: the model's inputs.
        batch: the size of every dynamic first dimension; a fixed one stays.
        sizes: sizes of other dynamic dimensions, by word.
        seed: of the numbers.

    Raises:
        UsageError: a dynamic dimension other than the batch has no size, ``sizes`` names one that the model has not, a
            batch below 1, or a negative seed.
    """
    require_count("batch", batch)
    require_count("seed", seed, least=0)
    words = dict.fromkeys(size for spec in specs for size in spec.shape if isinstance(size, str))
    if unknown := next((word for word in sizes or {} if word not in words), None):
        raise UsageError(
            f"a size is given for {unknown!r}; expected one of the model's dynamic dimensions: "
            f"{', '.join(words) or 'it has none'}"
        )

    def size_of(spec: TensorSpec, axis: int) -> int:
        word = spec.shape[axis]
        if sizes and word in sizes:
            return sizes[str(word)]
        if axis == 0:
            return batch
        by_word = "" if word is None else f"sizes={{{word!r}: N}} (--size {word}=N) or "
        raise UsageError(
            f"input {spec} has no size for dimension {word or axis!r}; expected {by_word}example inputs: give "
            f"{'one' if by_word else 'them'}"
        )

    return make_inputs(specs, size_of, seed=seed)


def tile_samples(specs: Sequence[TensorSpec], inputs: Mapping[str, Array], batch: int) -> dict[str, Array]:
    """Return ``batch`` samples from the user's own, repeated in order where there are fewer.

    Inputs whose first dimension is fixed, or that have none, stay as they are.

    Raises:
        InputError: inputs that do not fit ``specs``.
    """
    feeds = check_feeds(tuple(specs), inputs)
    tiled = {}
    for spec in specs:
        array = feeds[spec.name]
        if spec.shape and not isinstance(spec.shape[0], int):
            if not len(array):
                raise InputError(f"input {spec.name!r} has no samples; expected at least one")
            array = np.ascontiguousarray(array[np.arange(batch) % len(array)])
        tiled[spec.name] = array
    return tiled


def fixed_batch(specs: Sequence[TensorSpec]) -> int:
    """Return the number of rows that the graph insists on, 0 where it takes any."""
    first = specs[0].shape
    return first[0] if first and isinstance(first[0], int) else 0


def check_rows(specs: Sequence[TensorSpec], data: Any) -> dict[str, Array]:
    """Return the user's rows by input name, checked; any number of rows, whatever batch the graph insists on.

    Args:
        specs: the model's inputs.
        data: an array for a model of one input, or a dict of arrays by name; rows along the first axis.

    Raises:
        InputError: rows that do not fit, or fewer than the graph takes in a call.
    """
    named = data if isinstance(data, Mapping) else {specs[0].name: data}
    fixed = fixed_batch(specs)
    if not fixed:
        return {name: np.asarray(array) for name, array in check_feeds(tuple(specs), named).items()}
    free = tuple(TensorSpec(spec.name, spec.dtype, ("rows", *spec.shape[1:])) for spec in specs)
    rows = {name: np.asarray(array) for name, array in check_feeds(free, named).items()}
    if (count := len(rows[specs[0].name])) < fixed:
        raise InputError(f"the data has {count} rows; expected at least {fixed}, which the graph takes in every call")
    return rows


def read_arrays(path: Path) -> Array | dict[str, Array]:
    """Return the array of a .npy file, or a dict of the arrays of a .npz file.

    Raises:
        InputError: it is missing or holds no plain arrays.
    """
    if not lies_at(path):
        raise InputError(f"{path} {not_a_file(path)}; expected a .npy or .npz file: check the path")
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                return arrays_in(loaded)
    except NUMPY_FILE_ERRORS as error:
        raise InputError(
            f"{path} cannot be read as .npy or .npz: {numpy_says(path, error)}; expected plain arrays saved by numpy"
        ) from error
    return np.asarray(loaded)
