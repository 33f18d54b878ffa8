"""Every reference model, exported by its recipe, is equivalent to its eager self: three lines a user could write."""

from __future__ import annotations

from pathlib import Path

import pytest

import normdeploy as nd
from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.exporting.trace import Traced
from normdeploy.parsing.recipe import load_recipe
from normdeploy.testing import assert_equivalent

RECIPES = sorted((Path(__file__).parents[2] / "export").glob("*.toml"))
# normalizations that algebra cannot remove: pre-activation, with the operator that stands in the way
KEPT = {"tabular": {"centre the data"}}
# what makes the image's integers: it reads floats from outside
QUANTIZERS = {
    "digits_binary": "it reads what the graph is given",
    "digits_int4": "the graph input 'image' is given",
    "digits_int8": "it reads what the graph is given",
}


def _export(recipe, model, path):
    example = recipe_example(recipe, model)
    result = nd.export(
        model,
        example.args,
        path,
        kwargs=example.kwargs,
        input_names=None if example.kwargs else example.input_names,
        dynamic_shapes=example.dynamic_shapes,
        verify=False,
        integer=recipe.export.integer,
    )
    return result, example


def trace_of(result):
    """Return the trace of an export, which the verifier need not make again."""
    inputs, outputs = ([str(v.name) for v in ends] for ends in (result.plain.graph.inputs, result.plain.graph.outputs))
    return Traced(result.plain, 0.0, inputs, outputs, {})


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_export_is_equivalent_and_accounts_for_every_norm(path, tmp_path):
    recipe = load_recipe(path)
    model = load_trained(recipe)
    result, example = _export(recipe, model, tmp_path / "net.onnx")
    assert len(result.ledger) >= 1
    behind = KEPT.get(path.stem, set())
    kept = [row for row in result.ledger.kept if QUANTIZERS.get(path.stem, "\0") not in row.reason]
    assert len(result.ledger.kept) - len(kept) == (path.stem in QUANTIZERS)
    for row in kept:
        assert any(operator in row.reason for operator in behind), (row.where, row.reason)
    assert bool(kept) == bool(behind)
    left = {node.op_type for node in result.program.graph}
    assert ("BatchNormalization" in left) == bool(behind)
    known = {"kwargs": example.kwargs, "level": "quick", "traced": trace_of(result)}
    verdict = assert_equivalent(model, tmp_path / "net.onnx", args=example.args, **known)
    assert verdict.check("derivation").status == "pass", verdict.summary()  # each operator, for every input


@pytest.mark.slow
@pytest.mark.parametrize("level", ["default", "thorough"])
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_export_is_equivalent_at_every_level(path, level, tmp_path):
    recipe = load_recipe(path)
    model = load_trained(recipe)
    _, example = _export(recipe, model, tmp_path / "net.onnx")
    assert_equivalent(model, tmp_path / "net.onnx", args=example.args, kwargs=example.kwargs, level=level)


def test_the_suite_fails_for_another_models_file(tmp_path):
    """The suite's own check can fail: one trained model against the file of the same network with other weights."""
    recipe = load_recipe(next(path for path in RECIPES if path.stem == "digits_cnn"))
    model = load_trained(recipe)
    _, example = _export(recipe, model, tmp_path / "net.onnx")
    other = load_trained(recipe)
    other.classifier[2].running_mean[3] += 1e-3
    with pytest.raises(AssertionError, match="FAIL"):
        assert_equivalent(other, tmp_path / "net.onnx", args=example.args, level="quick")
