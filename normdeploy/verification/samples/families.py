"""Input families: inputs chosen so that each kind of mistake has somewhere to show.

Random inputs of unit variance are blind to a wrong epsilon; constant rows are blind to it too (x - m = 0) and test
cancellation and NaN instead; a padded border shows only where something is near it; some channels wake for a
photograph's numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from normdeploy.array_types import Array, Arrays
from normdeploy.verification.samples import masks
from normdeploy.verification.samples.cut_sizes import CUT_AT
from normdeploy.verification.samples.family import Family, Kind
from normdeploy.verification.samples.ranges import InputRange, batch_name, resized

Fill = Callable[[np.random.Generator, tuple[int, ...]], Any]


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.standard_normal(shape)


def _small_variance(epsilon: float) -> Fill:
    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        x = rng.standard_normal(shape)
        if x.ndim < 2 or not x.size:
            return x * np.sqrt(epsilon)
        axes = tuple(range(1, x.ndim))
        x -= x.mean(axis=axes if x.ndim == 2 else -1, keepdims=True)
        rows = (*x.shape[:-1], 1)
        return x * np.sqrt(epsilon * 10.0 ** rng.uniform(-1, 1, rows))

    return fill


def _constant_rows(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(rng.standard_normal((*shape[:-1], 1)) if shape else rng.standard_normal(), shape)


def _offset(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.standard_normal(shape) + 1e3


def _outlier(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    x = rng.standard_normal(shape)
    if x.size:
        rows = x.reshape(shape[0], -1) if x.ndim > 1 else x.reshape(1, -1)
        rows[np.arange(len(rows)), rng.integers(0, rows.shape[1], len(rows))] = 100.0
    return x


def _border(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Impulses on the rims of the spatial axes, zero elsewhere."""
    x = np.zeros(shape)
    for axis in range(2, len(shape)) if x.size else ():
        for end in (0, -1):
            index: list[Any] = [slice(None)] * len(shape)
            index[axis] = end
            x[tuple(index)] = rng.standard_normal(x[tuple(index)].shape)
    return x


def _full(value: float) -> Fill:
    return lambda _, shape: np.full(shape, value)


