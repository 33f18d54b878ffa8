"""``normdeploy bench``: latency of a model against others, interleaved in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normdeploy.cli import options
from normdeploy.cli.amount_options import duration
from normdeploy.cli.progress import working


def bench(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX file.")],
    against: Annotated[
        list[str] | None,
        typer.Option("--against", metavar="SOURCE|OTHER.onnx", help="What to compare with. Repeat for several."),
    ] = None,
    weights: options.Weights = None,
    arguments: options.Arguments = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Inputs of yours (.npy or .npz); made up by default."),
    ] = None,
    sizes: options.Sizes = None,
    batches: Annotated[str, typer.Option("--batch", metavar="N,N,...", help="Batch sizes.")] = "1,8",
    threads: Annotated[str | None, typer.Option("--threads", metavar="N,N,...", help="Threads in an operator.")] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="S",
            callback=duration,
            help="Timing per batch size and thread count; torch's compiling comes on top.",
        ),
    ] = 5.0,
    peers: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="NAME", help="Compare with this one alone; see the table for names. Repeat."),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Measure memory and load time, in a process for each.")
    ] = True,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan made by tune.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the result (.png or .svg).")] = None,
    unsafe_pickle: options.UnsafePickle = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Time the model against eager torch, other files and the installed peers, side by side."""
    from normdeploy.files import require_writable
    from normdeploy.parsing import sources
    from normdeploy.parsing.inputs import parse_arguments
    from normdeploy.report.text import printable

    with working("bench", f"reading {model}"):
        from normdeploy import runtime
        from normdeploy.graph import load_graph
        from normdeploy.runtime.samples import read_arrays

        load_graph(model)
    if plot is not None:
        require_writable(plot, overwrite=overwrite)
    contenders: list[Any] = []
    for other in against or []:
        if sources.is_source(other):
            module = options.load_model(other, arguments, weights, unsafe_pickle=unsafe_pickle)
            given = parse_arguments(arguments or [])
            contenders.append(runtime.ModuleSource(other, given, weights, unsafe_pickle, module))
        else:
            load_graph(other)
            contenders.append(other)
    with working("bench", every_step=True) as tell:
        result = runtime.bench(
            model,
            against=contenders,
            inputs=None if data is None else read_arrays(data),
            sizes=options.read_sizes(sizes),
            batch_sizes=options.read_numbers("--batch", batches),
            threads=None if threads is None else options.read_numbers("--threads", threads),
            seconds=seconds,
            plan=plan,
            peers=peers or None,
            memory=memory,
            progress=tell,
        )
    if plot is not None:
        result.plot(plot, overwrite=overwrite)
    typer.echo(result.to_json() if as_json else printable(result.summary()))
