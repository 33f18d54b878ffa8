"""``normdeploy package``: a package around a model, for a server, a browser or a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normdeploy.cli import options
from normdeploy.cli.amount_options import at_least
from normdeploy.cli.progress import working
from normdeploy.errors import UsageError

# which options belong to which package, by their Python names
_ONLY = {
    "--triton": (
        *("name", "max_batch_size", "plan", "instances", "gpus", "queue_delay", "preferred", "labels", "sizes"),
    ),
    "--web": (
        *("out", "title", "labels", "sizes", "web_runtime"),
        *("image_size", "image_mean", "image_std", "image_resize", "image_filter"),
    ),
    "--mobile": ("out",),
}


def package(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX file.")],
    triton: Annotated[
        Path | None, typer.Option("--triton", metavar="DIR", help="Write into a Triton model repository.")
    ] = None,
    web: Annotated[bool, typer.Option("--web", help="Write a folder with a page that runs it in a browser.")] = False,
    mobile: Annotated[
        bool, typer.Option("--mobile", help="Write the ORT format and the list of operators it needs.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="DIR", help="The folder of --web or --mobile: NAME-web, NAME-mobile by default."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The model's name in Triton.")] = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help="The page's; the file's name else.")
    ] = None,
    max_batch_size: Annotated[
        int, typer.Option("--max-batch", metavar="N", callback=at_least(1), help="Largest batch served.")
    ] = 64,
    sizes: options.Sizes = None,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan made by tune.")] = None,
    instances: Annotated[
        int, typer.Option("--instances", metavar="N", callback=at_least(1), help="How many run at once.")
    ] = 1,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="N,N,...", help="On which GPUs, for a model on CUDA; all by default."),
    ] = None,
    queue_delay: Annotated[
        int,
        typer.Option(
            "--queue-delay", metavar="US", callback=at_least(0), help="Microseconds that a request may wait for others."
        ),
    ] = 0,
    preferred: Annotated[
        str | None, typer.Option("--preferred", metavar="N,N,...", help="Batch sizes to wait for.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", metavar="FILE", help="Class names, one per line, for the output.")
    ] = None,
    image_size: options.ImageSize = None,
    image_mean: options.ImageMean = "0",
    image_std: options.ImageStd = "1",
    image_resize: options.ImageResize = "stretch",
    image_filter: options.ImageFilter = "bilinear",
    web_runtime: options.WebRuntime = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a package around a model: for Triton, for a browser (--web) or for a phone (--mobile)."""
    kinds = {"--triton": triton is not None, "--web": web, "--mobile": mobile}
    chosen = [kind for kind, asked in kinds.items() if asked]
    if len(chosen) != 1:
        raise UsageError(f"{' and '.join(chosen) or 'no package'} is asked for; expected one of {', '.join(kinds)}")
    given = _given(context)
    for option in sorted({part for parts in _ONLY.values() for part in parts} - set(_ONLY[chosen[0]])):
        if option in given:
            others = " and ".join(kind for kind, parts in _ONLY.items() if option in parts)
            raise UsageError(f"{given[option]} is given with {chosen[0]}; expected it with {others}: leave it out")

    from normdeploy import runtime
    from normdeploy.report import console

    with working("package", f"packing {model}"):
        if mobile:
            written = runtime.package_mobile(model, out, overwrite=overwrite)
        elif web:
            about = any(option.startswith("image_") for option in given)
            written = runtime.package_web(
                model,
                out,
                title=title,
                sizes=options.read_sizes(sizes),
                images=options.read_images(image_size, image_mean, image_std, image_resize, image_filter)
                if about
                else None,
                labels=labels,
                web_runtime=web_runtime,
                overwrite=overwrite,
            )
        else:
            assert triton is not None
            serving = runtime.Serving(
                instances,
                options.read_numbers("--gpus", gpus, least=0),
                queue_delay,
                options.read_numbers("--preferred", preferred),
                labels,
            )
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


def _given(context: typer.Context) -> dict[str, str]:
    """Return the options on the command line: how they are spelled, by their Python names."""
    return {
        str(parameter.name): parameter.opts[0]
        for parameter in context.command.params
        if (source := context.get_parameter_source(str(parameter.name))) is not None and source.name == "COMMANDLINE"
    }
