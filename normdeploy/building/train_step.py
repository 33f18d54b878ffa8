"""The step that trains, where the weights are missing or stale."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from normdeploy.building.recipe_model import weights_metadata
from normdeploy.errors import RecipeError
from normdeploy.parsing.recipe import Recipe
from normdeploy.report import console
from normdeploy.train import from_recipe, provenance


def with_weights_in(recipe: Recipe, out: Path | None, *, again: bool) -> Recipe:
    """Return the recipe with its weights in ``out``, where they are there or will be made: the recipe's own stay.

    The recipe's own are used as they are while they are up to date and no training was asked for.
    """
    if out is None or recipe.data is None:
        return recipe
    own = out.absolute() / Path(recipe.model.weights).name
    if not own.is_file() and not again and recipe.weights_path.is_file():
        recorded = provenance.from_header(weights_metadata(recipe))
        if recorded is None or recorded == provenance.of_recipe(recipe, from_recipe.recipe_data(recipe)):
            return recipe
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, weights=str(own)))


def train_where_needed(recipe: Recipe, *, device: str, again: bool) -> None:
    """Train where the weights are missing or stale.

    Raises:
        RecipeError: they are missing and the recipe has no data to train on.
    """
    path, here = recipe.weights_path, Path.cwd()
    shown = Path(recipe.model.weights)  # as the recipe says, or where --out lies, seen from here
    shown = shown.relative_to(here) if shown.is_relative_to(here) else shown
    if path.is_file() and not again:
        recorded = provenance.from_header(weights_metadata(recipe))
        if recorded is None:  # somebody's own: hours of theirs, perhaps, and never replaced unless asked
            text = f"{shown} was not trained by a recipe: used as it is"
            if recipe.data is not None:
                text += " (--train trains anew and replaces it)"
            console.print_step("train", text, fresh=True)
            return
        wanted = recorded if recipe.data is None else provenance.of_recipe(recipe, from_recipe.recipe_data(recipe))
        if recorded == wanted:
            console.print_step("train", f"{shown} is up to date", fresh=True)
            return
        why = f"is stale: {provenance.summarize(provenance.changes(recorded, wanted))}"
        console.print_step("train", f"{shown} {why}: training again")
    elif recipe.data is None:
        raise RecipeError(
            f"{recipe.path}: {recipe.model.weights} does not exist and there is no [data] to train on; "
            "expected either: put the weights there or add [data]"
        )
    else:
        console.print_step("train", f"making {shown}")
    console.print_training(from_recipe.train(recipe, device=device, again=again, overwrite=again).metadata())
