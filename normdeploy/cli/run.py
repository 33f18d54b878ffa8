"""``normdeploy run``: one call of an ONNX file on arrays from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normdeploy.cli import options
from normdeploy.cli.amount_options import at_least
from normdeploy.cli.progress import working
from normdeploy.errors import UsageError


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX file.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="[NAME=]FILE", help="The values, .npy or .npz; made up by default. Repeat for several."
        ),
    ] = None,
    sizes: options.Sizes = None,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", callback=at_least(1), help="Samples of made-up inputs.")
    ] = 1,
    seed: Annotated[int, typer.Option("--seed", metavar="N", callback=at_least(0), help="Seed of made-up inputs.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Save: .npy (one output) or .npz."),
    ] = None,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan made by tune.")] = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Run the model once and print or save its outputs."""
    import numpy as np

    from normdeploy import runtime
    from normdeploy.files import require_writable, written_whole
    from normdeploy.report import console
    from normdeploy.report.text import printable
    from normdeploy.runtime.samples import make_samples

    if output is not None:
        require_writable(output, overwrite=overwrite)
        if output.suffix not in (".npy", ".npz"):
            raise UsageError(f"{output} ends in {output.suffix!r}; expected .npy or .npz")
    with working("run", f"reading {model}"):
        predictor = runtime.load(model, plan=plan)
        predictor.backend  # noqa: B018 - the session is made at its first use, which may take its time
    if inputs:
        feeds = _feeds(inputs, [spec.name for spec in predictor.inputs])
    else:
        feeds = make_samples(predictor.inputs, batch, sizes=options.read_sizes(sizes), seed=seed)
        made = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feeds.items())
        typer.echo(printable(f"note: made-up inputs: {made}; give yours with --input [NAME=]FILE"), err=True)
    with working("run", f"running {model}"):
        results: Any = predictor(feeds)
    if output is not None:
        if output.suffix == ".npy" and len(results) > 1:
            raise UsageError(
                f"{output} is .npy and the model has {len(results)} outputs ({', '.join(results)}); expected .npz"
            )
        with written_whole(output, overwrite=overwrite) as temporary, temporary.open("wb") as stream:
            if output.suffix == ".npy":
                np.save(stream, next(iter(results.values())))
            else:
                np.savez(stream, **results)
    if as_json:
        options.print_json({name: np.asarray(value).tolist() for name, value in results.items()})
    else:
        console.print_arrays(results)
        console.print_written([output] if output else [])


def _feeds(texts: list[str], names: list[str]) -> dict[str, Any]:
    """Read ``[NAME=]FILE`` options; a single unnamed .npy is the only input.

    Raises:
        UsageError: a name is missing or given twice.
        InputError: a file is missing or holds no plain arrays.
    """
    from normdeploy.runtime.samples import read_arrays

    feeds: dict[str, Any] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        named = bool(equals) and name.isidentifier()
        path = Path(rest if named else text)
        arrays = read_arrays(path)
        if isinstance(arrays, dict):
            found = {name: arrays[name]} if named and name in arrays else arrays
        elif named:
            found = {name: arrays}
        elif len(names) == 1:
            found = {names[0]: arrays}
        else:
            raise UsageError(
                f"--input {text} has no name and the model has the inputs {', '.join(names)}; expected NAME=FILE"
            )
        for key, value in found.items():
            if key in feeds:
                raise UsageError(f"input {key} is given twice; expected each input once")
            feeds[key] = value
    return feeds
