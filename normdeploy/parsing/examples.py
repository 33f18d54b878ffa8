"""Example arguments of a model, made of what was said of its inputs, and of values that the user gave."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normdeploy.errors import InputError, UsageError
from normdeploy.parsing.given_values import given_values, sizes_of
from normdeploy.parsing.inputs import InputSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

    from normdeploy.array_types import Array

_FIRST_EXAMPLE = 2  # a dimension traced at 0 or 1 is specialized to it without a word
_OTHER_EXAMPLES = 7  # further words get 7, 8, ...: distinct, so that no two dimensions are taken for one


@dataclass(frozen=True)
class Example:
    """Example arguments for tracing, in torch.onnx.export's words.

    Args:
        args: positional arguments.
        kwargs: arguments by name, which may hold tensors in dictionaries and tuples.
        input_names: names of the graph inputs, in order.
        dynamic_shapes: as torch.export takes it: a tuple for args, or a dict when everything is passed by name.
    """

    args: tuple[torch.Tensor, ...]
    kwargs: dict[str, Any]
    input_names: list[str]
    dynamic_shapes: Any

    def named(self) -> dict[str, torch.Tensor]:
        """Return the tensors by graph input name."""
        tensors = _leaves(self.kwargs) if self.kwargs else self.args
        return dict(zip(self.input_names, tensors, strict=True))


def _leaves(value: Any) -> list[Any]:
    """Return what nested dictionaries and tuples hold, in order."""
    if isinstance(value, (dict, tuple)):
        return [leaf for inner in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(inner)]
    return [value]


def _nested(names: Sequence[str]) -> dict[str, Any]:
    """Return what dotted names say: a.b and c.0 as ``{"a": {"b": "a.b"}, "c": ("c.0",)}``.

    Raises:
        UsageError: a name is an input and has others inside, or a tuple's places are not 0, 1, 2, ...
    """
    root: dict[str, Any] = {}
    for name in sorted(names, key=lambda name: name.count(".")):
        *outer, last = name.split(".")
        inside: Any = root
        for part in outer:
            inside = inside.setdefault(part, {})
            if isinstance(inside, str):
                raise UsageError(f"inputs {inside} and {name} are given; expected one of them: one lies in the other")
        inside[last] = name
    first = list(dict.fromkeys(name.partition(".")[0] for name in names))
    return {name: _with_tuples(name, root[name]) for name in first}


def _with_tuples(name: str, value: Any) -> Any:
    """Return a dictionary whose keys are all numbers as a tuple."""
    if not isinstance(value, dict):
        return value
    inner = {key: _with_tuples(f"{name}.{key}", item) for key, item in value.items()}
    if not all(key.isdecimal() for key in inner):
        return inner
    if set(inner) != {str(place) for place in range(len(inner))}:
        given = ", ".join(f"{name}.{key}" for key in inner)
        raise UsageError(f"inputs {given}; expected {name}.0 to {name}.{len(inner) - 1}: count a tuple's places from 0")
    return tuple(inner[str(place)] for place in range(len(inner)))


def _filled(structure: Any, values: dict[str, Any]) -> Any:
    """Return a structure of names with a value in place of each name."""
    if isinstance(structure, dict):
        return {key: _filled(inner, values) for key, inner in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_filled(inner, values) for inner in structure)
    return values[structure]


def make_example(
    specs: Sequence[InputSpec],
    model: nn.Module,
    *,
    values: Array | Mapping[str, Array] | None = None,
    seed: int = 0,
    renames: bool = True,
) -> Example:
    """Make example tensors for ``specs``: those given, and N(0, 1) for other floats, 0 or 1 for other integers.

    When every name is a parameter of ``model.forward``, inputs are passed by name. When none is, they are passed in the
    order given and their names are those of the graph's inputs, if that is asked for.

    Args:
        specs: the inputs.
        model: takes them.
        values: given ones, by the inputs' names; an array alone for the only input.
        seed: of the draws.
        renames: whether names that are no parameters of the author's forward name the graph's inputs, in order. A
            recipe names them on purpose; a word typed for one export may be mistyped.

    Raises:
        InputError: the model takes fewer inputs than given, none of such a name, or some names are parameters and
            others are not; a given value is of no input, or of another dtype or shape.
        UsageError: names with dots contradict each other.
    """
    import torch

    from normdeploy.ort.made_inputs import make_inputs
    from normdeploy.ort.specs import TensorSpec

    examples: dict[str, int] = {}
    dimensions: dict[str, Any] = {}
    held = given_values(specs, values)
    given = dict(pair for spec in specs for pair in spec.examples) | sizes_of(specs, held)
    for word in (size for spec in specs for size in spec.shape if isinstance(size, str)):
        if word not in examples:
            examples[word] = given.get(word, _OTHER_EXAMPLES + len(examples) - 1 if examples else _FIRST_EXAMPLE)
            dimensions[word] = torch.export.Dim(word)
    # NumPy has no bfloat16 of its own: floats are drawn in float32
    kinds = {spec.name: getattr(torch, spec.dtype) for spec in specs}
    declared = [TensorSpec(s.name, "float32" if kinds[s.name].is_floating_point else s.dtype, s.shape) for s in specs]
    made = make_inputs(declared, lambda spec, axis: examples[str(spec.shape[axis])], seed=seed)
    made |= held
    tensors = {name: torch.from_numpy(array).to(kinds[name]) for name, array in made.items()}
    shapes: dict[str, dict[int, Any]] = {}
    for spec in specs:
        shapes[spec.name] = {axis: dimensions[size] for axis, size in enumerate(spec.shape) if isinstance(size, str)}
    parameters = inspect.signature(model.forward).parameters
    names = [spec.name for spec in specs]
    roots = [name.partition(".")[0] for name in names]
    if all(root in parameters for root in roots):
        structure = _nested(names)
        ordered = [name.replace(".", "_") for name in _leaves(structure)]
        return Example((), _filled(structure, tensors), ordered, _filled(structure, shapes))
    _require_one_way(roots, model, renames=renames)
    starred = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters.values())
    if len(names) > len(parameters) and not starred:
        raise InputError(
            f"{len(names)} inputs are given ({', '.join(names)}); "
            f"expected at most {len(parameters)}: {type(model).__name__}.forward takes {', '.join(parameters)}"
        )
    return Example(tuple(tensors.values()), {}, names, tuple(shapes.values()))


def _require_one_way(roots: Sequence[str], model: nn.Module, *, renames: bool) -> None:
    """Refuse names that are no parameters of forward, but for all of them at once where that is asked for.

    Raises:
        InputError: there is one.
    """
    parameters = inspect.signature(model.forward).parameters
    if any(item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD) for item in parameters.values()):
        return
    home = type(model).forward.__module__ or ""  # torch.fx compiles a forward that names no module
    if home.partition(".")[0] == "torch":  # its names (nn.Sequential's `input`) are nobody's
        return
    unknown = [root for root in roots if root not in parameters]
    if renames and len(unknown) == len(roots):
        return
    lowered = {parameter.lower(): parameter for parameter in parameters}
    near = {root: lowered[match] for root in unknown for match in difflib.get_close_matches(root.lower(), lowered, 1)}
    name = next(iter(near), unknown[0])
    none = ", or none of them" if renames else ""
    remedy = f": did you mean {near[name]}?" if near else f"{none}: name the inputs so"
    raise InputError(
        f"input {name} is no parameter of {type(model).__name__}.forward; expected names among "
        f"{', '.join(parameters)}{remedy}"
    )
