"""The step that exports: inspected, exported, folded, verified."""

from __future__ import annotations

import json
from functools import cache, partial
from typing import Any

from normdeploy import __version__
from normdeploy.building.build_files import SCHEMA, Outputs, Stage, write_report
from normdeploy.building.recipe_model import (
    export_as_told,
    load_trained,
    recipe_example,
    trace_as_told,
    weights_metadata,
)
from normdeploy.building.report_numbers import network_facts, node_facts
from normdeploy.errors import ModelError, VerificationError
from normdeploy.files import sha256_file
from normdeploy.inspection import inspect
from normdeploy.ort.installed import BUILDS, version_of
from normdeploy.parsing.recipe import Recipe
from normdeploy.report import console
from normdeploy.train import provenance

_VERSIONED = ("torch", "onnx", "onnx-ir", "onnxscript", *BUILDS, "numpy")


def export_step(recipe: Recipe, outputs: Outputs, stage: Stage) -> dict[str, Any]:
    """Inspect, export, fold and verify; return the report so far.

    Raises:
        VerificationError: after writing a report that says why and removing an older ONNX file of this build.
    """
    understood: list[str] = []
    model = load_trained(recipe, notes=understood)
    example = recipe_example(recipe, model, notes=understood)
    console.print_notes(understood)
    args = (*example.args, *([example.kwargs] if example.kwargs else []))
    with stage("inspect") as tell:
        tell("looking at the normalizations while the model runs")
        # one trace for both steps; where there is none, what is found is an error
        traces = cache(partial(trace_as_told, recipe, model, example))
        findings = [finding.to_dict() for finding in inspect(model, args, traces=traces)]
    console.print_step(
        "inspect",
        f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "nothing wrong or risky found",
    )
    console.print_findings(findings)
    errors = [row for row in findings if row["severity"] == "error"]
    if errors:
        raise ModelError(
            f"{recipe.name} has {len(errors)} errors in its normalizations, the first at "
            f"{errors[0]['where'] or 'the model itself'}; expected none, "
            "because deployed outputs would be wrong: follow the remedies above"
        )
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "name": recipe.name,
        "recipe": recipe.path.name,
        "normdeploy": __version__,
        "versions": versions(),
        "training": _training_facts(recipe),
        "findings": findings,
        "onnx_sha256": None,
        "stages": {},
    }
    try:
        with stage("export") as tell:
            result = export_as_told(recipe, model, traces(), example, outputs.onnx, tell)
    except VerificationError as error:
        for path in outputs.proven:
            path.unlink(missing_ok=True)
        report |= {"status": error.verdict.status, "verdict": error.verdict.to_dict(), "ledger": None}
        write_report(outputs, report)
        console.print_step("report", f"{outputs.page} says why")
        raise
    console.print_notes(result.notes)
    if result.verdict is None:
        raise AssertionError("export was asked to verify and returned no verdict")
    console.print_step("export", f"{outputs.onnx} (verdict: {result.verdict.status})")
    report |= {
        "status": result.verdict.status,
        "verdict": result.verdict.to_dict(),
        "ledger": json.loads(result.ledger.to_json()),
        "graph": {"traced": node_facts(result.plain)},
        "network": {"before": network_facts(result.plain), "after": network_facts(result.program)},
        "notes": result.notes,
        "seconds": result.seconds,
        "onnx_sha256": sha256_file(outputs.onnx),
    }
    return report


def _training_facts(recipe: Recipe) -> dict[str, str]:
    hidden = {provenance.TRAINED_BY, "settings"}
    facts = weights_metadata(recipe)
    return {key: value for key, value in facts.items() if key not in hidden}


def versions() -> dict[str, str]:
    """Return the versions of what decides an export."""
    return {name: version for name in _VERSIONED if (version := version_of(name)) is not None}
