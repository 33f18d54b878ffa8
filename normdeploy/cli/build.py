"""``normdeploy build``: a recipe, from training to the proven file and its report."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from normdeploy.cli import options
from normdeploy.cli.progress import working


def build(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a .toml file.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Where outputs and new weights go.")
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where to train.")] = "auto",
    train: Annotated[bool, typer.Option("--train", help="Train again even if the weights are up to date.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Do everything but training again.")] = False,
    markdown: options.Markdown = False,
) -> None:
    """Train if needed, inspect, export, fold, verify, tune if asked, measure, and report.

    Writes NAME.onnx, NAME.report.json and NAME.report.html; what is up to date is left alone.
    """
    from normdeploy.parsing.recipe import load_recipe
    from normdeploy.report import console
    from normdeploy.report import markdown as md

    settings = load_recipe(recipe)
    with working("build", "loading torch"):
        from normdeploy.building.recipe_build import build as run_build
    with console.on_stderr() if markdown else nullcontext():
        report = run_build(settings, out=out, device=device, train=train, force=force, stage=working)
    if markdown:
        console.print_plain(md.build(report))
    status = report["status"]
    if options.EXIT_CODES[status]:
        raise typer.Exit(options.EXIT_CODES[status])
