"""``normdeploy build``: a recipe, from training to the proven file and its report.

Two stages follow the training, each with a digest of all that decides its result: "export" (weights, sources, [export]
and [verify] tables, versions) and "measure" (the exported file, [bench] table, machine). A stage whose digest stands
in the report beside unchanged files is up to date and left alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normdeploy import __version__, api
from normdeploy.errors import (
    ModelError,
    OutputExistsError,
    RecipeError,
    UsageError,
    VerificationError,
    WeightsError,
    kept_when_stopped,
)
from normdeploy.exporting.guess import guess_inputs
from normdeploy.exporting.mode import evaluation_mode
from normdeploy.exporting.weights import load_weights
from normdeploy.files import sha256_file, write_text
from normdeploy.inputs import Example, make_example, parse_inputs
from normdeploy.installed import BUILDS, version_of
from normdeploy.measure import (
    bench_inputs,
    file_facts,
    latency_table,
    network_facts,
    node_facts,
    profile_facts,
    quality_table,
)
from normdeploy.nn.weight_files import read_metadata, read_weights
from normdeploy.recipe import Recipe
from normdeploy.report import console
from normdeploy.report.build import build_page, print_build
from normdeploy.report.page import render_page
from normdeploy.runtime import load, plan_path, this_machine
from normdeploy.runtime import tune as run_tuner
from normdeploy.runtime.module_peers import plain_export
from normdeploy.sources import build as build_model
from normdeploy.train import from_recipe, provenance
from normdeploy.train.data import Splits
from normdeploy.train.preprocess import Preprocessed, as_raw
from normdeploy.verification.record.certificate import certificate_path
from normdeploy.verification.record.kept import derivation_path

SCHEMA = 1
_CALIBRATION = 1024  # samples that the tuner sees: enough for ranges, and held in memory
Stage = Callable[[str], AbstractContextManager[Callable[[str], None]]]
"""Opens what shows a stage of the given name at work; inside it, a function takes what it is at."""
_VERSIONED = ("torch", "onnx", "onnx-ir", "onnxscript", *BUILDS, "numpy")


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The files a build writes."""

    onnx: Path
    report: Path
    page: Path

    @property
    def proven(self) -> tuple[Path, ...]:
        """The ONNX file and what is written with it: they appear, and go, together."""
        return self.onnx, certificate_path(self.onnx), derivation_path(self.onnx)

    @classmethod
    def of(cls, recipe: Recipe, out: Path | None) -> Outputs:
        """Name the outputs beside the recipe, or in ``out``.

        Raises:
            UsageError: ``out`` is no folder.
        """
        folder = recipe.folder if out is None else out
        if not folder.is_dir() and (folder.exists() or not folder.parent.is_dir()):
            raise UsageError(f"--out {folder} is no folder and cannot be made one; expected a folder: create it")
        folder.mkdir(exist_ok=True)
        return cls(*(folder / f"{recipe.name}{suffix}" for suffix in (".onnx", ".report.json", ".report.html")))


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
        recipe: see `normdeploy.recipe.load_recipe`.
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
    previous = _previous_report(outputs)
    strangers = [path for path in (*outputs.proven, outputs.report, outputs.page) if path.exists() and previous is None]
    if recipe.tune is not None and "plan" not in (previous or {}):
        strangers += [path for path in (plan_path(outputs.onnx),) if path.exists()]
    if strangers and not force:
        raise OutputExistsError(
            f"{strangers[0]} exists and no report of a build accounts for it; "
            "expected a free path: move it, choose another --out, or pass --force"
        )
    recipe = _with_weights_in(recipe, out, again=train)
    kept: list[str] = []
    with kept_when_stopped(lambda: f"{' and '.join(kept)} stay; the same command goes on from there" if kept else ""):
        _train(recipe, device=device, again=train)
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
            report = _export(recipe, outputs, stage or _quiet)
            report["stages"]["export"] = export_digest
            _write_report(outputs, report)  # now: a build killed while measuring goes on from here
            stages = {}
        kept.append(str(outputs.onnx))
        measure_digest = _digest(
            [report["onnx_sha256"], dataclasses.asdict(recipe.bench), _tune_table(recipe), this_machine().to_dict()]
        )
        if stages.get("measure") == measure_digest and outputs.page.is_file():
            console.print_step("measure", "latency, accuracy and report are up to date", fresh=True)
        else:
            _measure(recipe, outputs, report, stage or _quiet)
            report["stages"]["measure"] = measure_digest
            _write_report(outputs, report)
    print_build(report)
    console.print_step("report", str(outputs.page))
    return report


@contextmanager
def _quiet(_name: str) -> Iterator[Callable[[str], None]]:
    yield lambda _step: None


def _with_weights_in(recipe: Recipe, out: Path | None, *, again: bool) -> Recipe:
    """Return the recipe with its weights in ``out``, where they are there or will be made: the recipe's own stay.

    The recipe's own are used as they are while they are up to date and no training was asked for.
    """
    if out is None or recipe.data is None:
        return recipe
    own = out.absolute() / Path(recipe.model.weights).name
    if not own.is_file() and not again and recipe.weights_path.is_file():
        recorded = provenance.from_header(_metadata(recipe))
        if recorded is None or recorded == provenance.of_recipe(recipe, from_recipe.recipe_data(recipe)):
            return recipe
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, weights=str(own)))


