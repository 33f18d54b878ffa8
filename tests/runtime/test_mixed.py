"""int8 with some operators left in float32: which are given up, and how many."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from normdeploy.graph import Evaluator
from normdeploy.ort.settings import Settings
from normdeploy.runtime import load, this_machine, tune
from normdeploy.runtime.backend import open_backend
from normdeploy.runtime.tuning import tuning_search, variants
from normdeploy.runtime.tuning.int8 import INT8_RECIPES, Quantizer
from normdeploy.runtime.tuning.judge import Outcome
from normdeploy.runtime.tuning.mixed import fewest_kept, rank_by_loss

RECIPE = INT8_RECIPES[1]  # linear layers only


@pytest.fixture
def uneven(write_model):
    """Four layers; the third's input has one channel a thousand times larger than the others, which carry the sum."""
    draw = np.random.default_rng(5)
    weights = {f"W{index}": (draw.normal(size=(16, 16)) / 4).astype(np.float32) for index in (1, 2, 3, 4)}
    weights["W2"][:, 0] *= 1000
    weights["W3"][0] /= 1000
    return write_model(
        """n (float[batch, 16] x) => (float[batch, 16] y) {
            a1 = MatMul(x, W1) r1 = Relu(a1)
            a2 = MatMul(r1, W2) r2 = Relu(a2)
            a3 = MatMul(r2, W3) r3 = Relu(a3)
            y = MatMul(r3, W4)
        }""",
        weights,
        "uneven.onnx",
    )


def _rows(count: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, 16)).astype(np.float32)


def _quantizer(path: Path) -> Quantizer:
    return Quantizer(path, [{"x": _rows(64)}], this_machine())


def _kept_in_float(path: Path) -> list[str]:
    """Return the weights that stayed float32."""
    floats = [t.name for t in onnx.load(path).graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims]
    return [name for name in floats if name in ("W1", "W2", "W3", "W4")]


def test_the_operator_that_loses_most_comes_first(uneven, tmp_path):
    quantizer = _quantizer(uneven)
    names = quantizer.operators(RECIPE)
    assert len(names) == 4
    ranked = rank_by_loss(uneven, quantizer, RECIPE, {"x": _rows(64)}, tmp_path, seconds=60)
    assert sorted(ranked) == sorted(names)
    # independently: the loss with one operator quantized, in float64 through torch
    x = _rows(32)
    truth = next(iter(Evaluator(ir.load(uneven)).run({"x": x}).values())).numpy()
    losses = {}
    for name in names:
        quantizer.write(tmp_path / "one.onnx", RECIPE, only=[name])
        found = open_backend(tmp_path / "one.onnx", Settings(optimization="disable")).run({"x": x})[0]
        losses[name] = np.linalg.norm(found - truth)
    for worse, better in pairwise(ranked):  # on other rows, close losses may swap
        assert losses[worse] > 0.7 * losses[better], losses
    assert ranked[0] == names[2]  # it reads the wide channel
    assert losses[ranked[0]] > 5 * losses[ranked[1]]


def test_linear_layers_alone_write_float32(uneven, tmp_path):
    quantizer = _quantizer(uneven)
    quantizer.write(tmp_path / "linear.onnx", RECIPE)
    kinds = [node.op_type for node in onnx.load(tmp_path / "linear.onnx").graph.node]
    assert kinds.count("QuantizeLinear") == kinds.count("MatMul") == 4  # each layer's input, no output


def test_without_time_the_order_of_the_graph_is_kept(uneven, tmp_path):
    quantizer = _quantizer(uneven)
    ranked = rank_by_loss(uneven, quantizer, RECIPE, {"x": _rows(64)}, tmp_path, seconds=-1)
    assert ranked == quantizer.operators(RECIPE)


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_no_more_operators_are_kept_than_needed(uneven, tmp_path, needed):
    quantizer = _quantizer(uneven)
    names = quantizer.operators(RECIPE)

    def judge(file: Path) -> Outcome:
        return Outcome(len(_kept_in_float(file)) >= needed, "int8")

    attempts = fewest_kept(quantizer, RECIPE, names, tmp_path, judge, deadline=time.monotonic() + 60)
    best = [attempt for attempt in attempts if attempt.outcome.accepted][-1]
    assert (best.kept, best.total) == (needed, 4)
    assert _kept_in_float(best.file) == [f"W{index + 1}" for index in range(needed)]
    assert len(attempts) <= 2


def test_nothing_is_tried_after_the_deadline(uneven, tmp_path):
    quantizer = _quantizer(uneven)
    names = quantizer.operators(RECIPE)
    assert fewest_kept(quantizer, RECIPE, names, tmp_path, lambda _: 1 / 0, deadline=time.monotonic() - 1) == []


def test_tuning_keeps_operators_where_int8_alone_loses_too_much(uneven, monkeypatch):
    cpu = [provider for provider in tuning_search.find_providers() if provider.name == "CPUExecutionProvider"]
    monkeypatch.setattr(tuning_search, "find_providers", lambda: cpu)
    monkeypatch.setattr(variants, "WORTH", 1e9)  # whatever it gains on this machine
    rows = _rows(300)
    plan = tune(uneven, data=rows, budget="rel=3%", seconds=0.2)
    whole = [trial for trial in plan.trials if trial.name.startswith("int8:")]
    assert whole
    assert all(trial.status == "rejected" for trial in whole)
    mixed = [trial for trial in plan.trials if "operators in float32: " in trial.name]
    assert mixed
    assert all(trial.status in ("accepted", "chosen") and trial.loss["rel"] <= 0.03 for trial in mixed)
    # the plan's number, found again with the plan's file where that was chosen
    x = rows[:50]
    truth = next(iter(Evaluator(ir.load(uneven)).run({"x": x}).values())).numpy()
    found = load(uneven, plan=plan).batched(x)
    assert np.linalg.norm(found - truth) < 0.04 * np.linalg.norm(truth)


def test_the_operators_left_in_float32_are_left_in_either_form(uneven, monkeypatch):
    """With biases there are two ways to write the same choice, and both are tried."""
    model = onnx.load(uneven)
    nodes = []
    for node in model.graph.node:
        if node.op_type == "MatMul":
            bias = onnx.numpy_helper.from_array(np.full(16, 0.1, np.float32), f"{node.output[0]}_bias")
            model.graph.initializer.append(bias)
            result, node.output[0] = node.output[0], f"{node.output[0]}_product"
            nodes += [node, onnx.helper.make_node("Add", [node.output[0], bias.name], [result])]
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, uneven)
    cpu = [provider for provider in tuning_search.find_providers() if provider.name == "CPUExecutionProvider"]
    monkeypatch.setattr(tuning_search, "find_providers", lambda: cpu)
    monkeypatch.setattr(variants, "WORTH", 1e9)
    plan = tune(uneven, data=_rows(300), budget="rel=3%", seconds=0.2)
    mixed = [trial for trial in plan.trials if "operators in float32: " in trial.name]
    within = {trial.name.split(": ")[0] for trial in mixed if trial.loss["rel"] <= 0.03}
    linear = {name for name in within if name.startswith("int8, linear layers")}
    assert {", ".join(name.split(", ")[:2]) for name in linear} == {  # biases corrected or not
        "int8, linear layers only",
        "int8, linear layers with their bias",
    }
    assert len({name.rsplit(", ", 1)[1] for name in linear}) == 1  # as many operators are left
    assert any(name not in linear for name in within)  # of all operators likewise
