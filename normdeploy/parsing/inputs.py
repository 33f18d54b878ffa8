"""What goes into a model, as text: ``NAME=DTYPE:SHAPE`` and ``KEY=VALUE``.

SHAPE is sizes joined by ``x`` or by commas: ``batchx3x224x224``. A word is a dynamic dimension (without the letter x
where that separates); ``height=64`` says at which size it is traced. Nothing after the colon is a scalar. A dot in
NAME reaches into an argument: ``batch.image`` is the entry of a dictionary, ``pair.0`` an element of a tuple.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normdeploy.errors import UsageError

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
