"""Train what a recipe describes."""

from __future__ import annotations

from normdeploy.errors import OutputExistsError, RecipeError, SourceError
from normdeploy.files import require_writable
from normdeploy.nn.weight_files import read_metadata, require_writable_suffix
from normdeploy.parsing.recipe import DataSection, Recipe
from normdeploy.parsing.sources import build, call_source, load_source
from normdeploy.train import provenance
from normdeploy.train.data import Splits
from normdeploy.train.data_files import FileData, read_files
from normdeploy.train.loop import TrainResult, fit


def recipe_data(recipe: Recipe) -> Splits:
    """Read the recipe's files, or call its data function.

    Raises:
        RecipeError: the recipe has no ``[data]`` table, or a size that is none.
        InputError: the files are missing, damaged or do not fit together.
        SourceError: the function cannot be loaded or called, or does not return a :class:`Splits`.
    """
    table = recipe.data
    if table is None:
        raise RecipeError(
            f"{recipe.path}: table [data] is missing; expected one with source or files: name what to train on"
        )
    if table.files is not None:
        return read_files(file_data(recipe, table, table.files))
    function, expected = load_source(str(table.source), folder=recipe.folder), "normdeploy.train.Splits"
    if not callable(function):
        raise SourceError(f"{table.source} is a {type(function).__name__}; expected a function returning {expected}")
    place = f"under [data] in {recipe.path} (arguments = {{...}})"
    splits = call_source(function, table.arguments, str(table.source), expected=expected, place=place)
    if not isinstance(splits, Splits):
        raise SourceError(f"{table.source} returned a {type(splits).__name__}; expected {expected}: return one")
    return splits


def file_data(recipe: Recipe, table: DataSection, files: str) -> FileData:
    """Return how the files of a recipe's [data] table are read."""
    size = None
    if table.size is not None:
        parts = table.size.split("x")
        if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
            raise RecipeError(f"{recipe.path}: key data.size is {table.size!r}; expected HxW, as 64x64")
        size = int(parts[0]), int(parts[1])
    return FileData(
        recipe.folder / files,
        test=None if table.test is None else recipe.folder / table.test,
        target=table.target,
        columns=table.columns,
        size=size,
        grey=table.grey,
        standardize=table.standardize,
        workers=table.workers,
        seed=table.seed,
    )


def train(
    recipe: Recipe,
    *,
    device: str = "auto",
    again: bool = False,
    overwrite: bool = False,
    show: bool = True,
    history: bool = False,
) -> TrainResult:
    """Train the recipe's model and write its weights, with what decided them in the header.

    An interrupted run goes on from its last whole epoch (``<weights>.checkpoint`` beside the weights).

    Args:
        recipe: see `normdeploy.parsing.recipe.load_recipe`.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:NUMBER"``.
        again: start anew where the checkpoint belongs to other code, data or settings.
        overwrite: allow replacing weights that no recipe's training wrote.
        show: draw a progress bar.
        history: write ``<weights>.history.json`` and ``.png`` beside the weights.

    Raises:
        RecipeError: the recipe names no data.
        SourceError: its model or data cannot be built.
        UsageError: the device is unusable, the checkpoint belongs to another training, or the weights' name has an
            unknown suffix.
        OutputExistsError: there are weights that no recipe's training wrote, and ``overwrite`` is false.
        StorageError: the weights' folder cannot be written.
        ModelError: the training diverges.
    """
    _require_place(recipe, overwrite=overwrite)
    splits = recipe_data(recipe)
    parts = provenance.of_recipe(recipe, splits)  # before the hours of training, in which files may be edited
    weights = recipe.weights_path
    return fit(
        lambda: build(recipe.model.source, recipe.model.arguments, folder=recipe.folder),
        splits,
        recipe.train,
        device=device,
        weights=weights,
        history=weights.with_suffix(".history.json") if history else None,
        checkpoint=weights.with_suffix(".checkpoint"),
        again=again,
        parts=parts,
        metadata=provenance.to_header(parts),
        show=show,
    )


def _require_place(recipe: Recipe, *, overwrite: bool) -> None:
    """Require, before hours of training, that the weights may be written where the recipe says."""
    path = recipe.weights_path
    require_writable_suffix(path)
    require_writable(path, overwrite=True)  # what lies there is asked below
    if overwrite or not path.is_file():
        return
    if provenance.from_header(read_metadata(path, unsafe_pickle=recipe.model.unsafe_pickle)) is None:
        raise OutputExistsError(
            f"{path} exists and no recipe's training wrote it; expected a free path, or weights of an earlier "
            "training: name another file as weights under [model], or pass --overwrite"
        )