def _train(recipe: Recipe, *, device: str, again: bool) -> None:
    """Train where the weights are missing or stale.

    Raises:
        RecipeError: they are missing and the recipe has no data to train on.
    """
    path, here = recipe.weights_path, Path.cwd()
    shown = Path(recipe.model.weights)  # as the recipe says, or where --out lies, seen from here
    shown = shown.relative_to(here) if shown.is_relative_to(here) else shown
    if path.is_file() and not again:
        recorded = provenance.from_header(_metadata(recipe))
        if recorded is None:  # somebody's own: hours of theirs, perhaps, and never replaced unless asked
            text = f"{shown} was not trained by a recipe: used as it is"
            if recipe.data is not None:
                text += " (--train trains anew and replaces it)"
            console.print_step("train", text, fresh=True)
            return
        wanted = recorded if recipe.data is None else provenance.of_recipe(recipe, from_recipe.recipe_data(recipe))
        if recorded == wanted:
            console.print_step("train", f"{shown} is up to date", fresh=True)
            return
        why = f"is stale: {provenance.summarize(provenance.changes(recorded, wanted))}"
        console.print_step("train", f"{shown} {why}: training again")
    elif recipe.data is None:
        raise RecipeError(
            f"{recipe.path}: {recipe.model.weights} does not exist and there is no [data] to train on; "
            "expected either: put the weights there or add [data]"
        )
    else:
        console.print_step("train", f"making {shown}")
    console.print_training(from_recipe.train(recipe, device=device, again=again, overwrite=again).metadata())


def _export(recipe: Recipe, outputs: Outputs, stage: Stage) -> dict[str, Any]:
    """Inspect, export, fold and verify; return the report so far.

    Raises:
        VerificationError: after writing a report that says why and removing an older ONNX file of this build.
    """
    understood: list[str] = []
    model = load_trained(recipe, notes=understood)
    example = recipe_example(recipe, model, notes=understood)
    console.print_notes(understood)
    args = (*example.args, *([example.kwargs] if example.kwargs else []))
    with stage("inspect"):
        findings = [finding.to_dict() for finding in api.inspect(model, args)]
    console.print_step("inspect", f"{len(findings)} findings" if findings else "nothing wrong or risky found")
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
        "versions": _versions(),
        "training": _training_facts(recipe),
        "findings": findings,
        "onnx_sha256": None,
        "stages": {},
    }
    try:
        with stage("export") as tell:
            result = api.export(
                model,
                example.args,
                outputs.onnx,
                kwargs=example.kwargs,
                input_names=None if example.kwargs else example.input_names,
                output_names=list(recipe.export.outputs) or None,
                dynamic_shapes=example.dynamic_shapes,
                opset_version=recipe.export.opset,
                fold=recipe.export.fold,
                approximate=recipe.export.approximate,
                verify=recipe.verify.level,
                seed=recipe.verify.seed,
                overwrite=True,
                progress=lambda name, share: tell(f"{name} ({share:.0%})" if share else name),
            )
    except VerificationError as error:
        for path in outputs.proven:
            path.unlink(missing_ok=True)
        report |= {"status": error.verdict.status, "verdict": error.verdict.to_dict(), "ledger": None}
        _write_report(outputs, report)
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


def _measure(recipe: Recipe, outputs: Outputs, report: dict[str, Any], stage: Stage) -> None:
    """Fill in graph sizes, latency side by side, quality on the test split, and the plan where one was asked for."""
    model = load_trained(recipe)
    example = recipe_example(recipe, model)
    splits = from_recipe.recipe_data(recipe) if recipe.data else None
    splits = as_raw(splits) if splits is not None and recipe.export.preprocess else splits
    with tempfile.TemporaryDirectory() as folder, stage("measure") as tell:
        tell("exporting as torch does by default")
        specs = load(outputs.onnx).inputs
        feeds = {name: tensor.numpy() for name, tensor in example.named().items()}
        with evaluation_mode(model):
            plain = plain_export(model, feeds, specs, Path(folder))
        tell("timing eager torch, plain export and ours")
        report["graph"] |= {"plain": file_facts(plain), "ours": file_facts(outputs.onnx)}
        report["profile"] = profile_facts(outputs.onnx, feeds)
        report["latency"] = latency_table(
            model,
            {"plain export": plain, "normdeploy": outputs.onnx},
            _bench_inputs(recipe, example, splits),
            recipe.bench,
        )
    console.print_step("measure", "latency of eager torch, plain export and ours, interleaved")
    report["quality"] = quality_table(model, outputs.onnx, splits) if splits is not None else None
    report["machine"] = this_machine().to_dict()
    if recipe.tune is not None:
        calibration = None
        if splits is not None:
            calibration = {example.input_names[0]: splits.valid.head(_CALIBRATION).inputs.numpy()}
        with stage("tune") as tell:
            plan = run_tuner(
                outputs.onnx,
                data=calibration,
                budget=recipe.tune.budget,
                opponent=model,
                overwrite=True,
                progress=tell,
            )
        report["plan"] = json.loads(plan.to_json())
        _write_report(outputs, report)  # now: the plan is accounted for by it
        console.print_step("tune", plan.summary().splitlines()[0])


