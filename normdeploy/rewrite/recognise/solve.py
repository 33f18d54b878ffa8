"""Find the normalization that a function computes, by probing it in float64, and accept it only if it agrees.

Written for a function f of one array, without looking at its operators:

1. y = f(x) and f(-x) sum to twice the shift; half their difference, z, must not change from x = 1e8 p to 1e9 p
   (there epsilon is lost, and a normalization does not see the scale). Nearly everything else fails here.
2. One element is moved: the elements of y that change are its block, a box.
3. Adding a constant to a block changes nothing if the mean is subtracted.
4. The scale is z / ((x - m) / sqrt(v)) at x = 1e8 p, where no |x - m| is small.
5. Epsilon and its place inside or outside the root: :mod:`normdeploy.rewrite.recognise.epsilon`.
6. The hypothesis is compared with f on random inputs: rows of different spread over many scales, around epsilon, with
   offsets up to a hundred spreads. It must agree to TOLERANCE relative to each block's largest value; what
   E[x^2] - E[x]^2 loses to cancellation in float64 itself is allowed for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from normdeploy.array_types import Floats
from normdeploy.rewrite.recognise.epsilon import find_epsilon
from normdeploy.rewrite.recognise.hypothesis import Blocks, Norm

Function = Callable[[Floats], Floats]

TOLERANCE = 1e-10
"""Largest distance between hypothesis and region, relative to the block's largest normalized value."""

_LARGE = 1e8
_EPS64 = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Core:
    """What does not depend on scale and shift: found once for all values computed from the same statistics."""

    blocks: Blocks
    centred: bool
    outside: bool = False
    epsilon: float = 0.0


