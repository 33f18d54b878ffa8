"""``normdeploy predict``: a model over a whole data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from normdeploy.cli import options
from normdeploy.cli.amount_options import at_least
from normdeploy.cli.progress import working


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX file.")],
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA...", help=".npy, .npz, .csv, .parquet or images: files, folders, patterns."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="Where the results go.")],
    batch_size: Annotated[
        int, typer.Option("--batch", metavar="N", callback=at_least(1), help="Samples per call.")
    ] = 64,
    engine: Annotated[str, typer.Option("--engine", metavar="local|ray", help="Where the work runs.")] = "local",
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", callback=at_least(1), help="How many workers.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME", help="A column to read. Repeat, in order."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="NAME", help="A column to pass through to OUT. Repeat."),
    ] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether CSV files begin with names; else looked at.")
    ] = None,
    image_size: options.ImageSize = None,
    image_mean: options.ImageMean = "0",
    image_std: options.ImageStd = "1",
    image_resize: options.ImageResize = "stretch",
    image_filter: options.ImageFilter = "bilinear",
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan made by tune.")] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Run the model over all rows in constant memory; resumes after a kill; bad rows go to a side file."""
    from normdeploy import runtime
    from normdeploy.report.text import printable

    images = options.read_images(image_size, image_mean, image_std, image_resize, image_filter)
    first = "opening the model and the data" + (", starting Ray's workers" if engine == "ray" else "")
    with _progress(first) as report:
        result = runtime.predict(
            model,
            data,
            output,
            plan=plan,
            batch_size=batch_size,
            engine=cast(Literal["local", "ray"], engine),  # runtime.predict refuses other words
            workers=workers,
            columns=columns,
            keep=keep or (),
            header=header,
            images=images,
            overwrite=overwrite,
            progress=report,
        )
    typer.echo(printable(result.summary()))


@contextmanager
def _progress(first: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show on standard error how far it is: a bar, or lines in a log; yields a function of (rows done, in all)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        with working("predict", first) as tell:
            yield lambda done, total: tell(f"{done} rows" + ("" if total is None else f" of {total}"))
        return
    columns = (TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("rows", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
