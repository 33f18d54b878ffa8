"""Recipes: one TOML file per model, plain data, validated by key.

The dataclasses below are the one definition: the parser, its messages and the published JSON Schema
(docs/recipe.schema.json) are derived from their fields. Adding a key is adding a field.
Paths are relative to the recipe's folder.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

from normdeploy.errors import RecipeError

_UNBOUNDED = {"above": None, "least": None, "below": None}
SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def _key(default: Any = dataclasses.MISSING, *, doc: str, **bounds: float) -> Any:
    """Declare one recipe key: its default (none: required), its meaning, and bounds (above, least, below)."""
    return field(default=default, metadata={"doc": doc, **_UNBOUNDED, **bounds})


@dataclass(frozen=True)
class ModelSection:
    """What is trained and deployed."""

    source: str = _key(doc="SOURCE of the model: path/to/file.py:Name or package.module:Name, relative to the recipe")
    weights: str = _key(
        doc="file with the trained weights, .safetensors or .pt; written by training where there is none, relative to "
        "the recipe"
    )
    arguments: dict[str, Any] = field(
        default_factory=dict, metadata={"doc": "keyword arguments for the model's class or function", **_UNBOUNDED}
    )
    weights_key: str | None = _key(None, doc="which of a checkpoint's several state dicts, as model_ema")
    allow_missing: tuple[str, ...] = _key(
        (), doc="modules whose weights may be missing or of another shape, such as a new head"
    )
    unsafe_pickle: bool = _key(
        False, doc="load a .pt that holds Python objects; it can run any code: only for files you trust"
    )


@dataclass(frozen=True)
class DataSection:
    """What it is trained and judged on: a function (source), or files."""

    ONE_OF: ClassVar[tuple[str, ...]] = ("source", "files")

    source: str | None = _key(None, doc="SOURCE of a function returning normdeploy.train.data.Splits")
    arguments: dict[str, Any] = field(
        default_factory=dict, metadata={"doc": "keyword arguments for that function", **_UNBOUNDED}
    )
    files: str | None = _key(
        None,
        doc="a folder of images by class, a .csv, .parquet or .npz, or an IDX file of images, relative to the recipe",
    )
    test: str | None = _key(None, doc="the same for the test split; absent: a fifth of files")
    target: str | None = _key(
        None, doc="column or array of the classes; absent: the last column, or the array called y, target or labels"
    )
    columns: tuple[str, ...] = _key((), doc="input columns; absent: all others, in their order")
    size: str | None = _key(None, doc="HxW to which images are resized, as 64x64; absent: the first one's")
    grey: bool = _key(False, doc="read images as grey")
    standardize: bool = _key(True, doc="subtract the training split's mean and divide by its deviation")
    workers: int = _key(0, doc="processes that decode images", least=0)
    seed: int = _key(0, doc="of the shuffle that splits", least=0)


@dataclass(frozen=True)
class TrainSection:
    """How it is trained."""

    epochs: int = _key(30, doc="passes over the training split at most", least=1)
    batch_size: int = _key(64, doc="samples per step, over all processes together", least=2)
    lr: float = _key(3e-3, doc="highest learning rate of the cosine schedule", above=0)
    weight_decay: float = _key(1e-2, doc="of AdamW, on tensors of rank 2 and more", least=0)
    warmup: float = _key(0.1, doc="share of the steps over which the learning rate rises", least=0, below=1)
    clip: float = _key(1.0, doc="largest norm of the gradient; 0 leaves it as it is", least=0)
    label_smoothing: float = _key(0.0, doc="of the cross entropy", least=0, below=1)
    patience: int = _key(0, doc="epochs without a better validation loss before stopping; 0 never stops", least=0)
    precision: Literal["auto", "float32", "bfloat16", "float16"] = _key("auto", doc="auto is float32 on a CPU")
    recalibrate: bool = _key(False, doc="replace running averages by population statistics after training")
    seed: int = _key(0, doc="of initialization, shuffling, augmentation and dropout", least=0)


@dataclass(frozen=True)
class ExportSection:
    """How it becomes ONNX."""

    inputs: tuple[str, ...] = _key(
        (),
        doc="NAME=DTYPE:SHAPE per input, as x=float32:batchx1x8x8; absent: taken from the test split, batch dynamic; "
        "without data guessed from the first layers",
    )
    outputs: tuple[str, ...] = _key((), doc="names of the outputs; absent: chosen by the exporter")
    opset: int | None = _key(None, doc="ONNX opset; absent: the exporter's newest", least=18)
    fold: bool = _key(True, doc="fold and fuse normalizations")
    approximate: bool = _key(False, doc="allow rewrites that are equal only up to a bound the verifier then checks")
    preprocess: bool = _key(
        False, doc="write the data's standardization into the file, which then takes inputs as they come"
    )


@dataclass(frozen=True)
class VerifySection:
    """How hard the result is looked at."""

    level: Literal["quick", "default", "thorough"] = _key("default", doc="how much the verifier tries")
    seed: int = _key(0, doc="seed of the verifier's inputs", least=0)


@dataclass(frozen=True)
class TuneSection:
    """What the tuner may give up for speed."""

    budget: str = _key(doc="exact, or a loss as top1=0.5% or rel=1e-2")


@dataclass(frozen=True)
class BenchSection:
    """How latency is measured for the report."""

    batch_size: int = _key(64, doc="samples per call", least=1)
    repeats: int = _key(40, doc="interleaved rounds", least=3)
    threads: int = _key(1, doc="intra-operator threads", least=1)


@dataclass(frozen=True)
class Recipe:
    """One model's recipe.

    Args:
        path: the recipe file, absolute.
        model, data, train, export, verify, bench: its tables; tune is None where tuning was not asked for.

    Raises:
        RecipeError: from `load_recipe` and `parse_recipe`, naming the key.
    """

    path: Path
    model: ModelSection
    data: DataSection | None
    train: TrainSection
    export: ExportSection
    verify: VerifySection
    bench: BenchSection
    tune: TuneSection | None

    @property
    def name(self) -> str:
        """The stem that the outputs carry: ``<name>.onnx`` and so on."""
        return self.path.stem

    @property
    def folder(self) -> Path:
        """The folder that paths in the recipe are relative to."""
        return self.path.parent

    @property
    def weights_path(self) -> Path:
        """The weights file, absolute."""
        return Path(os.path.normpath(self.folder / self.model.weights))


_SECTIONS: dict[str, tuple[type[Any], bool]] = {
    "model": (ModelSection, True),
    "data": (DataSection, False),
    "train": (TrainSection, False),
    "export": (ExportSection, False),
    "verify": (VerifySection, False),
    "bench": (BenchSection, False),
    "tune": (TuneSection, False),
}
_OPTIONAL = {"data", "tune"}  # absent tables that mean "not wanted" rather than "all defaults"


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read and validate a recipe file.

    Raises:
        RecipeError: the file is missing, is no TOML, or a key is missing, unknown or has a wrong value.
    """
    file = Path(path)
    if not file.is_file():
        raise RecipeError(f"{file} does not exist; expected a recipe (a .toml file): check the path")
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file} is no valid TOML: {error}; expected a recipe: correct that place") from error
    return parse_recipe(data, file)


