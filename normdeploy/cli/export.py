"""``normdeploy export``: a PyTorch model to a verified ONNX file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from normdeploy.cli import options
from normdeploy.cli.progress import verifying, working


def export(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="path/to/file.py:Name or package.module:Name")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The ONNX file to write.")],
    weights: options.Weights = None,
    weights_key: options.WeightsKey = None,
    allow_missing: options.AllowMissing = None,
    inputs: options.Inputs = None,
    example_values: options.ExampleValues = None,
    arguments: options.Arguments = None,
    output_names: Annotated[
        list[str] | None, typer.Option("--output-name", metavar="NAME", help="Name of an output. Repeat, in order.")
    ] = None,
    opset: Annotated[int | None, typer.Option("--opset", metavar="N", help="ONNX operator set.")] = None,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="Write the graph as traced.")] = False,
    approximate: Annotated[
        bool,
        typer.Option("--approximate", help="Allow rewrites equal up to a bound, which is verified."),
    ] = False,
    integer: options.Integer = False,
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype", metavar="float32|float16", help="What the file computes in; inputs and outputs stay the model's."
        ),
    ] = "float32",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Write without proof.")] = False,
    quick: options.Quick = False,
    thorough: options.Thorough = False,
    html: options.Html = None,
    unsafe_pickle: options.UnsafePickle = False,
    overwrite: options.Overwrite = False,
    markdown: options.Markdown = False,
    as_json: options.Json = False,
) -> None:
    """Write a trained model as ONNX with its normalizations folded, and prove that nothing changed."""
    from normdeploy.errors import UsageError
    from normdeploy.files import require_onnx_name, require_writable, write_text

    level = options.verify_level(quick, thorough)
    options.require_one_form(markdown, as_json)
    if no_verify and html is not None:
        raise UsageError("--html is given with --no-verify; expected one of them: the page shows what was verified")
    require_onnx_name(output)
    require_writable(output, overwrite=overwrite)
    if html is not None:
        require_writable(html, overwrite=overwrite)

    from normdeploy.errors import VerificationError
    from normdeploy.report import console
    from normdeploy.report import markdown as md
    from normdeploy.report.ledger_table import print_ledger

    try:
        with working("export", f"building {source}") as tell:
            options.require_opset(opset)
            model = options.load_model(
                source,
                arguments,
                weights,
                unsafe_pickle=unsafe_pickle,
                key=weights_key,
                allow_missing=allow_missing or (),
            )
            example = options.example_for(model, inputs, example_values)

            from normdeploy import api

            result = api.export(
                model,
                example.args,
                output,
                kwargs=example.kwargs,
                input_names=None if example.kwargs else example.input_names,
                output_names=output_names,
                dynamic_shapes=example.dynamic_shapes,
                opset_version=opset,
                fold=not no_fold,
                approximate=approximate,
                integer=integer,
                dtype=cast(Literal["float32", "float16"], dtype),  # checked there
                verify=False if no_verify else level,
                progress=verifying(tell),
                overwrite=overwrite,
            )
    except VerificationError as error:
        if html is not None:
            write_text(html, error.verdict.to_html(), overwrite=overwrite)
        if as_json:
            options.print_json({"path": None, "verdict": error.verdict.to_dict()})
        elif markdown:
            console.print_plain(md.verdict(error.verdict.to_dict()))
        else:
            console.print_verdict(error.verdict)
            console.print_written([html] if html else [])
        raise
    if html is not None and result.verdict is not None:
        write_text(html, result.verdict.to_html(), overwrite=overwrite)
    if as_json:
        options.print_json(
            {
                "path": str(result.path),
                "ledger": json.loads(result.ledger.to_json()),
                "verdict": result.verdict.to_dict() if result.verdict else None,
                "notes": result.notes,
                "seconds": result.seconds,
            }
        )
    elif markdown:
        judged = result.verdict.to_dict() if result.verdict else None
        console.print_plain(md.export(str(result.path), [row.to_dict() for row in result.ledger], judged))
    else:
        console.print_notes(result.notes)
        print_ledger([row.to_dict() for row in result.ledger])
        console.print_verdict(result.verdict)
        console.print_written([result.path] + ([html] if html else []))
    options.exit_with(result.verdict)
