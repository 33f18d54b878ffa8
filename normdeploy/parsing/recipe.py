"""Recipes: one TOML file per model, plain data, validated by key.

The dataclasses below are the one definition (`normdeploy.parsing.keyed_tables`): the parser, its messages and the
published JSON Schema (docs/recipe.schema.json) are derived from their fields. Adding a key is adding a field.
Paths are relative to the recipe's folder.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from normdeploy.errors import RecipeError
from normdeploy.files import lies_at, not_a_file
from normdeploy.parsing.keyed_tables import choices, key, read_table, required, table_schema

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class ModelSection:
    """What is trained and deployed."""

    source: str = key(doc="SOURCE of the model: path/to/file.py:Name or package.module:Name, relative to the recipe")
    weights: str = key(
        doc="file with the trained weights, .safetensors or .pt; written by training where there is none, relative to "
        "the recipe"
    )
    arguments: dict[str, Any] = key(  # noqa: RUF009 - it declares a field
        dict, doc="keyword arguments for the model's class or function"
    )
    weights_key: str | None = key(
        None, doc="which of a checkpoint's state dicts, as model_ema, or what names begin with"
    )
    allow_missing: tuple[str, ...] = key(
        (), doc="modules whose weights may be missing or of another shape, such as a new head"
    )
    unsafe_pickle: bool = key(
        False, doc="load a .pt that holds Python objects; it can run any code: only for files you trust"
    )


@dataclass(frozen=True)
class DataSection:
    """What it is trained and judged on: a function (source), or files."""

    ONE_OF: ClassVar[tuple[str, ...]] = ("source", "files")

    source: str | None = key(None, doc="SOURCE of a function returning normdeploy.train.data.Splits")
    arguments: dict[str, Any] = key(dict, doc="keyword arguments for that function")  # noqa: RUF009 - it declares a field
    files: str | None = key(
        None,
        doc="a folder of images by class, a .csv, .parquet or .npz, or an IDX file of images, relative to the recipe",
    )
    test: str | None = key(None, doc="the same for the test split; absent: a fifth of files")
    target: str | None = key(
        None, doc="column or array of the classes; absent: the last column, or the array called y, target or labels"
    )
    columns: tuple[str, ...] = key((), doc="input columns; absent: all others, in their order")
    size: str | None = key(None, doc="HxW to which images are resized, as 64x64; absent: the first one's")
    grey: bool = key(False, doc="read images as grey")
    standardize: bool = key(True, doc="subtract the training split's mean and divide by its deviation")
    workers: int = key(0, doc="processes that decode images", least=0)
    seed: int = key(0, doc="of the shuffle that splits", least=0)


@dataclass(frozen=True)
class TrainSection:
    """How it is trained."""

    epochs: int = key(30, doc="passes over the training split at most", least=1)
    batch_size: int = key(64, doc="samples per step, over all processes together", least=2)
    lr: float = key(3e-3, doc="highest learning rate of the cosine schedule", above=0)
    weight_decay: float = key(1e-2, doc="of AdamW, on tensors of rank 2 and more", least=0)
    warmup: float = key(0.1, doc="share of the steps over which the learning rate rises", least=0, below=1)
    clip: float = key(1.0, doc="largest norm of the gradient; 0 leaves it as it is", least=0)
    label_smoothing: float = key(0.0, doc="of the cross entropy", least=0, below=1)
    patience: int = key(0, doc="epochs without a better validation loss before stopping; 0 never stops", least=0)
    precision: Literal["auto", "float32", "bfloat16", "float16"] = key("auto", doc="auto is float32 on a CPU")
    recalibrate: bool = key(False, doc="replace running averages by population statistics after training")
    seed: int = key(0, doc="of initialization, shuffling, augmentation and dropout", least=0)


@dataclass(frozen=True)
class ExportSection:
    """How it becomes ONNX."""

    inputs: tuple[str, ...] = key(
        (),
        doc="NAME=DTYPE:SHAPE per input, as x=float32:batchx1x8x8; absent: taken from the test split, batch dynamic; "
        "without data guessed from the first layers",
    )
    outputs: tuple[str, ...] = key((), doc="names of the outputs; absent: chosen by the exporter")
    opset: int | None = key(None, doc="ONNX opset; absent: the exporter's newest", least=18)
    fold: bool = key(True, doc="fold and fuse normalizations")
    approximate: bool = key(False, doc="allow rewrites that are equal only up to a bound the verifier then checks")
    integer: bool = key(
        False, doc="write quantized layers on integers, each quantizer as an equal function of their sums"
    )
    preprocess: bool = key(
        False, doc="write the data's standardization into the file, which then takes inputs as they come"
    )


@dataclass(frozen=True)
class VerifySection:
    """How hard the result is looked at."""

    level: Literal["quick", "default", "thorough"] = key("default", doc="how much the verifier tries")
    seed: int = key(0, doc="seed of the verifier's inputs", least=0)


@dataclass(frozen=True)
class TuneSection:
    """What the tuner may give up for speed."""

    budget: str = key(doc="exact, or a loss as top1=0.5% or rel=1e-2")


@dataclass(frozen=True)
class QuantizeSection:
    """Training with fake quantization, from the trained weights on, to an int8 file beside the float one."""

    epochs: int = key(3, doc="passes over the training split, on top of those of [train]", least=1)
    lr: float = key(3e-4, doc="highest learning rate of their cosine schedule", above=0)
    calibration: int = key(
        512,
        doc="validation samples that give post-training quantization, with which it is compared, its ranges",
        least=1,
    )


@dataclass(frozen=True)
class BenchSection:
    """How latency is measured for the report."""

    batch_size: int = key(64, doc="samples per call", least=1)
    repeats: int = key(40, doc="interleaved rounds", least=3)
    threads: int = key(1, doc="intra-operator threads", least=1)


@dataclass(frozen=True)
class Recipe:
    """One model's recipe.

    Args:
        path: the recipe file, absolute.
        model, data, train, export, verify, bench: its tables.
        quantize, tune: None where they were not asked for.

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
    quantize: QuantizeSection | None
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
    "quantize": (QuantizeSection, False),
    "tune": (TuneSection, False),
}
_OPTIONAL = {"data", "quantize", "tune"}  # absent tables that mean "not wanted" rather than "all defaults"


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read and validate a recipe file.

    Raises:
        RecipeError: the file is missing, is no TOML, or a key is missing, unknown or has a wrong value.
    """
    file = Path(path)
    if not lies_at(file):
        raise RecipeError(f"{file} {not_a_file(file)}; expected a recipe (a .toml file): check the path")
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # beside TOML's own: other bytes than UTF-8, endless numbers, depth
        raise RecipeError(f"{file} is no valid TOML: {error}; expected a recipe: correct that place") from error
    return parse_recipe(data, file)


def parse_recipe(data: Mapping[str, Any], path: str | os.PathLike[str]) -> Recipe:
    """Validate recipe ``data`` that belongs to the file ``path``.

    Raises:
        RecipeError: a key is missing, unknown or has a wrong value.
    """
    for name in data:
        if name not in _SECTIONS:
            raise RecipeError(f"{path}: [{name}] is no table of a recipe; expected {choices(name, _SECTIONS)}")
    sections: dict[str, Any] = {}
    for name, (kind, needed) in _SECTIONS.items():
        if name not in data and name in _OPTIONAL:
            sections[name] = None
        elif name not in data and needed:
            raise RecipeError(f"{path}: table [{name}] is missing; expected one with {', '.join(required(kind))}")
        else:
            sections[name] = read_table(kind, name, data.get(name, {}), str(path))
    if sections["quantize"] is not None and sections["data"] is None:
        raise RecipeError(f"{path}: table [quantize] has no [data] to train on; expected both: add [data]")
    return Recipe(path=Path(path).resolve(), **sections)


def train_settings(**keys: Any) -> TrainSection:
    """Build ``[train]`` settings in Python, validated as in a recipe.

    Raises:
        RecipeError: a key is unknown or has a wrong value.

    >>> train_settings(epochs=3, lr=1e-2).epochs
    3
    """
    section: TrainSection = read_table(TrainSection, "train", keys, "train_settings")
    return section


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe (draft 2020-12), as published in docs/recipe.schema.json."""
    return {
        "$schema": SCHEMA_ID,
        "title": "normdeploy recipe",
        "description": "One model's recipe; paths are relative to the recipe's folder.",
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, (_, needed) in _SECTIONS.items() if needed],
        "dependentRequired": {"quantize": ["data"]},
        "properties": {name: table_schema(kind) for name, (kind, _) in _SECTIONS.items()},
    }