def parse_recipe(data: Mapping[str, Any], path: str | os.PathLike[str]) -> Recipe:
    """Validate recipe ``data`` that belongs to the file ``path``.

    Raises:
        RecipeError: a key is missing, unknown or has a wrong value.
    """
    for name in data:
        if name not in _SECTIONS:
            raise RecipeError(f"{path}: [{name}] is no table of a recipe; expected {_choices(name, _SECTIONS)}")
    sections: dict[str, Any] = {}
    for name, (kind, required) in _SECTIONS.items():
        if name not in data and name in _OPTIONAL:
            sections[name] = None
        elif name not in data and required:
            raise RecipeError(f"{path}: table [{name}] is missing; expected one with {', '.join(_required(kind))}")
        else:
            sections[name] = _section(kind, name, data.get(name, {}), str(path))
    return Recipe(path=Path(path).resolve(), **sections)


def train_settings(**keys: Any) -> TrainSection:
    """Build ``[train]`` settings in Python, validated as in a recipe.

    Raises:
        RecipeError: a key is unknown or has a wrong value.
    """
    section: TrainSection = _section(TrainSection, "train", keys, "train_settings")
    return section


def _section(kind: type[Any], name: str, data: Any, path: str) -> Any:
    """Build one section dataclass from its TOML table."""
    if not isinstance(data, Mapping):
        raise RecipeError(f"{path}: {name} is {data!r}; expected a table: write [{name}]")
    hints = typing.get_type_hints(kind)
    fields = {item.name: item for item in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in fields:
            raise RecipeError(f"{path}: key {name}.{key} is unknown; expected {_choices(key, fields)}")
        values[key] = _value(hints[key], fields[key], value, f"{path}: key {name}.{key}")
    for key in _required(kind):
        if key not in values:
            raise RecipeError(f"{path}: key {name}.{key} is missing; expected {fields[key].metadata['doc']}")
    either = getattr(kind, "ONE_OF", ())
    if either and sum(key in values for key in either) != 1:
        given = " and ".join(key for key in either if key in values) or "neither"
        raise RecipeError(f"{path}: table [{name}] has {given}; expected one of {', '.join(either)}")
    return kind(**values)


def _value(hint: Any, item: dataclasses.Field[Any], value: Any, where: str) -> Any:
    """Check one value against its field's type and bounds; return it in that type."""
    hint = _without_none(hint)
    wrong = RecipeError(f"{where} is {value!r}; expected {_expected(hint, item)}: {item.metadata['doc']}")
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise wrong
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise wrong
        return tuple(value)
    if get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise wrong
        return dict(value)
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:  # not isinstance: a bool is no int here
        raise wrong
    above, least, below = (item.metadata[bound] for bound in _UNBOUNDED)
    inside = (above is None or value > above) and (least is None or value >= least) and (below is None or value < below)
    if not inside:
        raise wrong
    return value


def _expected(hint: Any, item: dataclasses.Field[Any]) -> str:
    """Say in words what a field accepts."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return "a list of strings"
    if get_origin(hint) is dict:
        return "a table"
    word = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}[hint]
    if item.metadata["above"] is not None:
        word += f" above {item.metadata['above']}"
    if item.metadata["least"] is not None:
        word += f" of at least {item.metadata['least']}"
    if item.metadata["below"] is not None:
        word += f" below {item.metadata['below']}"
    return word


def _choices(given: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(given, known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"one of {', '.join(known)}{hint}"


def _required(kind: type[Any]) -> list[str]:
    return [
        item.name
        for item in dataclasses.fields(kind)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    ]


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (typing.Union, types.UnionType):
        return next(part for part in get_args(hint) if part is not type(None))
    return hint


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe (draft 2020-12), as published in docs/recipe.schema.json."""
    tables: dict[str, Any] = {}
    for name, (kind, _) in _SECTIONS.items():
        hints = typing.get_type_hints(kind)
        tables[name] = {
            "type": "object",
            "description": (kind.__doc__ or "").strip(),
            "additionalProperties": False,
            "required": _required(kind),
            "properties": {item.name: _schema(hints[item.name], item) for item in dataclasses.fields(kind)},
        }
        if either := getattr(kind, "ONE_OF", ()):
            tables[name]["oneOf"] = [{"required": [key]} for key in either]
    return {
        "$schema": SCHEMA_ID,
        "title": "normdeploy recipe",
        "description": "One model's recipe; paths are relative to the recipe's folder.",
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, (_, required) in _SECTIONS.items() if required],
        "properties": tables,
    }


def _schema(hint: Any, item: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return one key's schema."""
    hint = _without_none(hint)
    schema: dict[str, Any] = {"description": item.metadata["doc"]}
    if get_origin(hint) is Literal:
        schema["enum"] = list(get_args(hint))
    elif get_origin(hint) is tuple:
        schema |= {"type": "array", "items": {"type": "string"}}
    elif get_origin(hint) is dict:
        schema["type"] = "object"
    else:
        schema["type"] = {str: "string", int: "integer", float: "number", bool: "boolean"}[hint]
    if item.metadata["above"] is not None:
        schema["exclusiveMinimum"] = item.metadata["above"]
    if item.metadata["least"] is not None:
        schema["minimum"] = item.metadata["least"]
    if item.metadata["below"] is not None:
        schema["exclusiveMaximum"] = item.metadata["below"]
    if item.default not in (dataclasses.MISSING, None, ()):
        schema["default"] = item.default
    return schema