def load_trained(recipe: Recipe, *, notes: list[str] | None = None) -> nn.Module:
    """Build the recipe's model and load its trained weights, in evaluation mode, as it is deployed.

    With ``preprocess = true`` the standardization of its data stands in front of it.

    Args:
        recipe: see `normdeploy.recipe.load_recipe`.
        notes: appended to where something about the weights was understood, chosen or left.

    Raises:
        SourceError: the model cannot be built.
        WeightsError: the weights are missing or do not fit.
    """
    table, told = recipe.model, [] if notes is None else notes
    model: nn.Module = build_model(table.source, table.arguments, folder=recipe.folder)
    try:
        given = read_weights(recipe.weights_path, unsafe_pickle=table.unsafe_pickle, key=table.weights_key, notes=told)
        absent = load_weights(model, given, allow_missing=table.allow_missing, notes=told, origin=table.weights)
    except WeightsError as error:
        raise WeightsError(f"{table.weights}: {error}") from error
    if absent:
        told.append(f"not in {table.weights}, used as the constructor leaves them: {', '.join(absent[:6])}")
    if not recipe.export.preprocess:
        return model.eval()
    by = from_recipe.recipe_data(recipe).standardization if recipe.data is not None else None
    if by is None:
        raise RecipeError(
            f"{recipe.path}: key export.preprocess is true and the data is not standardized; expected files with "
            "standardize = true under [data], or Splits with a standardization: leave preprocess out"
        )
    return Preprocessed(model, by).eval()


def recipe_example(recipe: Recipe, model: nn.Module, *, notes: list[str] | None = None) -> Example:
    """Make example arguments from ``[export] inputs``, or from the test split with a dynamic batch.

    Without either they are guessed from the model (`normdeploy.exporting.guess`).

    Args:
        recipe: see `normdeploy.recipe.load_recipe`.
        model: takes them.
        notes: appended to where they were guessed.

    Raises:
        InputError: there are neither, and nothing that was tried runs.
    """
    if recipe.export.inputs:
        return make_example(parse_inputs(recipe.export.inputs), model)
    if recipe.data is None:
        guess = guess_inputs(model)
        if notes is not None:
            listed = ", ".join(f'"{spec}"' for spec in guess.inputs)
            notes.append(f"inputs are guessed ({guess.why}); write others under [export]: inputs = [{listed}]")
        return make_example(guess.inputs, model)
    data = from_recipe.recipe_data(recipe)
    inputs = (as_raw(data) if recipe.export.preprocess else data).test.head(2).inputs
    return Example((inputs,), {}, ["input"], ({0: torch.export.Dim("batch")},))


def _bench_inputs(recipe: Recipe, example: Example, splits: Splits | None) -> Mapping[str, Any]:
    if splits is not None:
        return bench_inputs(splits.test, example.input_names, recipe.bench.batch_size)
    return {name: tensor.numpy() for name, tensor in example.named().items()}


def _metadata(recipe: Recipe) -> dict[str, str]:
    return read_metadata(recipe.weights_path, unsafe_pickle=recipe.model.unsafe_pickle)


def _training_facts(recipe: Recipe) -> dict[str, str]:
    hidden = {provenance.TRAINED_BY, "settings"}
    facts = _metadata(recipe)
    return {key: value for key, value in facts.items() if key not in hidden}


def _previous_report(outputs: Outputs) -> dict[str, Any] | None:
    """Return the report of the last build, or None where there is none of this version's layout."""
    if not outputs.report.is_file():
        return None
    try:
        report = json.loads(outputs.report.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return None
    known = isinstance(report, dict) and report.get("schema") == SCHEMA
    return report if known else None


def _write_report(outputs: Outputs, report: dict[str, Any]) -> None:
    write_text(outputs.report, json.dumps(report, indent=1, allow_nan=False) + "\n", overwrite=True)
    write_text(outputs.page, render_page(build_page(report)), overwrite=True)


def _export_digest(recipe: Recipe) -> str:
    return _digest(
        [
            provenance.of_recipe(recipe, None),
            sha256_file(recipe.weights_path),
            [recipe.model.weights_key, recipe.model.allow_missing],
            dataclasses.asdict(recipe.export),
            dataclasses.asdict(recipe.verify),
            __version__,
            _versions(),
        ]
    )


def _versions() -> dict[str, str]:
    return {name: version for name in _VERSIONED if (version := version_of(name)) is not None}


def _tune_table(recipe: Recipe) -> dict[str, Any] | None:
    return dataclasses.asdict(recipe.tune) if recipe.tune else None


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
