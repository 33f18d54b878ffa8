"""``normdeploy package``: a serving package around a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normdeploy.cli import options
from normdeploy.cli.progress import working


def package(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX file.")],
    triton: Annotated[Path, typer.Option("--triton", metavar="DIR", help="The Triton model repository to write into.")],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The model's name there.")] = None,
    max_batch_size: Annotated[int, typer.Option("--max-batch", metavar="N", min=1, help="Largest batch served.")] = 64,
    sizes: options.Sizes = None,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan made by tune.")] = None,
    instances: Annotated[int, typer.Option("--instances", metavar="N", min=1, help="How many run at once.")] = 1,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="N,N,...", help="On which GPUs, for a model on CUDA; all by default."),
    ] = None,
    queue_delay: Annotated[
        int,
        typer.Option("--queue-delay", metavar="US", min=0, help="Microseconds that a request may wait for others."),
    ] = 0,
    preferred: Annotated[
        str | None, typer.Option("--preferred", metavar="N,N,...", help="Batch sizes to wait for.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", metavar="FILE", help="Class names, one per line, for the output.")
    ] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a Triton model repository: config.pbtxt, 1/model.onnx and a warm-up sample."""
    from normdeploy import runtime
    from normdeploy.report import console

    serving = runtime.Serving(
        instances,
        options.read_numbers("--gpus", gpus, least=0),
        queue_delay,
        options.read_numbers("--preferred", preferred),
        labels,
    )
    with working("package", f"packing {model}"):
        written = runtime.package_triton(
            model,
            triton,
            name=name,
            max_batch_size=max_batch_size,
            plan=plan,
            sizes=options.read_sizes(sizes),
            serving=serving,
            overwrite=overwrite,
        )
    console.print_written([written])
