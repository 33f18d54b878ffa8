"""A family: named inputs of one kind, drawn or given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cached_property
from typing import Any

import numpy as np

from normdeploy.array_types import Arrays
from normdeploy.errors import InputError
from normdeploy.verification.samples.ranges import InputRange
from normdeploy.verification.sides.exact_agreement import is_float
from normdeploy.verification.sides.flat_values import as_array


class Kind(Enum):
    """What inputs are drawn by, as far as anything depends on it."""

    EXAMPLE = auto()
    DATA = auto()
    NORMAL = auto()
    SMALL_VARIANCE = auto()
    CONSTANT = auto()
    RARE = auto()
    """What no other inputs are like, and operators are added or left out for: rows masked whole, far integers, ties."""
    OTHER = auto()


class Family:
    """Named inputs of one kind.

    Args:
        name: what is special about them, for a reader. feeds: array per input name, or what draws these when they are
            asked for: a level that looks at few families names all of them.
        kind: what they are drawn by.
    """

    def __init__(self, name: str, feeds: Arrays | Callable[[], Arrays], kind: Kind = Kind.OTHER) -> None:
        self.name, self.kind = name, kind
        self._given = feeds

    @cached_property
    def feeds(self) -> Arrays:
        """The array of each input, by name: the same ones each time."""
        return self._given() if callable(self._given) else self._given

    @property
    def user(self) -> bool:
        """True where they were given: as the example or as data."""
        return self.kind in (Kind.EXAMPLE, Kind.DATA)


def holding(family: Family, spec: InputRange, numbers: Sequence[int], *, every: int = 1) -> Iterator[Family]:
    """Yield families of which an input holds some numbers, as many families as these need.

    Args:
        family: what the other places and inputs hold. spec: the input. every: at every how many-th place.
    """
    room = -(-family.feeds[spec.name].size // every)
    for start in range(0, len(numbers), room) if room else ():
        here = numbers[start : start + room]
        held = family.feeds[spec.name].copy()
        held.reshape(-1)[::every] = np.resize(np.array(here, spec.dtype), room)
        yield Family(f"{spec.name!r} of {min(here)} to {max(here)}", {**family.feeds, spec.name: held})


def removing(family: Family, spec: InputRange) -> Family:
    """Return a family of which a float input is minus infinity in every other row, and at one place of the others."""
    held = family.feeds[spec.name].copy()
    rows = held.reshape(-1, held.shape[-1])
    rows[::2] = -np.inf
    rows[1::2, :1] = -np.inf
    return Family(f"{spec.name!r} of minus infinity, in rows and alone", {**family.feeds, spec.name: held})


_SELDOM = 16
"""One of so many elements is no number."""


def without_numbers(family: Family, spec: InputRange) -> Iterator[Family]:
    """Yield families of which a float input is NaN, or infinite, at a few places of every other row.

    Args:
        family: what the other places and inputs hold. spec: the input.
    """
    for name, numbers in (("NaN", (np.nan,)), ("infinity", (np.inf, -np.inf))):
        held = family.feeds[spec.name].copy()
        rows = held.reshape(held.shape[0], -1)[::2] if held.ndim > 1 else held.reshape(1, -1)
        places = np.random.default_rng(rows.size).permutation(rows.size)[: max(rows.size // _SELDOM, len(numbers))]
        rows[np.unravel_index(places, rows.shape)] = np.resize(np.array(numbers, spec.dtype), len(places))
        yield Family(f"{spec.name!r} of {name} in places", {**family.feeds, spec.name: held})


def user_families(data: Any, specs: Sequence[InputRange], *, rows: int) -> list[Family]:
    """Turn the user's own data into families.

    Args:
        data: an array or tensor (single-input models), a mapping from input name to array, or a list of these.
        specs: the inputs.
        rows: at most this many rows of axis 0 are used of each.

    Raises:
        InputError: names, dtypes or shapes do not fit the inputs.
    """
    batches = data if isinstance(data, (list, tuple)) else [data]
    families = []
    for number, batch in enumerate(batches):
        if not isinstance(batch, Mapping):
            if len(specs) != 1:
                raise InputError(
                    f"data is one array but the model has {len(specs)} inputs; expected a mapping from "
                    f"{[s.name for s in specs]} to arrays"
                )
            batch = {specs[0].name: batch}
        feeds: Arrays = {}
        for spec in specs:
            if spec.name not in batch:
                raise InputError(f"data has no input {spec.name!r}; it has {sorted(map(str, batch))}: add it")
            array = as_array(batch[spec.name], f"data for {spec.name!r}")
            if array.dtype != spec.dtype and not (is_float(array) and spec.is_float):
                raise InputError(f"data for {spec.name!r} has dtype {array.dtype}; expected {spec.dtype}: convert it")
            fixed = [i for i, n in enumerate(spec.shape) if i not in spec.dynamic and array.shape[i : i + 1] != (n,)]
            if array.ndim != len(spec.shape) or fixed:
                raise InputError(
                    f"data for {spec.name!r} has shape {array.shape}; expected {spec.shape} "
                    f"(dynamic axes: {sorted(spec.dynamic)}): reshape it"
                )
            array = array[:rows] if 0 in spec.dynamic else array
            feeds[spec.name] = array.astype(spec.dtype)
        families.append(Family("your data" if len(batches) == 1 else f"your data {number}", feeds, Kind.DATA))
    return families
