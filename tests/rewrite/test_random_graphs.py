"""What is folded of graphs drawn at random computes what it did, whatever hangs together in them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from random_graphs import random_graph, shapes_of

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite


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
