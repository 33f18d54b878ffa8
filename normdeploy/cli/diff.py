"""``normdeploy diff``: how two ONNX files differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normdeploy.cli import options
from normdeploy.cli.amount_options import at_least
from normdeploy.cli.progress import working


def diff(
    first: Annotated[Path, typer.Argument(metavar="A.onnx", help="The ONNX file to compare with.")],
    second: Annotated[Path, typer.Argument(metavar="B.onnx", help="The ONNX file that differs, perhaps.")],
    data: options.Data = None,
    sizes: options.Sizes = None,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", callback=at_least(1), help="Samples of made-up inputs.")
    ] = 4,
    no_run: Annotated[bool, typer.Option("--no-run", help="Compare operators and weights alone.")] = False,
    markdown: options.Markdown = False,
    as_json: options.Json = False,
) -> None:
    """Say how two ONNX files differ: operators, weights, and outputs on the same inputs.

    Weights are counted in units of the last place. No verdict: normdeploy verify A.onnx B.onnx gives one.
    """
    options.require_one_form(markdown, as_json)

    from normdeploy.report import console
    from normdeploy.report import markdown as md
    from normdeploy.report.difference_tables import print_difference

    with working("diff", f"comparing {first} and {second}"):
        from normdeploy import compare
        from normdeploy.runtime.samples import read_arrays

        found = compare.diff(
            first,
            second,
            inputs=None if data is None else read_arrays(data),
            sizes=options.read_sizes(sizes),
            batch=batch,
            run=not no_run,
        )
    if as_json:
        options.print_json(found.to_dict())
    elif markdown:
        console.print_plain(md.difference(found.to_dict()))
    else:
        print_difference(found.to_dict())
