"""BatchNorm in quantized networks as users of other tools asked: the table of benchmarks/quantized_situations.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import onnx
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.ao warns of its age

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script() -> ModuleType:
    """Import the script, which is in no package."""
    name = "quantized_situations"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


LEFT = {
    ("pre-bn", False): "behind it QuantizeLinear 'conv2' sees every scale and every shift",
    ("pre-bn", True): "behind it QuantizeLinear 'conv2' sees every scale and every shift",
    ("linear", False): "in front of it DequantizeLinear 'node_quantized_1' has no weights",
    ("observers", False): "in front of it DequantizeLinear 'conv1.activation_post_process' has no weights",
}
"""What stays, and the clause that says why; everything else leaves."""


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("key", ["pre-bn", "static-grid", "fused-qat", "linear", "wrapped", "observers"])
def test_situation(key: str, integer: bool, tmp_path: Path) -> None:
    result = script().SITUATIONS[key].export(tmp_path / "net.onnx", integer=integer)
    assert result.verdict.status == "pass", result.verdict.summary()
    norms = [node for node in onnx.load(tmp_path / "net.onnx").graph.node if node.op_type == "BatchNormalization"]
    kept = [row.reason for row in result.ledger.kept if row.kind == "BatchNormalization"]
    clause = LEFT.get((key, integer))
    assert len(norms) == len(kept) == (0 if clause is None else 1), list(result.ledger)
    assert all(clause is not None and clause in reason for reason in kept), kept


def test_every_situation_is_tried() -> None:
    assert list(script().SITUATIONS) == ["pre-bn", "static-grid", "fused-qat", "linear", "wrapped", "observers"]
