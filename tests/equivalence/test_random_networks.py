"""Random networks: no export fails its proof, and what is left of each norm is one operator or a reason.

Such networks found what no list of cases holds: a runtime that takes zeros in front of a maximum for its own padding,
an epsilon that depends on the precision, sums over constant images.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
from random_networks import convolutional, draw, over_tokens

import normdeploy as nd
from normdeploy.conformance import by_hand

KINDS = {"convolutional": convolutional, "over tokens": over_tokens}
SPELLED = ("Sqrt", "Pow", "ReduceSum")
MANY = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 60)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [*range(2), *MANY])
def test_a_random_network(seed: int, kind: str, tmp_path: Path):
    model, example = draw(seed, KINDS[kind])
    result = nd.export(model, example, tmp_path / "net.onnx", verify="quick")  # raises where it is not equal
    assert result.verdict is not None
    assert result.verdict.status in ("pass", "not-exercised"), result.verdict.summary()
    left = Counter(node.op_type for node in onnx.load(result.path).graph.node)
    # epsilon outside the root takes a reciprocal per row in its short form; nothing else does
    outside = any(isinstance(module, by_hand.L4) for module in model.modules())
    spelled = SPELLED if outside else (*SPELLED, "Reciprocal")
    assert not any(left[name] for name in spelled), (left, [row.to_dict() for row in result.ledger.kept])
    assert all(row.reason for row in result.ledger.kept)
