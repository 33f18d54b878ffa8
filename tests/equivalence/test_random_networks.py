"""Random networks: no export fails its proof, and what is left of each norm is one operator or a reason.

Such networks found what no list of cases holds: a runtime that takes zeros in front of a maximum for its own padding,
an epsilon that depends on the precision, sums over constant images.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import onnx
import pytest

import normdeploy as nd


def _networks() -> ModuleType:
    """Load the generator beside this file; tests are no package."""
    path = Path(__file__).with_name("random_networks.py")
    spec = importlib.util.spec_from_file_location("random_networks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NETWORKS = _networks()
KINDS = {"convolutional": NETWORKS.convolutional, "over tokens": NETWORKS.over_tokens}
SPELLED = ("Sqrt", "Pow", "ReduceSum")
MANY = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 60)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [*range(2), *MANY])
def test_a_random_network(seed: int, kind: str, tmp_path: Path):
    model, example = NETWORKS.draw(seed, KINDS[kind])
    result = nd.export(model, example, tmp_path / "net.onnx", verify="quick")  # raises where it is not equal
    assert result.verdict is not None
    assert result.verdict.status in ("pass", "not-exercised"), result.verdict.summary()
    left = Counter(node.op_type for node in onnx.load(result.path).graph.node)
    assert not any(left[name] for name in SPELLED), (left, [row.to_dict() for row in result.ledger.kept])
    assert all(row.reason for row in result.ledger.kept)
