"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from normdeploy.errors import InputError, UsageError
from normdeploy.parsing.examples import make_example
from normdeploy.parsing.inputs import parse_arguments, parse_inputs
from normdeploy.parsing.sources import build

if TYPE_CHECKING:
    from torch import nn

    from normdeploy.parsing.examples import Example
    from normdeploy.parsing.inputs import InputSpec
    from normdeploy.runtime import ImageOptions
    from normdeploy.verification import Verdict

Weights = Annotated[
    Path | None,
    typer.Option("--weights", metavar="FILE", help="Trained weights: .safetensors, or .pt of tensors."),
]
UnsafePickle = Annotated[
    bool,
    typer.Option(
        "--unsafe-pickle", help="Load a .pt that holds Python objects. It can run any code: only for files you trust."
    ),
]
WeightsKey = Annotated[
    str | None,
    typer.Option(
        "--weights-key",
        metavar="KEY",
        help="Which of a checkpoint's state dicts, as model_ema, or what the names of its tensors begin with.",
    ),
]
AllowMissing = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-missing",
        metavar="MODULE",
        help="A module whose weights may be missing or of another shape, such as a new head. Repeat for several.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=DTYPE:SHAPE",
        help="An input, such as x=float32:batchx3x224x224; a word is a dynamic dimension. Repeat for several; guessed "
        "from the first layers by default, and the guess is printed.",
    ),
]
ExampleValues = Annotated[
    Path | None,
    typer.Option(
        "--example",
        metavar="FILE",
        help="Values of the inputs that --input describes, .npz by name or .npy, as lengths that have to fit; made up "
        "by default.",
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Option("--arg", metavar="KEY=VALUE", help="An argument of the model's constructor. Repeat for several."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output files.")]
Data = Annotated[
    Path | None, typer.Option("--data", metavar="FILE", help="Inputs of yours (.npy or .npz); made up by default.")
]
Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print the result as Markdown, for pull requests and CI summaries.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Integer = Annotated[
    bool, typer.Option("--integer", help="Write quantized layers on integers, equal on every sum they can have.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Verify the essentials only.")]
Thorough = Annotated[bool, typer.Option("--thorough", help="Verify with more inputs, sizes and settings.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the verdict as a page.")]

WebRuntime = Annotated[
    Path | None,
    typer.Option(
        "--web-runtime",
        metavar="PATH",
        help="The package onnxruntime-web: its .tgz or folder; fetched by npm where not given.",
    ),
]

ImageSize = Annotated[
    str | None, typer.Option("--image-size", metavar="HxW", help="Resize images, where the model takes any size.")
]
ImageMean = Annotated[
    str, typer.Option("--image-mean", metavar="M,M,M", help="Subtracted from pixels in 0..1, per channel.")
]
ImageStd = Annotated[str, typer.Option("--image-std", metavar="S,S,S", help="Divides them after that.")]
ImageResize = Annotated[
    str, typer.Option("--image-resize", metavar="stretch|crop|fit", help="How images come to the model's size.")
]
ImageFilter = Annotated[
    str, typer.Option("--image-filter", metavar="bilinear|bicubic|...", help="Interpolation of pixels.")
]

Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="WORD=N", help="Size of a dynamic dimension. Repeat for several."),
]

#: Exit code per verdict status.
EXIT_CODES = {"pass": 0, "fail": 1, "error": 1, "weak": 3, "not-exercised": 3}


def load_model(
    source: str,
    arguments: list[str] | None,
    weights: Path | None,
    *,
    unsafe_pickle: bool = False,
    key: str | None = None,
    allow_missing: Sequence[str] = (),
) -> nn.Module:
    """Build the model that ``source`` names and load its weights; what was understood is said on standard error.

    Args:
        source: the model.
        arguments: of its constructor.
        weights: the file; without one, that is said.
        unsafe_pickle: see ``read_weights``; ``key`` too.
        key: which state dict of a checkpoint.
        allow_missing: see ``load_weights``.

    Raises:
        SourceError: it cannot be built.
        WeightsError: the weights do not fit.
    """
    from normdeploy.exporting.module.load_weights import load_weights
    from normdeploy.nn.weight_files import read_weights
    from normdeploy.report.text import printable

    model: nn.Module = build(source, parse_arguments(arguments or []))
    if weights is None:
        typer.echo(f"note: no --weights given: {source} is used as its constructor leaves it", err=True)
    else:
        notes: list[str] = []
        given = read_weights(weights, unsafe_pickle=unsafe_pickle, key=key, notes=notes)
        absent = load_weights(model, given, allow_missing=allow_missing, notes=notes, origin=weights)
        for note in notes:
            typer.echo(f"note: {weights}: {note}", err=True)
        if absent:
            text = f"note: not in {weights}, used as the constructor leaves them: {', '.join(absent[:6])}"
            typer.echo(printable(text), err=True)
    return model.eval()


def describe_inputs(model: nn.Module, inputs: list[str] | None) -> list[InputSpec]:
    """Read ``--input`` options; without any they are guessed, and the guess is said.

    Raises:
        InputError: there are none and nothing that was tried runs.
        UsageError: one does not follow the grammar.
    """
    if inputs:
        return parse_inputs(inputs)
    from normdeploy.exporting.module.guess import guess_inputs, guess_note
    from normdeploy.report.text import printable

    guess = guess_inputs(model)
    typer.echo(printable(f"note: {guess_note(guess)}"), err=True)
    return guess.inputs


def example_for(model: nn.Module, inputs: list[str] | None, values: Path | None = None) -> Example:
    """Make example arguments from ``--input`` options, or from a guess (`describe_inputs`), and ``--example``.

    Raises:
        InputError: the model takes others, or the values do not fit.
    """
    given = None
    if values is not None:
        from normdeploy.runtime.samples import read_arrays

        given = read_arrays(values)
    return make_example(describe_inputs(model, inputs), model, values=given, renames=not inputs)


def read_sizes(texts: list[str] | None) -> dict[str, int]:
    """Parse ``WORD=N`` options.

    Raises:
        UsageError: one does not follow the grammar.
    """
    sizes: dict[str, int] = {}
    for text in texts or []:
        word, equals, size = text.partition("=")
        if not equals or not size.isdecimal() or int(size) < 1:
            raise UsageError(f"--size is {text!r}; expected WORD=N, as --size height=224")
        sizes[word] = int(size)
    return sizes


def require_opset(version: int | None) -> None:
    """Require an operator set that can be written.

    Raises:
        UsageError: it is too old or too new.
    """
    from normdeploy.exporting.trace import check_opset

    try:
        check_opset(version)
    except InputError as error:
        raise UsageError(str(error)) from None


def read_numbers(option: str, text: str | None, *, least: int = 1) -> tuple[int, ...]:
    """Parse ``N,N,...``; none for None.

    Raises:
        UsageError: one is no whole number, or below ``least``.
    """
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        what = "positive integers" if least else "integers from 0 on"
        raise UsageError(f"{option} is {text!r}; expected {what} joined by commas, as 1,8")
    return tuple(int(part) for part in parts)


def read_images(size: str | None, mean: str, std: str, resize: str, interpolation: str) -> ImageOptions:
    """Return what the options of images say.

    Raises:
        UsageError: one does not follow its grammar, or is outside its range.
    """
    from normdeploy.runtime import ImageOptions

    return ImageOptions(
        _floats("--image-mean", mean),
        _floats("--image-std", std),
        None if size is None else _height_and_width(size),
        cast(Any, resize),  # both words are checked there
        cast(Any, interpolation),
    )


def _floats(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{option} is {text!r}; expected numbers joined by commas, as 0.485,0.456,0.406") from error


def _height_and_width(text: str) -> tuple[int, int]:
    height, cross, width = text.partition("x")
    if not cross or not height.isdecimal() or not width.isdecimal():
        raise UsageError(f"--image-size is {text!r}; expected HEIGHTxWIDTH, as 224x224")
    return int(height), int(width)


def require_one_form(markdown: bool, as_json: bool) -> None:
    """Require that at most one form of the result was asked for.

    Raises:
        UsageError: both were.
    """
    if markdown and as_json:
        raise UsageError("--markdown and --json are both given; expected one of them: standard output takes one result")


def verify_level(quick: bool, thorough: bool) -> Any:
    """Return the verifier's level.

    Raises:
        UsageError: both were asked for.
    """
    if quick and thorough:
        raise UsageError("--quick and --thorough are both given; expected one of them")
    return "quick" if quick else "thorough" if thorough else "default"


def print_json(data: Any) -> None:
    """Print ``data`` as JSON on standard output."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False, default=str))


def exit_with(verdict: Verdict | None) -> None:
    """Leave with the verdict's exit code; a verification that was not asked for counts as success."""
    if verdict is not None and EXIT_CODES[verdict.status]:
        raise typer.Exit(EXIT_CODES[verdict.status])