def _denormal(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.standard_normal(shape) * 1e-40


def _smooth(high: float) -> Fill:
    """Draw what a camera sees: neighbours along the last two axes are alike, numbers from 0 to ``high``."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        x = np.zeros(shape)
        axes = range(max(len(shape) - 2, 1), len(shape)) if len(shape) > 2 else range(0)
        for turns in (0.7, 1.6, 3.3):
            waves = np.ones(shape)
            for axis in axes:
                place = np.linspace(0, 1, shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
                phase = rng.random([n if i not in axes else 1 for i, n in enumerate(shape)])
                waves = waves * np.sin(2 * np.pi * (turns * place + phase))
            x = x + waves / turns if len(axes) else x + rng.random(shape)
        x = x + 0.1 * rng.random(shape)
        top, bottom = x.max(initial=-np.inf), x.min(initial=np.inf)
        return high * (x - bottom) / (top - bottom) if top > bottom else np.full(shape, high)

    return fill


def _spots(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Small bright spots on black, of either sign, from faint to blinding."""
    x = np.zeros(shape)
    if not x.size:
        return x
    spatial = shape[2:] if len(shape) > 2 else shape[-1:] or (1,)  # a number is a row of one
    rows = x.reshape(-1, *spatial)
    for row in rows:
        for _ in range(3):
            at = tuple(slice(s := int(rng.integers(0, n)), s + 2) for n in spatial)
            row[at] = rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(-1, 2.5)
    return x


Draw = Callable[[InputRange, np.random.Generator], Array]
"""Draws one input that is no float."""


def make_families(
    specs: Sequence[InputRange], *, seed: int = 0, epsilons: Sequence[float] = (1e-5,), equal: bool = False
) -> Iterator[Family]:
    """Yield the families for some inputs, most telling first.

    Args:
        specs: the inputs, at the sizes wanted.
        seed: of the random numbers; each family draws its own.
        epsilons: of the graph's normalizations; the smallest and the largest get a small-variance family each.
        equal: numbers that equal one another, what they are compared with, or the middle of two integers, too.
    """
    first: list[tuple[Kind, str, Fill]] = [(Kind.NORMAL, "normal", _normal)]
    rest: list[tuple[Kind, str, Fill]] = []
    if any(spec.is_float for spec in specs):
        chosen = sorted({float(e) for e in epsilons if e > 0}) or [1e-5]
        ends = dict.fromkeys((chosen[0], chosen[-1]))
        first += [(Kind.SMALL_VARIANCE, f"row variance around {e:.0e}", _small_variance(e)) for e in ends]
        other = [("image of 0 to 255", _smooth(255.0)), ("offset 1e3", _offset), ("outlier", _outlier)]
        more = [("image of 0 to 1", _smooth(1.0)), ("spots", _spots), ("zeros", _full(0.0)), ("ones", _full(1.0))]
        more.append(("denormals", _denormal))
        if any(spec.is_float and len(spec.shape) >= 3 for spec in specs):
            more.append(("border impulse", _border))
        rest += [(Kind.OTHER, name, fill) for name, fill in other]
        rest.append((Kind.CONSTANT, "constant rows", _constant_rows))
        rest += [(Kind.OTHER, name, fill) for name, fill in more]
    fills = [*first, *rest]
    drawn = [Family(name, partial(_feeds, specs, (seed, i), fill), kind) for i, (kind, name, fill) in enumerate(fills)]
    yield from drawn[: len(first)]
    for name, pattern, whole in _mask_patterns(specs):
        drawing = partial(_feeds, specs, (seed, 91), _normal, mask=partial(masks.filled, pattern))
        yield Family(name, drawing, Kind.RARE if whole else Kind.OTHER)
    yield from _integer_families(specs, seed)
    yield from drawn[len(first) :]
    if equal:
        halved = partial(_halved, specs, partial(_feeds, specs, (seed, 94), _normal, integer=_near_compared))
        yield Family("halves, and what is compared with", halved, Kind.RARE)
        sizes = sorted({size for spec in specs for size in spec.scales})
        cut = [(f"{word} {size:.0e}", fill(size)) for size in sizes for word, fill in CUT_AT.items()]
        for place, (name, fill) in enumerate(cut):
            yield Family(name, partial(_feeds, specs, (seed, 95 + place), fill), Kind.RARE)


def _mask_patterns(specs: Sequence[InputRange]) -> list[tuple[str, masks.Rows, bool]]:
    """Return the patterns for the mask of the fewest rows: rows can take turns only where all masks have enough."""
    found = [spec for spec in specs if spec.is_mask]
    return list(masks.patterns(min(found, key=lambda s: int(np.prod(s.shape[:-1]))))) if found else []


_MOST_ROWS = 64
"""Rows of a batch up to which every index of a table is fed."""


def _integer_families(specs: Sequence[InputRange], seed: int) -> Iterator[Family]:
    if not any(spec.dtype.kind in "iu" for spec in specs):
        return
    for name, end in (("lowest ids", _lowest), ("highest ids", _highest)):
        yield Family(name, partial(_feeds, specs, (seed, 90), _normal, integer=end))
    every = _every_index(specs)
    if every is not None:
        yield Family("every index", partial(_feeds, every, (seed, 92), _normal, integer=_in_order))
    for place in range(max(len(spec.ends) for spec in specs)):
        reach = max(high for spec in specs for _, high in spec.ends[place : place + 1])
        draw = _to_the_ends(place)
        yield Family(f"integers to {reach}", partial(_feeds, specs, (seed, 93), _normal, integer=draw), Kind.RARE)


def _every_index(specs: Sequence[InputRange]) -> list[InputRange] | None:
    """Return the inputs at a batch that holds every index of every table; None where that would be too many rows."""
    batch = batch_name(specs)
    tables = [spec for spec in specs if spec.table]
    rows = 1
    for spec in tables:
        axis = next((i for i, name in spec.dynamic.items() if name == batch), None)
        size = int(np.prod(spec.shape))
        per_row = size if axis is None else size // max(spec.shape[axis], 1)
        if not per_row or (axis is None and size < spec.table):
            return None
        rows = max(rows, -(-spec.table // per_row)) if axis is not None else rows
    if not tables or rows > _MOST_ROWS:
        return None
    return resized(specs, {batch: rows}) if batch is not None else list(specs)


def _lowest(spec: InputRange, rng: np.random.Generator) -> Array:
    return _longest(spec, rng, spec.low + rng.integers(0, min(3, spec.high - spec.low + 1), spec.shape))


def _highest(spec: InputRange, rng: np.random.Generator) -> Array:
    return _longest(spec, rng, spec.high - rng.integers(0, min(3, spec.high - spec.low + 1), spec.shape))


def _anywhere(spec: InputRange, rng: np.random.Generator) -> Array:
    return _longest(spec, rng, rng.integers(spec.low, spec.high, spec.shape, endpoint=True))


def _longest(spec: InputRange, rng: np.random.Generator, drawn: Array) -> Array:
    """Put the example's largest number into a vector that looks nothing up: lengths, the longest a padded input's."""
    if spec.is_vector and drawn.size and not spec.table:
        drawn[rng.integers(drawn.size)] = spec.high
    return drawn


def _in_order(spec: InputRange, rng: np.random.Generator) -> Array:
    if not spec.table:
        return _anywhere(spec, rng)
    return np.resize(np.arange(spec.table), int(np.prod(spec.shape))).reshape(spec.shape)


def _to_the_ends(place: int) -> Draw:
    """Draw over a range, its two ends among them."""

    def draw(spec: InputRange, rng: np.random.Generator) -> Array:
        if not spec.ends:
            return _anywhere(spec, rng)
        low, high = spec.ends[min(place, len(spec.ends) - 1)]
        drawn = rng.integers(low, high, spec.shape, endpoint=True, dtype=spec.dtype.type)
        flat = drawn.reshape(-1)
        flat[: flat.size // 4] = high
        flat[flat.size // 4 : flat.size // 3] = low
        rng.shuffle(flat)
        return drawn

    return draw


def _near_compared(spec: InputRange, rng: np.random.Generator) -> Array:
    """Draw numbers near those that an integer is compared with, at every other place."""
    drawn = _anywhere(spec, rng)
    if spec.compared and not spec.table:
        drawn.reshape(-1)[::2] = np.resize(np.array(spec.compared, spec.dtype), -(-drawn.size // 2))
    return drawn


def _halved(specs: Sequence[InputRange], drawn: Callable[[], Arrays]) -> Arrays:
    """Return inputs of which floats are small multiples of a half, or numbers that they are compared with.

    Args:
        specs: the inputs. drawn: draws them.
    """
    feeds = drawn()
    for spec in specs:
        if spec.is_float and not spec.is_mask:
            rng = np.random.default_rng(feeds[spec.name].size)
            halves: Array = np.asarray(rng.integers(-6, 6, spec.shape, endpoint=True) / 2)
            if spec.compared:
                halves.reshape(-1)[::3] = np.resize(spec.compared, -(-halves.size // 3))
            feeds[spec.name] = halves.astype(spec.dtype)
    return feeds


def small_spread_first(spec: InputRange, seed: int, epsilon: float) -> list[Family]:
    """Return the families of a single input, those with a spread near epsilon first: as a variance, as a deviation."""
    families = list(make_families([spec], seed=seed, epsilons=(epsilon**2, epsilon)))
    return sorted(families, key=lambda family: family.kind is not Kind.SMALL_VARIANCE)


def _feeds(
    specs: Sequence[InputRange],
    seed: tuple[int, int],
    fill: Fill,
    *,
    integer: Draw | None = None,
    mask: Draw = masks.mixed,
) -> Arrays:
    """Draw every input: floats by ``fill``, masks by ``mask``, integers by ``integer`` (else in their range)."""
    rng, feeds = np.random.default_rng(seed), dict[str, Array]()
    for spec in specs:
        if spec.is_mask and not (spec.ends and integer is not None):
            feeds[spec.name] = mask(spec, rng)
        elif spec.is_float:
            feeds[spec.name] = np.asarray(fill(rng, spec.shape)).astype(spec.dtype)
        else:
            feeds[spec.name] = (integer or _anywhere)(spec, rng).astype(spec.dtype)
    return feeds
