"""``normdeploy conformance``: exporters, optimizers, runtimes and verifiers through cases with known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normdeploy.cli import options
from normdeploy.cli.progress import working


def conformance(
    adapters: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter",
            metavar="NAME|FILE.py:FUNCTION",
            help="What to run: a known tool (--list names them), or a function of yours. Repeat for several.",
        ),
    ] = None,
    patterns: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="PATTERN", help="Cases by group, by a part of their name, or with * in it."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Name the cases and the known adapters, and run nothing.")
    ] = False,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the tables as Markdown.")
    ] = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Run tools through cases whose answers are known: norms as people write them, traps, and damaged files.

    Each ends right, left (right, but what could be folded is still there), WRONG without a word and by how much,
    refused with a message, or crashed. Exit code 1 where an adapter that was named, or else normdeploy, is wrong or
    crashes; 3 where a named one is not installed.

    An adapter is a function of ten lines: exporter(model, args, path), optimizer(source, target), runtime(path, inputs)
    or verifier(reference, candidate); the names of its parameters say which (docs/conformance.md).
    """
    from normdeploy.conformance import table
    from normdeploy.conformance.adapters import BUILT_IN, adapter_named
    from normdeploy.conformance.cases import all_cases, chosen_cases
    from normdeploy.conformance.run_cases import run
    from normdeploy.files import require_writable, write_text
    from normdeploy.report import console

    if listed:
        if as_json:
            options.print_json({"cases": {c.name: c.about for c in all_cases().values()}, "adapters": list(BUILT_IN)})
            return
        console.print_rows("Cases", ["case", "about"], [(case.name, case.about) for case in all_cases().values()])
        found = [(a.name, a.role, ", ".join(a.missing) or "installed") for a in BUILT_IN.values()]
        console.print_rows("Adapters", ["adapter", "role", "missing"], found)
        return
    if markdown is not None:
        require_writable(markdown, overwrite=overwrite)
    cases = chosen_cases(patterns or [])
    asked = [adapter_named(name) for name in adapters or BUILT_IN]
    ready = [adapter for adapter in asked if not adapter.missing]
    absent = {adapter.name: adapter.missing for adapter in asked if adapter.missing}
    with working("conformance") as report:
        outcomes = run(ready, cases, report)
    names = [adapter.name for adapter in ready]
    if markdown is not None:
        write_text(markdown, table.markdown(outcomes, cases, names), overwrite=overwrite)
    if as_json:
        options.print_json({"outcomes": [outcome.to_dict() for outcome in outcomes], "not installed": absent})
    else:
        console.print_conformance(table.rows(outcomes, cases, names), names)
        console.print_facts("In all", {name: table.totals(outcomes, name) for name in names})
        if absent:
            console.print_facts("Not installed", {name: f"needs {', '.join(needs)}" for name, needs in absent.items()})
        details = [
            (o.case, o.adapter, o.detail) for o in outcomes if o.detail and o.result in ("wrong", "crashed", "refused")
        ]
        if details:
            console.print_rows("What was said", ["case", "adapter", "words"], details)
        console.print_written([markdown] if markdown else [])
    judged = {adapter.name for adapter in ready if adapters or adapter.own}
    if any(outcome.adapter in judged and outcome.result in ("wrong", "crashed") for outcome in outcomes):
        raise typer.Exit(1)
    if adapters and absent:
        raise typer.Exit(3)
