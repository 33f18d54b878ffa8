"""``normdeploy init``: a recipe for one's own network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normdeploy.cli import options
from normdeploy.cli.progress import working


def init(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="path/to/file.py:Name or package.module:Name")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="RECIPE", help="The recipe to write; by default the model's name."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", metavar="FILE", help="Trained weights, there already or written by training."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="FILES|SOURCE", help="Files (docs/training.md), or a function, as net.py:data."),
    ] = None,
    inputs: options.Inputs = None,
    arguments: options.Arguments = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a recipe for a network of one's own: what normdeploy build then trains, exports, proves and measures."""
    from normdeploy.building import first_recipe
    from normdeploy.files import write_text
    from normdeploy.parsing.inputs import parse_arguments
    from normdeploy.parsing.sources import build, split_source
    from normdeploy.report import console

    _, name = split_source(source)
    target = output or Path(f"{name.lower()}.toml")
    given = parse_arguments(arguments or [])
    with working("init", f"building {source}"):
        model = build(source, given)
        specs: list[str] = []
        if inputs or data is None:
            specs = inputs or [str(spec) for spec in options.describe_inputs(model, inputs)]
    text = first_recipe.recipe_text(
        target,
        source=source,
        weights=weights,
        arguments=given,
        data=data,
        inputs=specs,
    )
    write_text(target, text, overwrite=overwrite)
    console.print_written([target])
    typer.echo(first_recipe.next_steps(target))
