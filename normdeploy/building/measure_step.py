"""The step that measures: sizes, latency side by side, quality, and the plan where one was asked for."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normdeploy.building.build_files import Outputs, Stage, write_report
from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.building.report_numbers import bench_inputs, file_facts, latency_table, profile_facts, quality_table
from normdeploy.exporting.module.mode import evaluation_mode
from normdeploy.parsing.examples import Example
from normdeploy.parsing.recipe import Recipe
from normdeploy.report import console
from normdeploy.runtime import load, this_machine
from normdeploy.runtime import tune as run_tuner
from normdeploy.runtime.module_peers import plain_export
from normdeploy.train import from_recipe
from normdeploy.train.data import Splits
from normdeploy.train.preprocess import as_raw

_CALIBRATION = 1024  # samples that the tuner sees: enough for ranges, and held in memory


def measure_step(recipe: Recipe, outputs: Outputs, report: dict[str, Any], stage: Stage) -> None:
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
            timed_inputs(recipe, example, splits),
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
        write_report(outputs, report)  # now: the plan is accounted for by it
        console.print_step("tune", plan.summary().splitlines()[0])


def timed_inputs(recipe: Recipe, example: Example, splits: Splits | None) -> Mapping[str, Any]:
    """Return what is timed: a batch of the test split, or the example."""
    if splits is not None:
        return bench_inputs(splits.test, example.input_names, recipe.bench.batch_size)
    return {name: tensor.numpy() for name, tensor in example.named().items()}
