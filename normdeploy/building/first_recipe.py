"""A first recipe for a network of one's own: what is known stands in it, what may be wanted stands beside it."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normdeploy.errors import UsageError
from normdeploy.parsing.recipe import parse_recipe
from normdeploy.parsing.sources import is_source, split_source

_DATA = """\
# What it is trained and judged on: a function that returns normdeploy.train.Splits, or files (docs/training.md).
# Without it the weights must be there, and the report has no accuracy.
# [data]
# source = "net.py:data"
"""
_REST = """\
[verify]
level = "default" # or "quick", "thorough"

[bench]
batch_size = 8

# int8 beside it: trained on with fake quantization, proven, compared with float (needs [data]; docs/quantization.md):
# [quantize]
# epochs = 3

# The fastest way to run it on this machine, within what may be lost:
# [tune]
# budget = "exact" # or "top1=0.5%", "rel=1e-2"
"""


def recipe_text(
    target: Path,
    *,
    source: str,
    weights: Path | None,
    arguments: Mapping[str, Any],
    data: str | None,
    inputs: Sequence[str],
) -> str:
    """Return the text of a recipe, paths in it relative to its folder.

    Args:
        target: where it will lie. source: of the model. weights: its weights file; by default one of the recipe's name.
        arguments: of its constructor. data: source of its data, or files. inputs: ``NAME=DTYPE:SHAPE`` each.

    Raises:
        UsageError: an argument has no form in TOML, data is not there, or the name does not end in .toml.
    """
    if target.suffix != ".toml":
        raise UsageError(
            f"recipe is {target}; expected a name that ends in .toml: write -o {target.with_suffix('.toml')}"
        )
    where = f"{target.stem}.safetensors" if weights is None else _relative(weights, target)
    lines = [
        "[model]",
        f"source = {_toml(_relative_source(source, target))}",
        f"weights = {_toml(where)}",
    ]
    if arguments:
        lines.append(f"arguments = {_toml(dict(arguments))}")
    parts = ["\n".join(lines) + "\n"]
    parts.append(_DATA if data is None else f"[data]\n{_data(data, target)}\n\n[train]\nepochs = 30\n")
    export = f"inputs = {_toml(list(inputs))}\n" if inputs else "# inputs are taken from the test split\n"
    if data is not None and not is_source(data):
        export += "# preprocess = true # the file takes inputs as they come, and standardizes them itself\n"
    parts += [f"[export]\n{export}", _REST]
    text = "\n".join(parts)
    parse_recipe(tomllib.loads(text), target)
    return text


def _data(data: str, target: Path) -> str:
    """Return the line that says where data is: a function's SOURCE, or files.

    Raises:
        UsageError: it is neither.
    """
    if is_source(data):
        return f"source = {_toml(_relative_source(data, target))}"
    if not Path(data).exists():
        raise UsageError(
            f"data is {data}, which does not exist; expected a function as net.py:data, or a folder of images by "
            "class, a .csv, .parquet, .npz or IDX file: check the path"
        )
    return f"files = {_toml(_relative(Path(data), target))}"


def next_steps(target: Path) -> str:
    """Say what to do with a recipe; outputs go into a folder of their own, where no earlier export lies."""
    return f"next: look it through, then normdeploy build {target} --out build"


def _relative(path: Path, target: Path) -> str:
    if path.is_absolute():
        return path.as_posix()
    return Path(os.path.relpath(path, target.parent)).as_posix()


def _relative_source(source: str, target: Path) -> str:
    place, name = split_source(source)
    return f"{_relative(Path(place), target)}:{name}" if place.endswith(".py") else source


def _toml(value: Any) -> str:
    """Write a value as TOML.

    Raises:
        UsageError: it has no form there.
    """
    if isinstance(value, (bool, int, float, str)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(entry) for entry in value)}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {_toml(entry)}" for key, entry in value.items()) + " }"
    raise UsageError(
        f"argument {value!r} has no form in a recipe; expected numbers, strings, true, false, lists or tables: give it "
        "a default in the model"
    )
