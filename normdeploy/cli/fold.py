"""``normdeploy fold``: ONNX to ONNX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from normdeploy.cli import options
from normdeploy.cli.progress import verifying, working


def fold(
    source: Annotated[Path, typer.Argument(metavar="IN.onnx", help="The ONNX file to fold; it is left as it is.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.onnx", help="The ONNX file to write.")],
    opset: Annotated[
        int | None, typer.Option("--opset", metavar="N", min=18, help="Do not exceed this ONNX operator set.")
    ] = None,
    integer: options.Integer = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Write without proof.")] = False,
    quick: options.Quick = False,
    thorough: options.Thorough = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Fold the normalizations of an ONNX graph from anywhere, and prove the result equal to it."""
    level = options.verify_level(quick, thorough)

    from normdeploy.errors import VerificationError
    from normdeploy.report import console
    from normdeploy.report.ledger_table import print_ledger

    try:
        with working("fold", f"reading {source}") as tell:
            from normdeploy import api

            verify = False if no_verify else level
            result = api.fold(
                source,
                output,
                opset_version=opset,
                integer=integer,
                verify=verify,
                overwrite=overwrite,
                progress=verifying(tell),
            )
    except VerificationError as error:
        if as_json:
            options.print_json({"path": None, "verdict": error.verdict.to_dict()})
        else:
            console.print_verdict(error.verdict)
        raise
    if as_json:
        verdict = result.verdict.to_dict() if result.verdict else None
        options.print_json(
            {"path": str(result.path), "ledger": json.loads(result.ledger.to_json()), "verdict": verdict}
        )
    else:
        print_ledger([row.to_dict() for row in result.ledger])
        console.print_verdict(result.verdict)
        console.print_written([result.path])
    options.exit_with(result.verdict)
