"""Input families: inputs chosen so that each kind of mistake has somewhere to show.

Random inputs of unit variance are blind to a wrong epsilon; constant rows are blind to it too (x - m = 0) and test
cancellation and NaN instead; a padded border shows only where something is near it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.errors import InputError
from normdeploy.graph import constant_tensor
from normdeploy.verify.values import Array, Arrays

_FORWARDING = frozenset({"Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Transpose", "Expand"})


@dataclass(frozen=True)
class InputSpec:
    """One graph input.

    Args:
        name: its name. dtype: NumPy dtype. shape: concrete base shape.
        dynamic: axis to dimension name, for the axes that may change.
        low, high: inclusive range of an integer input.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    dynamic: Mapping[int, str]
    low: int = 0
    high: int = 1

    @property
    def is_float(self) -> bool:
        """True for every floating dtype, bfloat16 included (NumPy knows it as a void kind)."""
        return self.dtype.kind == "f" or self.dtype.name == "bfloat16"


@dataclass(frozen=True)
class Family:
    """Named inputs of one kind.

    Args:
        name: what is special about them. feeds: array per input name.
        user: they are the user's own data.
    """

    name: str
    feeds: Arrays
    user: bool = False


def input_specs(model: ir.Model, example: Mapping[str, Array]) -> list[InputSpec]:
    """Describe a graph's inputs from its declarations and one example.

    Args:
        model: the graph (the reference's where there is one: its tables bound the integer ids).
        example: one array per input.

    Raises:
        InputError: the example lacks an input, or contradicts the declared dtype or rank.
    """
    specs = []
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        name = str(value.name)
        if name not in example:
            raise InputError(f"no example for input {name!r}; expected one for each graph input: pass it in args")
        array = np.asarray(example[name])
        if value.dtype is not None and array.dtype != value.dtype.numpy():
            raise InputError(
                f"input {name!r} has dtype {array.dtype}; expected {value.dtype.numpy()}: convert the example"
            )
        dynamic: dict[int, str] = {}
        if value.shape is not None:
            if len(value.shape) != array.ndim:
                raise InputError(
                    f"input {name!r} has rank {array.ndim}; expected {len(value.shape)}: reshape the example"
                )
            dynamic = {i: str(d.value or f"{name}.{i}") for i, d in enumerate(value.shape) if not isinstance(d, int)}
        low, high = _range(value, array)
        specs.append(InputSpec(name, array.dtype, array.shape, dynamic, low, high))
    return specs


def _range(value: ir.Value, example: Array) -> tuple[int, int]:
    if example.dtype.kind not in "iu":
        return 0, 1
    size = _table_size(value)
    if size is not None:
        return 0, size - 1
    if example.dtype in (np.uint8, np.int8):
        info = np.iinfo(example.dtype)
        return int(info.min), int(info.max)
    low, high = (int(example.min()), int(example.max())) if example.size else (0, 1)
    # A mask shows only ones in most examples
    return min(low, 0 if high <= 1 else low), max(high, 1)


def _table_size(value: ir.Value, depth: int = 0) -> int | None:
    """Return the rows of the smallest table that an integer input indexes; None if it indexes none."""
    sizes = []
    for node, index in value.uses():
        if node.op_type in ("Gather", "GatherElements") and index == 1:
            tensor = constant_tensor(node.inputs[0])
            shape = node.inputs[0].shape if node.inputs[0] is not None else None
            axis = node.attributes.get_int("axis", 0)
            if tensor is not None:
                sizes.append(int(tensor.shape.numpy()[axis]))
            elif shape is not None:
                rows = shape[axis]
                sizes += [rows] if isinstance(rows, int) else []
        elif node.op_type in _FORWARDING and index == 0 and depth < 4:
            size = _table_size(node.outputs[0], depth + 1)
            if size is not None:
                sizes.append(size)
    return min(sizes) if sizes else None


def resized(specs: Sequence[InputSpec], sizes: Mapping[str, int]) -> list[InputSpec]:
    """Return the specs with dynamic dimensions set by name."""
    return [replace(s, shape=tuple(sizes.get(s.dynamic.get(i, ""), n) for i, n in enumerate(s.shape))) for s in specs]


def dynamic_names(specs: Sequence[InputSpec]) -> list[str]:
    """Return the names of the dynamic dimensions, first seen first."""
    return list(dict.fromkeys(name for spec in specs for _, name in sorted(spec.dynamic.items())))


def batch_name(specs: Sequence[InputSpec]) -> str | None:
    """Return the name of the dynamic dimension that is axis 0 of the first input that has one."""
    for spec in specs:
        if 0 in spec.dynamic:
            return spec.dynamic[0]
    return None


Fill = Callable[[np.random.Generator, tuple[int, ...]], Any]


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.standard_normal(shape)


