"""``normdeploy bench``: latency of a model against others, interleaved in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normdeploy.cli import options
from normdeploy.errors import UsageError


def bench(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX file.")],
    against: Annotated[
        list[str] | None,
        typer.Option("--against", metavar="SOURCE|OTHER.onnx", help="What to compare with. Repeat for several."),
    ] = None,
    weights: options.Weights = None,
    arguments: options.Arguments = None,
    sizes: options.Sizes = None,
    batches: Annotated[str, typer.Option("--batch", metavar="N,N,...", help="Batch sizes.")] = "1,8",
    threads: Annotated[str | None, typer.Option("--threads", metavar="N,N,...", help="Threads in an operator.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="Time per measurement.")] = 5.0,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan made by tune.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the result (.png or .svg).")] = None,
    unsafe_pickle: options.UnsafePickle = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Time the model against eager torch, other files and the installed peers, side by side."""
    from normdeploy.files import require_writable
    from normdeploy.graph import load_graph

    load_graph(model)
    if plot is not None:
        require_writable(plot, overwrite=overwrite)

    from rich.console import Console

    from normdeploy import runtime, sources
    from normdeploy.inputs import parse_arguments
    from normdeploy.report.text import Text, printable

    contenders: list[Any] = []
    for other in against or []:
        if sources.is_source(other):
            module = options.load_model(other, arguments, weights, unsafe_pickle=unsafe_pickle)
            given = parse_arguments(arguments or [])
            contenders.append(runtime.ModuleSource(other, given, weights, unsafe_pickle, module))
        else:
            load_graph(other)
            contenders.append(other)
    with Console(stderr=True).status("bench") as status:
        result = runtime.bench(
            model,
            against=contenders,
            sizes=options.read_sizes(sizes),
            batch_sizes=_counts("--batch", batches),
            threads=None if threads is None else _counts("--threads", threads),
            seconds=seconds,
            plan=plan,
            progress=lambda text: status.update(Text(f"bench: {text}")),
        )
    if plot is not None:
        result.plot(plot, overwrite=overwrite)
    typer.echo(result.to_json() if as_json else printable(result.summary()))


def _counts(option: str, text: str) -> tuple[int, ...]:
    counts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in counts):
        raise UsageError(f"{option} is {text!r}; expected positive integers joined by commas, as 1,8")
    return tuple(int(part) for part in counts)
