"""Masks: which positions count, in every way in which batches are padded, whichever of true and false means that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from normdeploy.array_types import Array
from normdeploy.verification.samples.ranges import InputRange

Rows = Callable[[np.random.Generator, int, int], Array]
"""(generator, rows, length) -> booleans of that shape."""


def mixed(spec: InputRange, rng: np.random.Generator) -> Array:
    """Return a mask of mostly ones whose first position counts, for the families that are not about masks."""
    mask = rng.random(spec.shape) < 0.7
    if mask.ndim and mask.size:
        mask[..., 0] = True  # a row without any key may be NaN everywhere, and then shows nothing of the rest
    return mask.astype(spec.dtype)


def _left(rng: np.random.Generator, rows: int, length: int) -> Array:
    padding = rng.integers(1, max(length, 2), (rows, 1))
    return np.asarray(np.arange(length) >= padding)


def _right(rng: np.random.Generator, rows: int, length: int) -> Array:
    return _left(rng, rows, length)[:, ::-1]


def _single(rng: np.random.Generator, rows: int, length: int) -> Array:
    return np.asarray(np.arange(length) == rng.integers(0, max(length, 1), (rows, 1)))


def _none(rng: np.random.Generator, rows: int, length: int) -> Array:
    """Every other row without any, the first among them."""
    mask = rng.random((rows, length)) < 0.7
    mask[::2] = False
    return mask


_PADDED: tuple[Rows, ...] = (_left, _right, _single)


def patterns(spec: InputRange) -> Iterator[tuple[str, Rows, bool]]:
    """Yield the named patterns for one mask: padding at either end and single positions, and rows with none at all.

    The third of each says whether it is of rows with none.

    Where a mask has three rows or more, rows take turns in one pattern. Each comes both ways round: there are masks
    that say what counts and masks that say what does not.
    """
    rows = int(np.prod(spec.shape[:-1]))
    padded: list[tuple[str, Rows]] = [("padded masks", _in_turn)]
    if rows < len(_PADDED):
        padded = [
            (f"masks padded {name}", fill) for name, fill in zip(("left", "right", "to one"), _PADDED, strict=True)
        ]
    for name, fill in [*padded, ("rows masked whole", _none)]:
        yield name, fill, fill is _none
        yield f"{name}, inverted", _inverted(fill), fill is _none
    yield "masks all true", _all, False


def _all(_: np.random.Generator, rows: int, length: int) -> Array:
    return np.ones((rows, length), bool)


def _in_turn(rng: np.random.Generator, rows: int, length: int) -> Array:
    drawn = np.stack([fill(rng, rows, length) for fill in _PADDED])
    return np.asarray(drawn[np.arange(rows) % len(_PADDED), np.arange(rows)])


def _inverted(fill: Rows) -> Rows:
    return lambda rng, rows, length: ~fill(rng, rows, length)


def filled(fill: Rows, spec: InputRange, rng: np.random.Generator) -> Array:
    """Return a mask of the spec's shape and dtype whose last axis follows a pattern."""
    if not spec.shape:
        return np.asarray(fill(rng, 1, 1).reshape(()), spec.dtype)
    rows, length = int(np.prod(spec.shape[:-1])), spec.shape[-1]
    return fill(rng, rows, length).reshape(spec.shape).astype(spec.dtype)
