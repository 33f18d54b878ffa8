"""What is folded of graphs drawn at random computes what it did, whatever hangs together in them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from random_bodies import random_bodies
from random_graphs import random_graph, shapes_of

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

BODIES_FOUND = (126, 1891, 5155, 5442)
"""Seeds of graphs with bodies that once came out wrong, or as a file that does not load."""


def differs(seed: int) -> tuple[float, set[str]]:
    """Return the largest difference after rewriting, relative to each output's size, and what became of the maps."""
    drawn = random_graph(seed)
    onnx.checker.check_model(drawn, full_check=True)
    result = rewrite(ir.from_proto(drawn))
    before, after, worst = Evaluator(ir.from_proto(drawn)), Evaluator(result.model), 0.0
    rng = np.random.default_rng(seed)
    for batch in (1, 5):
        shapes = shapes_of(drawn, batch)
        feeds = {name: torch.from_numpy(rng.normal(size=shape)) for name, shape in shapes.items()}
        found, expected = after.run(feeds), before.run(feeds)
        for name, output in expected.items():
            assert torch.isfinite(output).all()
            top = float(output.abs().max())
            worst = max(worst, float((output - found[name]).abs().max()) / max(top, 1e-300))
    return worst, {row.action for row in result.ledger}


@pytest.mark.parametrize("start", range(0, 60, 10))
def test_a_random_graph_computes_what_it_did(start):
    actions: set[str] = set()
    for seed in range(start, start + 10):
        worst, found = differs(seed)
        assert worst <= 1e-9, seed
        actions |= found
    assert {"folded", "kept"} <= actions


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 3000, 100))
def test_two_thousand_random_graphs_compute_what_they_did(start):
    for seed in range(start, start + 100):
        assert differs(seed)[0] <= 1e-9, seed


def bodies_differ(seed: int) -> float:
    """Return the largest difference after rewriting a graph with bodies; both files load in onnxruntime."""
    drawn = random_bodies(seed)
    onnx.checker.check_model(drawn, full_check=True)
    result = rewrite(ir.from_proto(drawn))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for model in (drawn, ir.to_proto(result.model)):
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    before, after, worst = Evaluator(ir.from_proto(drawn)), Evaluator(result.model), 0.0
    rng = np.random.default_rng(seed)
    tokens = [dim.dim_value for dim in drawn.graph.input[0].type.tensor_type.shape.dim[1:]]
    for flag in (False, True):
        feeds = {"x": torch.from_numpy(rng.normal(size=(2, *tokens))), "flag": torch.tensor(flag)}
        found, expected = after.run(feeds), before.run(feeds)
        for name, output in expected.items():
            assert torch.equal(torch.isfinite(output), torch.isfinite(found[name]))
            one, other = (torch.nan_to_num(value, 0.0, 0.0, 0.0) for value in (output, found[name]))
            worst = max(worst, float((one - other).abs().max()) / max(float(one.abs().max()), 1e-300))
    return worst


@pytest.mark.parametrize("seeds", [BODIES_FOUND, *(range(start, start + 10) for start in range(0, 30, 10))], ids=str)
def test_a_graph_with_bodies_computes_what_it_did(seeds):
    for seed in seeds:
        assert bodies_differ(seed) <= 1e-9, seed


@pytest.mark.slow
@pytest.mark.parametrize("start", range(10_000, 12_000, 100))
def test_two_thousand_graphs_with_bodies_compute_what_they_did(start):
    for seed in range(start, start + 100):
        assert bodies_differ(seed) <= 1e-9, seed
