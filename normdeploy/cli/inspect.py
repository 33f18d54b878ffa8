"""``normdeploy inspect``: what is wrong or risky in a model's normalizations."""

from __future__ import annotations

from typing import Annotated

import typer

from normdeploy.cli import options
from normdeploy.cli.progress import working


def inspect(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE|MODEL.onnx", help="A model or an ONNX file."),
    ],
    weights: options.Weights = None,
    inputs: options.Inputs = None,
    example_values: options.ExampleValues = None,
    arguments: options.Arguments = None,
    unsafe_pickle: options.UnsafePickle = False,
    as_json: options.Json = False,
) -> None:
    """Say what is wrong or risky in a model's normalizations, before export; exit 4 if something is an error."""
    from normdeploy.errors import UsageError
    from normdeploy.parsing import sources
    from normdeploy.report import console

    with working("inspect", f"reading {source}") as tell:
        from normdeploy import api

        if sources.is_source(source):
            model = options.load_model(source, arguments, weights, unsafe_pickle=unsafe_pickle)
            asked = bool(inputs) or example_values is not None
            example = options.example_for(model, inputs, example_values) if asked else None
            # forward arguments by name travel as one trailing dict, as torch.onnx.export takes them
            args = None if example is None else (*example.args, *([example.kwargs] if example.kwargs else []))
            tell("looking at the normalizations" + (" while the model runs" if args else ""))
            findings = api.inspect(model, args)
        else:
            if example_values is not None:
                raise UsageError(
                    f"--example is given and {source} is a file, which is not run; expected a model's SOURCE"
                )
            tell("looking at the normalizations")
            findings = api.inspect(source)
    rows = [finding.to_dict() for finding in findings]
    if as_json:
        options.print_json({"findings": rows})
    else:
        console.print_findings(rows)
        if not rows:
            typer.echo("nothing wrong or risky found in the normalizations")
    if any(row["severity"] == "error" for row in rows):
        raise typer.Exit(4)
