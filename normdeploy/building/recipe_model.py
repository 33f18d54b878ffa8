"""The model that a recipe describes, with its weights, and example arguments for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from normdeploy import writing
from normdeploy.errors import RecipeError, WeightsError
from normdeploy.exporting.module.guess import guess_inputs
from normdeploy.exporting.module.load_weights import load_weights
from normdeploy.exporting.trace import Traced, trace
from normdeploy.nn.weight_files import read_metadata, read_weights
from normdeploy.parsing.examples import Example, make_example
from normdeploy.parsing.inputs import parse_inputs
from normdeploy.parsing.recipe import Recipe
from normdeploy.parsing.sources import build as build_model
from normdeploy.proven import ExportResult
from normdeploy.train import from_recipe
from normdeploy.train.preprocess import Preprocessed, as_raw


def load_trained(recipe: Recipe, *, notes: list[str] | None = None) -> nn.Module:
    """Build the recipe's model and load its trained weights, in evaluation mode, as it is deployed.

    With ``preprocess = true`` the standardization of its data stands in front of it.

    Args:
        recipe: see `normdeploy.parsing.recipe.load_recipe`.
        notes: appended to where something about the weights was understood, chosen or left.

    Raises:
        SourceError: the model cannot be built.
        WeightsError: the weights are missing or do not fit.
    """
    table, told = recipe.model, [] if notes is None else notes
    model: nn.Module = build_model(table.source, table.arguments, folder=recipe.folder)
    try:
        given = read_weights(recipe.weights_path, unsafe_pickle=table.unsafe_pickle, key=table.weights_key, notes=told)
        absent = load_weights(model, given, allow_missing=table.allow_missing, notes=told, origin=table.weights)
    except WeightsError as error:
        raise WeightsError(f"{table.weights}: {error}") from error
    if absent:
        told.append(f"not in {table.weights}, used as the constructor leaves them: {', '.join(absent[:6])}")
    if not recipe.export.preprocess:
        return model.eval()
    by = from_recipe.recipe_data(recipe).standardization if recipe.data is not None else None
    if by is None:
        raise RecipeError(
            f"{recipe.path}: key export.preprocess is true and the data is not standardized; expected files with "
            "standardize = true under [data], or Splits with a standardization: leave preprocess out"
        )
    return Preprocessed(model, by).eval()


def recipe_example(recipe: Recipe, model: nn.Module, *, notes: list[str] | None = None) -> Example:
    """Make example arguments from ``[export] inputs``, or from the test split with a dynamic batch.

    Without either they are guessed from the model (`normdeploy.exporting.module.guess`).

    Args:
        recipe: see `normdeploy.parsing.recipe.load_recipe`.
        model: takes them.
        notes: appended to where they were guessed.

    Raises:
        InputError: there are neither, and nothing that was tried runs.
    """
    if recipe.export.inputs:
        return make_example(parse_inputs(recipe.export.inputs), model)
    if recipe.data is None:
        guess = guess_inputs(model)
        if notes is not None:
            listed = ", ".join(f'"{spec}"' for spec in guess.inputs)
            notes.append(f"inputs are guessed ({guess.why}); write others under [export]: inputs = [{listed}]")
        return make_example(guess.inputs, model)
    data = from_recipe.recipe_data(recipe)
    inputs = (as_raw(data) if recipe.export.preprocess else data).test.head(2).inputs
    return Example((inputs,), {}, ["input"], ({0: torch.export.Dim("batch")},))


def weights_metadata(recipe: Recipe) -> dict[str, str]:
    """Return the header of the recipe's weights."""
    return read_metadata(recipe.weights_path, unsafe_pickle=recipe.model.unsafe_pickle)


def trace_as_told(recipe: Recipe, model: nn.Module, example: Example) -> Traced:
    """Trace a network as its recipe says.

    Args:
        recipe: its table [export]. model: what it describes, or a form of it. example: arguments of the model.
    """
    return trace(
        model,
        example.args,
        kwargs=example.kwargs,
        input_names=None if example.kwargs else example.input_names,
        output_names=list(recipe.export.outputs) or None,
        dynamic_shapes=example.dynamic_shapes,
        opset_version=recipe.export.opset,
    )


def export_as_told(
    recipe: Recipe, model: nn.Module, traced: Traced, example: Example, path: Path, tell: Callable[[str], None]
) -> ExportResult:
    """Export a network as its recipe says, and verify it.

    Args:
        recipe: its tables [export] and [verify]. model: what it describes, or a form of it.
        traced: the model's trace (:func:`trace_as_told`). example: arguments of the model.
        path: the file; an existing one is replaced. tell: says how far it is.

    Raises:
        VerificationError: the verdict is "fail" or "error".
    """
    table = recipe.export
    return writing.export_traced(
        traced,
        model,
        example.args,
        path,
        kwargs=example.kwargs,
        dynamic_shapes=example.dynamic_shapes,
        opset_version=table.opset,
        fold=table.fold,
        approximate=table.approximate,
        integer=table.integer,
        verify=recipe.verify.level,
        seed=recipe.verify.seed,
        overwrite=True,
        progress=lambda name, share: tell(f"{name} ({share:.0%})" if share else name),
    )
