"""What is confirmed for every input computes the same: random damage to random graphs and to what is folded of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from random_damage import damaged
from random_graphs import random_graph, shapes_of
from torch import Tensor

from normdeploy.errors import NormdeployError
from normdeploy.graph import Evaluator
from normdeploy.graph.derivation import Derivation
from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.hints import unchanged

FOLLOWED = (2, 3, 5)
"""Sizes of the batch that the checker follows."""

DIFFERENT = 1e-4
"""Difference relative to an output's size that no rounding of a stored weight explains."""

Feeds = dict[str, Tensor]


def feeds_of(model: onnx.ModelProto, rng: np.random.Generator) -> list[Feeds]:
    """Return inputs at sizes that the checker follows and at others, near zero and far from it."""
    drawn = []
    for batch, factor, shift in ((2, 1, 0), (3, 1, 0), (7, 1, 0), (1, 1, 0), (2, 8, 3), (2, 0.05, 0)):
        shapes = shapes_of(model, batch)
        drawn.append({
            name: torch.from_numpy(factor * rng.normal(size=shape) + shift) for name, shape in shapes.items()
        })  # fmt: skip
    return drawn


def difference(model: onnx.ModelProto, feeds: list[Feeds], expected: list[Mapping[str, Tensor]]) -> float:
    """Return the largest difference from what was expected, relative to each output; infinite where a run fails."""
    evaluator, worst = Evaluator(ir.from_proto(model)), 0.0
    for given, outputs in zip(feeds, expected, strict=True):
        try:
            found = evaluator.run(given)
        except NormdeployError:
            return float("inf")
        for name, output in outputs.items():
            if found[name].shape != output.shape or not torch.isfinite(found[name]).all():
                return float("inf")
            worst = max(worst, float((found[name] - output).abs().max() / output.abs().max().clamp(min=1e-30)))
    return worst


def confirmed_damage(seed: int, copies: int) -> tuple[list[str], Counter[object]]:
    """Damage a random graph, and what is folded of it; return what was confirmed though it differs, and counts."""
    drawn = random_graph(seed)
    source, rewritten = ir.from_proto(drawn), rewrite(ir.from_proto(drawn))
    rng = np.random.default_rng(seed)
    feeds, sizes = feeds_of(drawn, rng), [shapes_of(drawn, batch) for batch in FOLLOWED]
    expected = [Evaluator(source).run(given) for given in feeds]
    files: list[tuple[onnx.ModelProto, Derivation]] = [
        (drawn, unchanged(source)),
        (ir.to_proto(rewritten.model.clone()), rewritten.derivation),
    ]
    wrong, counts, side = list[str](), Counter[object](), Side(source, sizes)
    for file, derivation in files:
        report = check_derivation(side, ir.from_proto(file), derivation, sizes)
        counts["right", report.confirmed] += 1
        for _ in range(copies):
            found = damaged(file, rng)
            if found is None or difference(found[1], feeds, expected) <= DIFFERENT:
                continue
            counts["damaged"] += 1
            if check_derivation(side, ir.from_proto(found[1]), derivation, sizes).confirmed:
                wrong.append(f"{seed}: {found[0]}")
    return wrong, counts


@pytest.mark.parametrize("start", range(0, 40, 8))
def test_no_random_damage_is_confirmed(start: int) -> None:
    counts = Counter[object]()
    for seed in range(start, start + 8):
        wrong, found = confirmed_damage(seed, 6)
        assert not wrong
        counts += found
    assert counts["damaged"] >= 15
    assert counts["right", True] >= 12  # of 16: what is right is confirmed, or nothing would have been shown


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 2000, 50))
def test_no_random_damage_of_a_thousand_graphs_is_confirmed(start: int) -> None:
    assert not [what for seed in range(start, start + 50) for what in confirmed_damage(seed, 10)[0]]
