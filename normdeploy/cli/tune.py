"""``normdeploy tune``: the fastest way to run a model on this machine within a verified budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normdeploy.cli import options
from normdeploy.cli.amount_options import at_least, duration
from normdeploy.cli.progress import working


def tune(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX file.")],
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="BUDGET", help="exact (default), or a loss such as top1=0.5% or rel=1e-2."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Inputs of yours (.npy or .npz); needed for a loss."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Repeat what MODEL.plan.json says, on this machine. Options given here win."),
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch",
            metavar="N",
            callback=at_least(1),
            help="Samples per timed call, 8 by default: give the batch that will be used.",
        ),
    ] = None,
    sizes: options.Sizes = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="S", callback=duration, help="Time for all timing; 40 by default."),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit", metavar="S", callback=duration, help="Nothing new is tried after this; 900 by default."
        ),
    ] = None,
    precedence: Annotated[
        bool | None,
        typer.Option(
            "--precedence/--no-precedence",
            help="Go before other programs while timing, where the system grants it: the plan of an idle machine.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="SOURCE",
            help="What it was exported from: the plan says what torch.compile takes.",
        ),
    ] = None,
    weights: options.Weights = None,
    arguments: options.Arguments = None,
    unsafe_pickle: options.UnsafePickle = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Find the fastest plan within the budget, save it beside the model, and say what was tried."""
    from normdeploy import runtime
    from normdeploy.report.text import printable

    asked: dict[str, Any] = {
        "budget": budget,
        "batch_size": batch_size,
        "sizes": options.read_sizes(sizes) or None,
        "seconds": seconds,
        "time_limit": time_limit,
        "precedence": precedence,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    with working("tuning", every_step=True) as tell:
        if against is not None:
            tell(f"building {against}")
            given["opponent"] = options.load_model(against, arguments, weights, unsafe_pickle=unsafe_pickle)
        if again:
            plan = runtime.retune(runtime.plan_path(model), data=data, progress=tell, **given)
        else:
            plan = runtime.tune(model, data=data, overwrite=overwrite, progress=tell, **given)
    if as_json:
        typer.echo(plan.to_json())
        return
    variant = "" if plan.chosen.file == plan.model else f", which runs {plan.chosen.file}"
    typer.echo(printable(f"{plan.summary()}\nwrote {plan.path}{variant}"))