def _small_variance(epsilon: float) -> Fill:
    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        x = rng.standard_normal(shape)
        if x.ndim < 2:
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
    for axis in range(2, len(shape)):
        for end in (0, -1):
            index: list[Any] = [slice(None)] * len(shape)
            index[axis] = end
            x[tuple(index)] = rng.standard_normal(x[tuple(index)].shape)
    return x


def _full(value: float) -> Fill:
    return lambda _, shape: np.full(shape, value)


def _denormal(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.standard_normal(shape) * 1e-40


def make_families(
    specs: Sequence[InputSpec], *, seed: int = 0, epsilons: Sequence[float] = (1e-5,)
) -> Iterator[Family]:
    """Yield the families for some inputs, most telling first.

    Args:
        specs: the inputs, at the sizes wanted.
        seed: of the random numbers; each family draws its own.
        epsilons: of the graph's normalizations; the smallest and the largest get a small-variance family each.
    """
    has_floats = any(spec.is_float for spec in specs)
    has_integers = any(spec.dtype.kind in "iu" for spec in specs)
    has_masks = any(spec.dtype.kind == "b" or _is_mask(spec) for spec in specs)
    fills: list[tuple[str, Fill]] = [("normal", _normal)]
    if has_floats:
        chosen = sorted({float(e) for e in epsilons if e > 0}) or [1e-5]
        fills += [(f"row variance around {e:.0e}", _small_variance(e)) for e in dict.fromkeys((chosen[0], chosen[-1]))]
        fills += [("offset 1e3", _offset), ("outlier", _outlier), ("constant rows", _constant_rows)]
        fills += [("zeros", _full(0.0)), ("ones", _full(1.0)), ("denormals", _denormal)]
        if any(spec.is_float and len(spec.shape) >= 3 for spec in specs):
            fills.append(("border impulse", _border))
    for number, (name, fill) in enumerate(fills):
        yield Family(name, _feeds(specs, np.random.default_rng((seed, number)), fill, None))
    if has_integers:
        for name, end in (("lowest ids", "low"), ("highest ids", "high")):
            yield Family(name, _feeds(specs, np.random.default_rng((seed, 90)), _normal, end))
    if has_masks:
        yield Family("masks all true", _feeds(specs, np.random.default_rng((seed, 91)), _normal, "mask"))


def small_spread_first(spec: InputSpec, seed: int, epsilon: float) -> list[Family]:
    """Return the families of a single input, those with a spread near epsilon first: as a variance, as a deviation."""
    families = list(make_families([spec], seed=seed, epsilons=(epsilon**2, epsilon)))
    return sorted(families, key=lambda family: not family.name.startswith("row variance"))


def _is_mask(spec: InputSpec) -> bool:
    return spec.dtype.kind in "iu" and (spec.low, spec.high) == (0, 1)


def _feeds(specs: Sequence[InputSpec], rng: np.random.Generator, fill: Fill, end: str | None) -> Arrays:
    feeds: Arrays = {}
    for spec in specs:
        if spec.is_float:
            feeds[spec.name] = np.asarray(fill(rng, spec.shape)).astype(spec.dtype)
        elif spec.dtype.kind == "b" or _is_mask(spec):
            feeds[spec.name] = _mask(spec, rng, full=end == "mask")
        else:
            chosen = rng.integers(spec.low, spec.high, spec.shape, endpoint=True)
            if end in ("low", "high"):
                few = rng.integers(0, min(3, spec.high - spec.low + 1), spec.shape)
                chosen = spec.low + few if end == "low" else spec.high - few
            feeds[spec.name] = chosen.astype(spec.dtype)
    return feeds


def _mask(spec: InputSpec, rng: np.random.Generator, *, full: bool) -> Array:
    mask = np.ones(spec.shape, bool) if full else rng.random(spec.shape) < 0.7
    if mask.ndim:
        mask[..., 0] = True  # an attention row without any key is NaN in every implementation and shows nothing
    return mask.astype(spec.dtype)


def user_families(data: Any, specs: Sequence[InputSpec], *, rows: int) -> list[Family]:
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
            array = np.asarray(batch[spec.name])
            if array.dtype != spec.dtype and not (array.dtype.kind == "f" and spec.is_float):
                raise InputError(f"data for {spec.name!r} has dtype {array.dtype}; expected {spec.dtype}: convert it")
            fixed = [i for i, n in enumerate(spec.shape) if i not in spec.dynamic and array.shape[i : i + 1] != (n,)]
            if array.ndim != len(spec.shape) or fixed:
                raise InputError(
                    f"data for {spec.name!r} has shape {array.shape}; expected {spec.shape} "
                    f"(dynamic axes: {sorted(spec.dynamic)}): reshape it"
                )
            array = array[:rows] if 0 in spec.dynamic else array
            feeds[spec.name] = array.astype(spec.dtype)
        families.append(Family("your data" if len(batches) == 1 else f"your data {number}", feeds, user=True))
    return families
