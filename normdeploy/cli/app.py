"""The application: every command, registered in the order a model meets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from normdeploy import __version__
from normdeploy.cli.bench import bench
from normdeploy.cli.build import build
from normdeploy.cli.completion import completion
from normdeploy.cli.conformance import conformance
from normdeploy.cli.diff import diff
from normdeploy.cli.export import export
from normdeploy.cli.fold import fold
from normdeploy.cli.group import CommandGroup
from normdeploy.cli.help_examples import epilog
from normdeploy.cli.init import init
from normdeploy.cli.inspect import inspect
from normdeploy.cli.package import package
from normdeploy.cli.predict import predict
from normdeploy.cli.run import run
from normdeploy.cli.sys import sys_
from normdeploy.cli.train import train
from normdeploy.cli.tune import tune
from normdeploy.cli.verify import verify

app = typer.Typer(
    name="normdeploy",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "init": (init, "Write a recipe for a network of one's own."),
    "build": (build, "A recipe, from training to the proven file and its report."),
    "train": (train, "Train a recipe's model."),
    "inspect": (inspect, "Say what is wrong or risky in a model's normalizations."),
    "export": (export, "PyTorch to ONNX, normalizations folded, proven."),
    "fold": (fold, "ONNX to ONNX, normalizations folded, proven."),
    "verify": (verify, "Prove an ONNX file equal to its reference."),
    "diff": (diff, "How two ONNX files differ."),
    "tune": (tune, "Find the fastest way to run it within a verified budget."),
    "bench": (bench, "Latency against others, side by side."),
    "run": (run, "One call on arrays from files."),
    "predict": (predict, "A whole data set, in constant memory."),
    "package": (package, "Package a model for Triton, a browser or a phone."),
    "completion": (completion, "What makes a shell complete commands and options."),
    "conformance": (conformance, "Exporters, optimizers and verifiers through cases with known answers."),
    "sys": (sys_, "Versions, processor, execution providers."),
}
for _name, (_command, _short) in COMMANDS.items():
    app.command(_name, short_help=_short, epilog=epilog(_name))(_command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"normdeploy {__version__}")
        raise typer.Exit


@app.callback()
def normdeploy(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Trained PyTorch networks to ONNX Runtime with their normalizations folded, and proof that nothing changed.

    Exit codes: 0 pass, 1 verification failed, 2 usage, 3 weak or not exercised, 4 the model or an input is unusable.
    """
