"""``normdeploy run``: one call of an ONNX file on arrays from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normdeploy.cli import options
from normdeploy.errors import UsageError


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX file.")],
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="[NAME=]FILE", help="The values, .npy or .npz. Repeat for several."),
    ],
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

    if output is not None:
        require_writable(output, overwrite=overwrite)
        if output.suffix not in (".npy", ".npz"):
            raise UsageError(f"{output} ends in {output.suffix!r}; expected .npy or .npz")
    predictor = runtime.load(model, plan=plan)
    results: Any = predictor(_feeds(inputs, [spec.name for spec in predictor.inputs]))
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
