"""approximate=True: the nearest single operator in place of the exact short form, its cost bounded by measurement."""

import onnx
import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.conformance import by_hand


def annotated(size):
    """L4 behind a projection whose rows spread by about ``size``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16, bias=False), by_hand.L4(16), nn.Linear(16, 4)).eval()
    with torch.no_grad():
        model[0].weight.mul_(size)
    return model


def operators(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def test_without_it_the_exact_short_form_is_written(tmp_path):
    result = nd.export(annotated(1.0), torch.randn(3, 6), tmp_path / "a.onnx")
    assert result.verdict.status == "pass"
    assert operators(result.path)[1:5] == ["LayerNormalization", "Add", "Reciprocal", "Mul"]


def test_with_it_one_operator_and_its_cost_measured(tmp_path):
    result = nd.export(annotated(1.0), torch.randn(3, 6), tmp_path / "a.onnx", approximate=True)
    assert result.verdict.status == "pass"
    assert operators(result.path) == ["Gemm", "LayerNormalization", "Gemm"]
    (row,) = [row for row in result.ledger if row.kind == "LayerNormalization"]
    assert row.reason.startswith("approximate")
    assert "conversion" in {check.name for check in result.verdict.checks}


def test_where_epsilon_matters_the_approximation_is_refused(tmp_path):
    """Rows that spread by about epsilon come out half as large as LayerNormalization makes them."""
    with pytest.raises(nd.VerificationError):
        nd.export(annotated(1e-6), torch.randn(3, 6), tmp_path / "a.onnx", approximate=True)
    assert not (tmp_path / "a.onnx").exists()


def test_where_nothing_was_approximated_all_is_judged_exactly(tmp_path):
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16)).eval()
    result = nd.export(model, torch.randn(3, 6), tmp_path / "a.onnx", approximate=True)
    assert "conversion" not in {check.name for check in result.verdict.checks}
    assert result.verdict.sites
