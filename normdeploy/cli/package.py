"""``normdeploy package``: a serving package around a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normdeploy.cli import options


def package(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX file.")],
    triton: Annotated[Path, typer.Option("--triton", metavar="DIR", help="The Triton model repository to write into.")],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The model's name there.")] = None,
    max_batch_size: Annotated[int, typer.Option("--max-batch", metavar="N", min=1, help="Largest batch served.")] = 64,
    sizes: options.Sizes = None,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan made by tune.")] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a Triton model repository: config.pbtxt, 1/model.onnx and a warm-up sample."""
    from normdeploy import runtime
    from normdeploy.report import console

    written = runtime.package_triton(
        model,
        triton,
        name=name,
        max_batch_size=max_batch_size,
        plan=plan,
        sizes=options.read_sizes(sizes),
        overwrite=overwrite,
    )
    console.print_written([written])
