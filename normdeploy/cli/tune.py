"""``normdeploy tune``: the fastest way to run a model on this machine within a verified budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normdeploy.cli import options


def tune(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX file.")],
    budget: Annotated[
        str, typer.Option("--budget", metavar="BUDGET", help="exact, or a loss such as top1=0.5% or rel=1e-2.")
    ] = "exact",
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Inputs of yours (.npy or .npz); needed for a loss."),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Samples per timed call.")] = 8,
    sizes: options.Sizes = None,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=0.1, help="Time for all timing.")] = 40.0,
    as_json: options.Json = False,
) -> None:
    """Find the fastest plan within the budget, save it beside the model, and say what was tried."""
    from rich.console import Console

    from normdeploy import runtime
    from normdeploy.cli.run import read_arrays

    rows = None if data is None else read_arrays(data)
    with Console(stderr=True).status("tuning") as status:
        plan = runtime.tune(
            model,
            data=rows,
            budget=budget,
            batch_size=batch_size,
            sizes=options.read_sizes(sizes),
            seconds=seconds,
            progress=status.update,
        )
    typer.echo(plan.to_json() if as_json else f"{plan.summary()}\nwrote {plan.path}")
