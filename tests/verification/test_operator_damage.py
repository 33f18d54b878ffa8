"""An operator that makes something else of the same operands: not confirmed, unless it makes the same after all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from graph_damage import Damaged
from operator_damage import operator_damages
from torch import nn

from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.errors import GraphError
from normdeploy.exporting.trace import Traced, trace
from normdeploy.graph import load_graph, save_graph
from normdeploy.parsing.recipe import load_recipe
from normdeploy.rewrite import RewriteResult, rewrite
from normdeploy.verification import verify
from normdeploy.verification.checks.by_algebra import assignments
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.hints import unchanged
from normdeploy.verification.samples.families import make_families
from normdeploy.verification.samples.ranges import InputRange, input_specs

RECIPES = Path(__file__).parents[2] / "export"
SMALL = ("lenet", "mlp_plain_norm", "cnn_view_norm", "digits_cnn")
PLAIN = [
    pytest.param(name, False, marks=[pytest.mark.slow] * (name in ("lenet", "mlp_plain_norm")))
    for name in SMALL  # each damage of each operator that these two hold is done to the other files, too
]


@dataclass
class Network:
    model: nn.Module
    args: tuple[torch.Tensor, ...]
    traced: Traced
    rewritten: RewriteResult
    specs: list[InputRange]

    def written(self, folder: Path, *, folded: bool) -> Path:
        graph = (self.rewritten.model if folded else self.traced.model).clone()
        return save_graph(graph, folder / "net.onnx", overwrite=True)


@cache
def network(name: str) -> Network:
    settings = load_recipe(RECIPES / f"{name}.toml")
    model = load_trained(settings)
    example = recipe_example(settings, model)
    given = {"input_names": example.input_names, "dynamic_shapes": example.dynamic_shapes}
    traced = trace(model, example.args, kwargs=example.kwargs, **given)
    rewritten = rewrite(traced.model)
    feeds = {key: tensor.numpy() for key, tensor in example.named().items()}
    return Network(model, example.args, traced, rewritten, input_specs(traced.model, feeds))


def results(path: Path, specs: list[InputRange]) -> list[np.ndarray] | None:
    """Run a file as it is written on inputs of two sizes; None where onnxruntime refuses it."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    found: list[np.ndarray] = []
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for seed in (0, 1):
            for family in list(make_families(specs, seed=seed))[:3]:
                found += session.run(None, dict(family.feeds))
    except Exception:  # onnxruntime raises its own classes
        return None
    return found


def damaged_files(right: Path) -> Iterator[tuple[Damaged, Path]]:
    proto = onnx.load(str(right))
    for damaged in operator_damages(proto, first_only=True):
        path = right.with_name("damaged.onnx")
        onnx.save(damaged.model, str(path))
        yield damaged, path


def same(a: list[np.ndarray] | None, b: list[np.ndarray] | None) -> bool:
    if a is None or b is None:
        return a is b
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("name", "folded"), [*((name, True) for name in SMALL), *PLAIN])
def test_what_is_confirmed_computes_the_same_bits(name: str, folded: bool, tmp_path: Path):
    net = network(name)
    hints = net.rewritten.derivation if folded else unchanged(net.traced.model)
    file, sizes = net.written(tmp_path, folded=folded), assignments(net.specs)
    right, tried, wrong = results(file, net.specs), 0, []
    source = Side(net.traced.model, sizes)
    for damaged, path in damaged_files(file):
        try:
            report = check_derivation(source, load_graph(path), hints, sizes)
        except GraphError:  # refused before any question is asked
            continue
        tried += 1
        if report.confirmed and not same(right, results(path, net.specs)):
            wrong.append(f"{damaged.kind} at {damaged.where}")
    assert wrong == []
    assert tried >= 15


@pytest.mark.parametrize("folded", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["folded", "plain"])
def test_no_such_file_passes_without_a_name(folded: bool, tmp_path: Path):
    net = network("mlp_plain_norm")
    file = net.written(tmp_path, folded=folded)
    right, passed = results(file, net.specs), []
    for damaged, path in damaged_files(file):
        given = {"args": net.args, "traced": net.traced, "rewritten": net.rewritten}
        verdict = verify(net.model, path, level="quick", **given)
        if verdict.passed and not same(right, results(path, net.specs)):
            passed.append(f"{damaged.kind} at {damaged.where}")
    assert passed == []
