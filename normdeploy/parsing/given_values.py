"""Values of inputs that the user gave, held against what was said of these inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from normdeploy.errors import InputError
from normdeploy.parsing.inputs import InputSpec

if TYPE_CHECKING:
    from normdeploy.array_types import Array


def given_values(specs: Sequence[InputSpec], values: Array | Mapping[str, Array] | None) -> dict[str, Array]:
    """Return given values by their inputs' names.

    Args:
        specs: the inputs.
        values: by name, some or all of them; an array alone is the only input's.

    Raises:
        InputError: one is of no input, or of another dtype, rank or size than its input.
    """
    names = [spec.name for spec in specs]
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        if len(specs) != 1:
            raise InputError(
                f"one array is given for {len(specs)} inputs ({', '.join(names)}); expected arrays by name: save them "
                "with numpy.savez"
            )
        values = {names[0]: values}
    unknown = next((name for name in values if name not in names), None)
    if unknown is not None:
        raise InputError(f"a value is given for {unknown!r}; expected one of the inputs: {', '.join(names)}")
    by_name = {spec.name: spec for spec in specs}
    for name, array in values.items():
        _require_fit(by_name[name], array)
    return dict(values)


def _require_fit(spec: InputSpec, array: Array) -> None:
    # NumPy has no bfloat16 of its own: its values are given in float32
    dtype = "float32" if spec.dtype == "bfloat16" else spec.dtype
    if str(array.dtype) != dtype:
        raise InputError(
            f"the value given for {spec.name!r} is {array.dtype}; expected {dtype}: convert it where it is made, for "
            f"example with .astype({dtype!r})"
        )
    sizes = zip(spec.shape, array.shape, strict=False)
    if len(spec.shape) != array.ndim or any(isinstance(size, int) and size != held for size, held in sizes):
        raise InputError(f"the value given for {spec.name!r} has shape {list(array.shape)}; expected {spec}")


def sizes_of(specs: Sequence[InputSpec], values: Mapping[str, Array]) -> dict[str, int]:
    """Return the size of each dynamic dimension that given values have.

    Raises:
        InputError: they have several for one word, or another than ``word=64`` says.
    """
    found: dict[str, int] = {}
    for spec in specs:
        said = dict(spec.examples)
        shape = values[spec.name].shape if spec.name in values else ()
        for word, size in [*said.items(), *((w, n) for w, n in zip(spec.shape, shape, strict=False))]:
            if isinstance(word, str) and found.setdefault(word, size) != size:
                raise InputError(
                    f"{word!r} is {found[word]} and {size} in what is given; expected one size: the inputs share it"
                )
    return found
