"""``normdeploy verify``: prove an ONNX file equal to its reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normdeploy.cli import options
from normdeploy.cli.amount_options import at_least
from normdeploy.cli.progress import verifying, working


def verify(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE|REFERENCE.onnx",
            help="The reference; alone: a file with a certificate.",
        ),
    ],
    model: Annotated[Path | None, typer.Argument(metavar="MODEL.onnx", help="The ONNX file to judge.")] = None,
    weights: options.Weights = None,
    inputs: options.Inputs = None,
    example_values: options.ExampleValues = None,
    arguments: options.Arguments = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Inputs of yours (.npy or .npz)."),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", callback=at_least(0), help="Seed of the inputs made.")
    ] = 0,
    quick: options.Quick = False,
    thorough: options.Thorough = False,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget", metavar="BUDGET", help="What a file of lower precision may cost: rel=1e-2 or top1=0.5%."
        ),
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            "--runtime",
            metavar="cpu|cuda|tensorrt|web|mobile",
            help="What runs it: a provider, a browser, the ORT format.",
        ),
    ] = "cpu",
    web_runtime: options.WebRuntime = None,
    browser: Annotated[
        Path | None, typer.Option("--browser", metavar="FILE", help="Chromium, if not the first one found.")
    ] = None,
    html: options.Html = None,
    certify: Annotated[
        bool, typer.Option("--certify", help="Write certificate and derivation beside the file.")
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="DIR", help="On failure, save the smallest failing part there.")
    ] = None,
    unsafe_pickle: options.UnsafePickle = False,
    overwrite: options.Overwrite = False,
    markdown: options.Markdown = False,
    as_json: options.Json = False,
) -> None:
    """Prove that an ONNX file computes what its reference computes, or say where it does not.

    With one ONNX file alone: check that it is the file its certificate was written for, and say what that covered.
    """
    from normdeploy.errors import UsageError
    from normdeploy.files import require_writable, write_text
    from normdeploy.parsing import sources

    level = options.verify_level(quick, thorough)
    options.require_one_form(markdown, as_json)
    if html is not None:
        require_writable(html, overwrite=overwrite)
    if model is None:
        if sources.is_source(reference):
            raise UsageError(
                f"{reference} is a model to compare with, and no file is given to judge; expected "
                f"normdeploy verify {reference} MODEL.onnx: name the ONNX file too"
            )
        if runtime != "cpu":
            raise UsageError(
                f"--runtime is {runtime!r} and no file is given to judge; expected two: a certificate alone is checked "
                "without running anything"
            )
        _check_certificate(reference, as_json)
        return

    if sources.is_source(str(model)) and not sources.is_source(reference):
        raise UsageError(
            f"{model} is given as the file to judge and names a model; expected the reference first: "
            f"normdeploy verify {model} {reference}"
        )

    from normdeploy.report import console
    from normdeploy.report import markdown as md

    with working("verify", f"reading {model}") as tell:
        from normdeploy.graph import load_graph
        from normdeploy.runtime.samples import read_arrays
        from normdeploy.verification import verify as run_verifier
        from normdeploy.verification.record.certificate import certificate_path
        from normdeploy.verification.record.certificate import certify as write_certificate
        from normdeploy.verification.record.kept_derivation import derivation_path
        from normdeploy.verification.runtimes import judged_under

        if certify:
            for beside in (certificate_path(model), derivation_path(model)):
                require_writable(beside, overwrite=overwrite)
        load_graph(model)  # a missing or broken file is told before the reference is built
        # So is a missing browser; nothing is started before the first session
        with judged_under(runtime, web_runtime=web_runtime, browser=browser) as settings:
            subject: Any = reference
            args: Any = None
            kwargs: Any = None
            if sources.is_source(reference):
                tell(f"building {reference}")
                subject = options.load_model(reference, arguments, weights, unsafe_pickle=unsafe_pickle)
                if inputs or example_values is not None:
                    example = options.example_for(subject, inputs, example_values)
                    args, kwargs = example.args, example.kwargs
            elif example_values is not None:
                args = read_arrays(example_values)
            tell(f"reading {reference}")
            verdict = run_verifier(
                subject,
                model,
                args=args,
                kwargs=kwargs,
                data=None if data is None else read_arrays(data),
                seed=seed,
                level=level,
                budget=budget,
                settings=settings,
                bundle=bundle,
                progress=verifying(tell),
            )
    if certify and options.EXIT_CODES[verdict.status] != 1:
        write_certificate(model, verdict, overwrite=overwrite)
    if html is not None:
        write_text(html, verdict.to_html(), overwrite=overwrite)
    if as_json:
        options.print_json(verdict.to_dict())
    elif markdown:
        console.print_plain(md.verdict(verdict.to_dict()))
    else:
        console.print_verdict(verdict)
        console.print_written([html] if html else [])
    options.exit_with(verdict)


def _check_certificate(path: str, as_json: bool) -> None:
    from normdeploy.report.text import printable
    from normdeploy.verification.record.certificate import check_certificate

    report = check_certificate(path)
    if as_json:
        options.print_json(report.to_dict())
    else:
        typer.echo(printable(report.summary()))
    if not report.matches:
        raise typer.Exit(1)