def pattern(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Return values of magnitude 1 to 2 whose sign alternates along every axis: no element is near its block's mean."""
    parity = np.zeros(shape, dtype=np.int64)
    for axis, size in enumerate(shape):
        parity = parity + np.arange(size).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.where(parity % 2 == 0, 1.0, -1.0) * rng.uniform(1.0, 2.0, shape)


def ignores_scale(large: tuple[Floats, Floats], larger: tuple[Floats, Floats]) -> bool:
    """Tell whether a function's odd part is there and the same at two large scales (step 1).

    Args:
        large: f(1e8 p), f(-1e8 p).
        larger: f(1e9 p), f(-1e9 p).
    """
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is looked at below
        odd, odd_larger = (large[0] - large[1]) / 2, (larger[0] - larger[1]) / 2
        even, even_larger = (large[0] + large[1]) / 2, (larger[0] + larger[1]) / 2
    if not all(np.isfinite(item).all() for item in (odd, even, odd_larger, even_larger)):
        return False
    size = float(np.abs(odd).max())
    if size == 0.0:
        return False
    return bool(
        np.abs(odd - odd_larger).max() <= 1e-6 * size
        and np.abs(even - even_larger).max() <= 1e-6 * (size + np.abs(even).max())
    )


def find_blocks(f: Function, p: Floats) -> Blocks | None:
    """Return the block structure of a function (step 2), or None where it is none of ours."""
    base = f(p)
    centre = tuple(size // 2 for size in p.shape)
    moved = p.copy()
    moved[centre] += 3.0
    change = np.abs(f(moved) - base)
    hit = np.argwhere(change > 1e-9 * change.max()) if change.max() > 0 else np.empty((0, p.ndim), dtype=np.int64)
    if len(hit) == 0:
        return None
    low, high = hit.min(axis=0), hit.max(axis=0) + 1
    axes: list[int] = []
    split: tuple[int, int] | None = None
    for axis, size in enumerate(p.shape):
        width = int(high[axis] - low[axis])
        if width == size:
            if size > 1:
                axes.append(axis)
        elif width > 1:
            if split is not None or size % width or low[axis] % width:
                return None
            split = (axis, width)
        elif low[axis] != centre[axis]:
            return None
    # an axis of size one behind averaged ones belongs to either side; counting it in keeps the averaged axes trailing
    axes += [axis for axis, size in enumerate(p.shape) if size == 1 and any(other < axis for other in axes)]
    blocks = Blocks(tuple(sorted(axes))) if split is None else Blocks(tuple(sorted(axes)), split[0], split[1])
    return blocks if blocks.count(p.shape) > 1 else None


def find_core(f: Function, p: Floats, base: Floats, minus: Floats) -> Core | None:
    """Return block structure, centring and epsilon of a function (steps 2 to 5), or None.

    Args:
        f: the function.
        p: the probe pattern.
        base: f(1e8 p).
        minus: f(-1e8 p).
    """
    blocks = find_blocks(f, p)
    if blocks is None:
        return None
    lifted = f(_LARGE * (p + 5.0))
    centred = bool(np.abs(lifted - base).max() <= 1e-6 * np.abs(base).max())
    core = Core(blocks, centred)
    plain = affine_from(base, minus, p, core)
    for _ in range(2):  # the second time with a scale freed from what epsilon is even at large inputs
        epsilon = None if plain is None else find_epsilon(f, p, plain)
        if plain is None or epsilon is None:
            return None
        core = replace(core, outside=epsilon[0], epsilon=epsilon[1])
        freed = affine_from(base, minus, p, core)
        if freed is None or np.abs(freed.scale - plain.scale).max() <= 1e-13 * np.abs(plain.scale).max():
            break
        plain = freed
    return core


def affine_from(plus: Floats, minus: Floats, p: Floats, core: Core) -> Norm | None:
    """Return the normalization with scale and shift solved for (step 4); they are of x's full shape.

    Args:
        plus: f(1e8 p).
        minus: f(-1e8 p).
        p: the probe pattern.
        core: what does not depend on scale and shift.
    """
    bare = Norm(core.blocks, core.centred, core.outside, core.epsilon, np.ones((1,) * p.ndim), np.zeros((1,) * p.ndim))
    normal, _ = bare.normalize(_LARGE * p)
    if not np.isfinite(normal).all() or np.abs(normal).min() < 1e-6:
        return None
    return replace(bare, scale=(plus - minus) / 2 / normal, shift=(plus + minus) / 2)


def disagreement(y: Floats, x: Floats, norm: Norm) -> float:
    """Return the largest distance between values and hypothesis in units of what is allowed; NaN counts as inf.

    Allowed is a part of what each place's own scale makes of its block's largest normalized value: a place with a small
    scale is held as closely as one with a large one.
    """
    normal, condition = norm.normalize(x)
    error = y - norm.scale * normal
    error -= norm.shift
    inner = norm.blocks.split_shape(x.shape)
    axes = norm.blocks.split_axes()
    largest = np.abs(normal).reshape(inner).max(axis=axes, keepdims=True)
    lost = np.minimum(1e-7, 64 * _EPS64 * condition)
    own = np.broadcast_to(np.abs(norm.scale), x.shape).reshape(inner)
    allowed = own * (largest * (TOLERANCE + lost)) + 1e-14 * np.abs(norm.shift).max(initial=0.0)
    worst = np.abs(error, out=error).reshape(inner)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(worst == 0, 0.0, worst / allowed)
    return float("inf") if np.isnan(ratio).any() else float(ratio.max())


def trials(norm: Norm, shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[Floats]:
    """Yield the random inputs of step 6; the first has blocks of all kinds."""
    knee = norm.epsilon if norm.outside else float(np.sqrt(norm.epsilon))
    knee = knee or 1.0
    inner = norm.blocks.split_shape(shape)
    axes = norm.blocks.split_axes()
    per_block = [1 if axis in axes else size for axis, size in enumerate(inner)]
    blocks = math.prod(per_block)
    # smallest and largest decade of a block's spread in units of the knee, and its mean in spreads
    regimes = np.array([(-1.5, 1.5, 0.0), (-1.0, 2.0, 10.0), (-6.0, -2.0, 0.0), (2.0, 7.0, 100.0)])
    noise = rng.standard_normal(inner)
    # each block is a trial of its own: where there are many, one input holds all regimes
    for turn in range(1 if blocks >= 8 * len(regimes) else len(regimes)):
        chosen = (np.arange(blocks) + turn) % len(regimes)
        low, high, offset = (regimes[chosen, column].reshape(per_block) for column in range(3))
        spread = knee * 10.0 ** rng.uniform(low, high)
        yield (spread * (noise + offset * rng.standard_normal(per_block))).reshape(shape)
    normal = noise.reshape(shape)
    yield normal + 3.0
    # heavy tails
    yield normal * np.square(np.square(normal))
