"""What goes into a model, as text: ``NAME=DTYPE:SHAPE`` and ``KEY=VALUE``.

SHAPE is sizes joined by ``x`` or by commas: ``batchx3x224x224``. A word is a dynamic dimension (without the letter x
where that separates); ``height=64`` says at which size it is traced. Nothing after the colon is a scalar. A dot in
NAME reaches into an argument: ``batch.image`` is the entry of a dictionary, ``pair.0`` an element of a tuple.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normdeploy.errors import InputError, UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn

GRAMMAR = "NAME=DTYPE:SHAPE such as x=float32:batchx3x224x224"
DTYPES = (
    "float32", "float16", "bfloat16", "float64",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
_OTHER_NAMES = {
    "float": "float32", "fp32": "float32", "f32": "float32", "single": "float32",
    "half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16",
    "double": "float64", "fp64": "float64", "f64": "float64",
    "long": "int64", "i64": "int64", "i32": "int32", "short": "int16", "i16": "int16", "i8": "int8",
    "u8": "uint8", "byte": "uint8", "boolean": "bool",
}  # fmt: skip
# x separates dimensions; a word with one of these in it would be torn
_TORN = re.compile("max|index|indices|box|text|pixel|voxel|matrix|vertex|axis|axes|prefix|suffix|next|mix|extra|expert")
_DIMENSION = re.compile(r"(?P<size>\d+)|(?P<word>[A-Za-z_][A-Za-z_0-9]*)(=(?P<example>\d+))?")
_FIRST_EXAMPLE = 2  # a dimension traced at 0 or 1 is specialized to it without a word
_OTHER_EXAMPLES = 7  # further words get 7, 8, ...: distinct, so that no two dimensions are taken for one


@dataclass(frozen=True)
class InputSpec:
    """One input of a model.

    Args:
        name: of the graph input; with dots, where it is in an argument of ``forward``.
        dtype: one of `DTYPES`.
        shape: per dimension a size, or a word for a dynamic one.
        examples: sizes for tracing, by word, where the user gave them.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    examples: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sizes = [str(size) for size in self.shape]
        shape = "x".join(sizes)
        if _TORN.search(shape) or any("x" in size for size in sizes):
            shape = ",".join(sizes)
        return f"{self.name}={self.dtype}:{shape}"


def parse_input(text: str) -> InputSpec:
    """Parse ``NAME=DTYPE:SHAPE``.

    Raises:
        UsageError: it does not follow the grammar; the message says where.
    """
    name, equals, rest = text.partition("=")
    dtype, colon, shape = rest.partition(":")
    first, *inner = name.split(".")
    if not equals or not colon or not first.isidentifier() or not all(re.fullmatch(r"\w+", part) for part in inner):
        raise UsageError(f"input is {text!r}; expected {GRAMMAR}")
    if dtype not in DTYPES:
        word = dtype.lower().removeprefix("torch.")
        near = _OTHER_NAMES.get(word) or next(iter(difflib.get_close_matches(word, DTYPES, 1)), "")
        hint = f": did you mean {near}?" if near else ""
        raise UsageError(f"input {name} has dtype {dtype!r}; expected one of {', '.join(DTYPES)}{hint}")
    torn = "," not in shape and _TORN.search(shape)
    if torn:
        raise UsageError(
            f"input {name} has shape {shape!r}; expected words without x where x separates, and {torn[0]!r} would be "
            "torn: separate by commas, as maxbatch,3,224,224"
        )
    sizes: list[int | str] = []
    examples: dict[str, int] = {}
    for part in shape.split("," if "," in shape else "x") if shape else []:
        match = _DIMENSION.fullmatch(part)
        if match is None or part == "0":
            raise UsageError(
                f"input {name} has dimension {part!r} in {shape!r}; expected sizes or words joined by x, as "
                "batchx3x224x224 (a word is a dynamic dimension and has no x in it; word=64 says its size in tracing)"
            )
        sizes.append(int(match["size"]) if match["size"] else match["word"])
        if match["example"]:
            examples[match["word"]] = int(match["example"])
    return InputSpec(name, dtype, tuple(sizes), tuple(examples.items()))


def parse_inputs(texts: Sequence[str]) -> list[InputSpec]:
    """Parse several inputs.

    Raises:
        UsageError: one does not follow the grammar, or a name comes twice.
    """
    specs = [parse_input(text) for text in texts]
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"input {name} is given {names.count(name)} times; expected each name once")
    return specs


def parse_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` constructor arguments; VALUE is a Python literal, or else a string.

    Raises:
        UsageError: one has no ``=`` or no identifier before it.
    """
    arguments: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"argument is {text!r}; expected KEY=VALUE such as width=32")
        try:
            arguments[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[key] = value
    return arguments


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


def make_example(specs: Sequence[InputSpec], model: nn.Module, *, seed: int = 0, renames: bool = True) -> Example:
    """Make example tensors for ``specs``: N(0, 1) for floats, 0 or 1 for integers.

    When every name is a parameter of ``model.forward``, inputs are passed by name. When none is, they are passed in the
    order given and their names are those of the graph's inputs, if that is asked for.

    Args:
        specs: the inputs.
        model: takes them.
        seed: of the draws.
        renames: whether names that are no parameters of the author's forward name the graph's inputs, in order. A
            recipe names them on purpose; a word typed for one export may be mistyped.

    Raises:
        InputError: the model takes fewer inputs than given, none of such a name, or some names are parameters and
            others are not.
        UsageError: names with dots contradict each other.
    """
    import torch

    from normdeploy.ort.made_inputs import make_inputs
    from normdeploy.ort.specs import TensorSpec

    examples: dict[str, int] = {}
    dimensions: dict[str, Any] = {}
    given = dict(pair for spec in specs for pair in spec.examples)
    for word in (size for spec in specs for size in spec.shape if isinstance(size, str)):
        if word not in examples:
            examples[word] = given.get(word, _OTHER_EXAMPLES + len(examples) - 1 if examples else _FIRST_EXAMPLE)
            dimensions[word] = torch.export.Dim(word)
    # NumPy has no bfloat16 of its own: floats are drawn in float32
    kinds = {spec.name: getattr(torch, spec.dtype) for spec in specs}
    declared = [TensorSpec(s.name, "float32" if kinds[s.name].is_floating_point else s.dtype, s.shape) for s in specs]
    made = make_inputs(declared, lambda spec, axis: examples[str(spec.shape[axis])], seed=seed)
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
