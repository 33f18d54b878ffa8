"""The step that quantizes: trained with fake quantization, exported and proven, beside post-training and float."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from normdeploy.array_types import Array, Floats
from normdeploy.budget import parse_budget
from normdeploy.building.build_files import Outputs, Stage, write_report
from normdeploy.building.measure_step import timed_inputs
from normdeploy.building.recipe_model import export_as_told, load_trained, recipe_example, trace_as_told
from normdeploy.building.report_numbers import RuntimeModule, file_facts, in_batches, latency_table
from normdeploy.errors import VerificationError
from normdeploy.files import sha256_file
from normdeploy.intervals import Interval, resampled, share, share_difference
from normdeploy.parsing.recipe import QuantizeSection, Recipe
from normdeploy.report import console
from normdeploy.runtime import Predictor, Settings, this_machine
from normdeploy.runtime.tuning.int8 import INT8_RECIPES, Quantizer
from normdeploy.train import from_recipe
from normdeploy.train.data import Splits
from normdeploy.train.fake_quantized import train_quantized
from normdeploy.train.preprocess import Preprocessed, as_raw

FLOAT, AFTER, TRAINED = "float32", "int8, post-training", "int8, trained (QAT)"
_CHUNK = 64


def quantize_step(
    recipe: Recipe, table: QuantizeSection, outputs: Outputs, report: dict[str, Any], stage: Stage, *, device: str
) -> None:
    """Train with fake quantization, export and verify NAME.qat.onnx, and compare it with float and post-training.

    Raises:
        ModelError: the network cannot be prepared.
        VerificationError: the file is not what the quantized module computes; the report says why, and it is not left.
    """
    splits = from_recipe.recipe_data(recipe)
    with stage("quantize") as tell:
        tell(f"training {table.epochs} epoch{'s' * (table.epochs != 1)} with fake quantization")
        quantized = _trained(recipe, splits, table, device=device)
        example = recipe_example(recipe, quantized)
        tell("exporting and verifying")
        try:
            traced = trace_as_told(recipe, quantized, example)
            result = export_as_told(recipe, quantized, traced, example, outputs.quantized, tell)
        except VerificationError as error:
            for path in outputs.proven_quantized:
                path.unlink(missing_ok=True)
            report["quantized"] = {"status": error.verdict.status, "verdict": error.verdict.to_dict()}
            write_report(outputs, report)
            console.print_step("report", f"{outputs.page} says why")
            raise
        if result.verdict is None:
            raise AssertionError("export was asked to verify and returned no verdict")
        given = as_raw(splits) if recipe.export.preprocess else splits
        with tempfile.TemporaryDirectory() as folder:
            tell("quantizing the float file after its training")
            after = _after_training(outputs.onnx, given, table, Path(folder))
            files = {FLOAT: outputs.onnx, AFTER: after, TRAINED: outputs.quantized}
            tell("timing and scoring")
            feeds = timed_inputs(recipe, example, given)
            report["quantized"] = {
                "status": result.verdict.status,
                "verdict": result.verdict.to_dict(),
                "ledger": json.loads(result.ledger.to_json()),
                "sha256": sha256_file(outputs.quantized),
                **_quality(files, given),
                "bytes": {name: file_facts(path)["bytes"] for name, path in files.items()},
                "latency": latency_table(load_trained(recipe), files, feeds, recipe.bench),
            }
    console.print_step("quantize", f"{outputs.quantized} (verdict: {result.verdict.status})")


def _trained(recipe: Recipe, splits: Splits, table: QuantizeSection, *, device: str) -> nn.Module:
    """Return the network trained with fake quantization, behind the standardization where the float one is."""
    model = load_trained(recipe)
    inner = model.model if isinstance(model, Preprocessed) else model
    assert isinstance(inner, nn.Module)
    found = train_quantized(inner, splits, recipe.train, table, device=device, show=False)
    if not isinstance(model, Preprocessed):
        return found
    model.model = found
    return model.eval()


def _after_training(path: Path, splits: Splits, table: QuantizeSection, folder: Path) -> Path:
    """Quantize a float file by the ranges of validation samples, its biases corrected."""
    rows = splits.valid.head(table.calibration).inputs.numpy()
    (entry,) = Predictor(path, Settings()).backend.inputs
    chunks = [{entry.name: rows[at : at + _CHUNK]} for at in range(0, len(rows), _CHUNK)]
    target = folder / "after.onnx"
    Quantizer(path, chunks, this_machine()).write(target, INT8_RECIPES[0].with_correction("means"))
    return target


def _quality(files: dict[str, Path], splits: Splits) -> dict[str, Any]:
    """Score files on the test split: quality, what is lost against the first file, and the error of outputs."""
    test, decides = splits.test, splits.task == "classification"
    with torch.no_grad():
        made = {name: in_batches(RuntimeModule(Predictor(path, Settings())), test) for name, path in files.items()}
    outputs = {name: found.double().numpy() for name, found in made.items()}
    targets = test.targets.numpy()
    first = next(iter(outputs))
    rows = []
    for name, found in outputs.items():
        row: dict[str, Any] = {"name": name, "quality": measured(found, targets, decides=decides).to_dict()}
        if name != first:
            row["lost"] = lost(outputs[first], found, targets, decides=decides).to_dict()
        if name == AFTER:  # the trained one is another function by now
            row["error"] = parse_budget("rel=1%").interval([found], [outputs[first]]).to_dict()
        rows.append(row)
    return {"measure": "accuracy" if decides else "R²", "count": len(test), "rows": rows}


def measured(found: Floats, targets: Array, *, decides: bool) -> Interval:
    """Return accuracy, or R², with its interval over the rows."""
    if not decides:
        return resampled(_explained, _squares(found, targets))
    right = found.argmax(-1) == targets
    return share(int(right.sum()), right.size) if right.ndim == 1 else resampled(_mean, _counts(right))


def lost(whole: Floats, found: Floats, targets: Array, *, decides: bool) -> Interval:
    """Return by how much the measure of ``whole`` is above that of ``found``, on the same rows."""
    if not decides:
        both = np.concatenate([_squares(whole, targets), _squares(found, targets)], axis=1)
        return resampled(lambda sums: _explained(sums[..., :2]) - _explained(sums[..., 2:]), both)
    first, second = whole.argmax(-1) == targets, found.argmax(-1) == targets
    if first.ndim == 1:
        return share_difference(first, second)
    both = np.concatenate([_counts(first), _counts(second)], axis=1)
    return resampled(lambda sums: _mean(sums[..., :2]) - _mean(sums[..., 2:]), both)


def _squares(found: Floats, targets: Array) -> Floats:
    """Return per row the squared error, and the square of the targets' distance from their mean."""
    wanted = targets.astype(np.float64).reshape(len(targets), -1)
    error = (found.reshape(len(found), -1) - wanted) ** 2
    return np.stack([error.sum(axis=1), ((wanted - wanted.mean()) ** 2).sum(axis=1)], axis=1)


def _explained(sums: Floats) -> Any:
    return 1 - sums[..., 0] / sums[..., 1]


def _counts(right: npt.NDArray[np.bool_]) -> Floats:
    """Return per row how many places are right, and how many there are: places of one row are not independent."""
    flat = right.reshape(len(right), -1)
    return np.stack([flat.sum(axis=1), np.full(len(flat), flat.shape[1])], axis=1).astype(np.float64)


def _mean(sums: Floats) -> Any:
    return sums[..., 0] / sums[..., 1]
