"""``normdeploy build``: a recipe, from training to the proven file and its report.

Stages follow the training, each with a digest of all that decides its result: "export" (weights, sources, [export]
and [verify] tables, versions), "measure" (the exported file, [bench] table, machine) and, where asked for, "quantize"
(both, and [quantize]). A stage whose digest stands in the report beside unchanged files is up to date and left alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from normdeploy import __version__
from normdeploy.building.build_files import Outputs, Stage, previous_report, write_report
from normdeploy.building.export_step import export_step, versions
from normdeploy.building.measure_step import measure_step
from normdeploy.building.quantize_step import quantize_step
from normdeploy.building.train_step import train_where_needed, with_weights_in
from normdeploy.errors import OutputExistsError, kept_when_stopped
from normdeploy.files import sha256_file
from normdeploy.nn.weight_shards import weights_sha256
from normdeploy.parsing.recipe import QuantizeSection, Recipe
from normdeploy.report import console
from normdeploy.report.build_report import print_build
from normdeploy.runtime import plan_path, this_machine
from normdeploy.train import provenance


def build(
    recipe: Recipe,
    *,
    out: Path | None = None,
    device: str = "auto",
    train: bool = False,
    force: bool = False,
    stage: Stage | None = None,
) -> dict[str, Any]:
    """Build ``recipe``: train, inspect, export, fold, verify, tune, measure, report; what is up to date is left alone.

    Args:
        recipe: see `normdeploy.parsing.recipe.load_recipe`.
        out: folder for the outputs, new weights among them; made if missing. By default they go beside the recipe, and
            weights where the recipe says.
        device: where to train: "auto", "cpu" or "cuda".
        train: train even if the weights are up to date.
        force: export, verify and measure even if all is up to date, and replace an ONNX file that build did not make.
        stage: shows what is at work; nothing does by default.

    Returns:
        the report, as it stands in NAME.report.json; its ``status`` is the verdict's: "pass", "weak" or
        "not-exercised".

    Raises:
        UsageError: an output cannot be written.
        OutputExistsError: there is an ONNX file at the output path that no report accounts for.
        ModelError: the model, its data or its weights are unusable, or inspection finds errors.
        VerificationError: the export is not proven equal; the report says why, and no ONNX file is left.
    """
    outputs = Outputs.of(recipe, out)
    previous = previous_report(outputs)
    strangers = [path for path in (*outputs.proven, outputs.report, outputs.page) if path.exists() and previous is None]
    if recipe.quantize is not None and "quantized" not in (previous or {}):
        strangers += [path for path in outputs.proven_quantized if path.exists()]
    if recipe.tune is not None and "plan" not in (previous or {}):
        strangers += [path for path in (plan_path(outputs.onnx),) if path.exists()]
    if strangers and not force and not outputs.left_unfinished():
        raise OutputExistsError(
            f"{strangers[0]} exists and no report of a build accounts for it; "
            "expected a free path: move it, choose another --out, or pass --force"
        )
    recipe = with_weights_in(recipe, out, again=train)
    kept: list[str] = []
    words = "stay; the same command goes on from there"
    with outputs.begun(), kept_when_stopped(lambda: f"{' and '.join(kept)} {words}" if kept else ""):
        train_where_needed(recipe, device=device, again=train)
        kept.append(str(recipe.weights_path))
        stages = dict(previous["stages"]) if previous and not force else {}
        export_digest = _export_digest(recipe)
        intact = (
            previous is not None and outputs.onnx.is_file() and sha256_file(outputs.onnx) == previous["onnx_sha256"]
        )
        if previous is not None and intact and stages.get("export") == export_digest:
            report = previous
            console.print_step("export", f"{outputs.onnx} is up to date (verdict: {report['status']})", fresh=True)
        else:
            if previous is not None and outputs.onnx.is_file() and not intact:
                console.print_step("export", f"{outputs.onnx} changed since its report: exporting again")
            report = export_step(recipe, outputs, stage or _show_nothing)
            report["stages"]["export"] = export_digest
            write_report(outputs, report)  # now: a build killed while measuring goes on from here
            stages = {}
        kept.append(str(outputs.onnx))
        measure_digest = _digest(
            [report["onnx_sha256"], dataclasses.asdict(recipe.bench), _tune_table(recipe), this_machine().to_dict()]
        )
        if stages.get("measure") == measure_digest and outputs.page.is_file():
            console.print_step("measure", "latency, accuracy and report are up to date", fresh=True)
        else:
            measure_step(recipe, outputs, report, stage or _show_nothing)
            report["stages"]["measure"] = measure_digest
            write_report(outputs, report)
            stages.pop("quantize", None)  # its float file is another one
        if recipe.quantize is not None:
            wanted = _quantize_digest(recipe, recipe.quantize, report)
            if stages.get("quantize") == wanted and _intact_quantized(outputs, report):
                console.print_step("quantize", f"{outputs.quantized} is up to date", fresh=True)
            else:
                quantize_step(recipe, recipe.quantize, outputs, report, stage or _show_nothing, device=device)
                report["stages"]["quantize"] = wanted
                write_report(outputs, report)
            kept.append(str(outputs.quantized))
        elif report.pop("quantized", None) is not None:
            write_report(outputs, report)
    print_build(report)
    console.print_step("report", str(outputs.page))
    return report


def _export_digest(recipe: Recipe) -> str:
    return _digest(
        [
            provenance.of_recipe(recipe, None),
            weights_sha256(recipe.weights_path),
            [recipe.model.weights_key, recipe.model.allow_missing],
            dataclasses.asdict(recipe.export),
            dataclasses.asdict(recipe.verify),
            __version__,
            versions(),
        ]
    )


def _quantize_digest(recipe: Recipe, table: QuantizeSection, report: dict[str, Any]) -> str:
    tables = [dataclasses.asdict(part) for part in (table, recipe.train, recipe.export, recipe.verify, recipe.bench)]
    return _digest([report["onnx_sha256"], weights_sha256(recipe.weights_path), *tables, this_machine().to_dict()])


def _intact_quantized(outputs: Outputs, report: dict[str, Any]) -> bool:
    """Tell whether the quantized file is the one that the report speaks of."""
    path = outputs.quantized
    return path.is_file() and sha256_file(path) == report.get("quantized", {}).get("sha256")


def _tune_table(recipe: Recipe) -> dict[str, Any] | None:
    return dataclasses.asdict(recipe.tune) if recipe.tune else None


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


@contextmanager
def _show_nothing(_name: str) -> Iterator[Callable[[str], None]]:
    yield lambda _step: None
