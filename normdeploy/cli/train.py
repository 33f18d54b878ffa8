"""``normdeploy train``: train what a recipe describes."""

from __future__ import annotations

import dataclasses
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from normdeploy.cli.progress import working


def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a .toml file.")],
    device: Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where to train.")] = "auto",
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Replace running averages by exact population statistics at the end.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Train from the start where an interrupted training had other code, data or settings."
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace weights that no recipe's training wrote.")
    ] = False,
    history: Annotated[bool, typer.Option("--history", help="Write loss and accuracy per epoch, and a plot.")] = False,
) -> None:
    """Train the recipe's model and write its weights; under torchrun, in many processes.

    An interrupted training goes on from its last whole epoch; with other code, data or settings that is refused.
    """
    from normdeploy.parsing.recipe import load_recipe

    plan = load_recipe(recipe)
    first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes the first one speaks
    if recalibrate:
        plan = dataclasses.replace(plan, train=dataclasses.replace(plan.train, recalibrate=True))

    from normdeploy.report import console

    with working("train", "loading torch") if first else nullcontext():
        from normdeploy.train import from_recipe
    result = from_recipe.train(plan, device=device, again=again, overwrite=overwrite, history=history)
    if not first:
        return
    console.print_training(result.metadata())
    console.print_written([plan.weights_path])
