"""Norms in the bodies of If, Loop and Scan are recognised, folded and accounted for like those around them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from norms_in_bodies import BRANCHES, CONSTANTS, SCAN, STEPS, N, layer_norm
from onnxruntime_outputs import run_onnxruntime
from torch import nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite


def kinds(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph))


@pytest.mark.parametrize("text", [BRANCHES, STEPS], ids=["If", "Loop"])
def test_norms_of_bodies_become_operators(text):
    model = ir.from_onnx_text(text)
    result = rewrite(model)
    onnx.checker.check_model(ir.to_proto(result.model))
    assert kinds(model)["Sqrt"] == 2
    found = kinds(result.model)
    assert found["LayerNormalization"] == 2
    assert not {"Sqrt", "ReduceMean", "Pow"} & set(found)
    assert [(row.kind, row.action) for row in result.ledger] == [("LayerNormalization", "fused")] * 2
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, N, generator=generator, dtype=torch.float64)
    for condition in (True, False):
        feeds = {"x": x, "c": torch.tensor(condition)}
        before, after = (Evaluator(item).run(feeds) for item in (model, result.model))
        for name, expected in before.items():
            torch.testing.assert_close(after[name], expected, rtol=1e-7, atol=1e-7)


def test_norms_of_a_scan_become_operators():
    proto = onnx.parser.parse_model(SCAN)
    result = rewrite(ir.from_proto(proto))
    assert kinds(result.model)["LayerNormalization"] == 1
    assert not {"Sqrt", "ReduceMean", "Pow"} & set(kinds(result.model))
    assert [row.action for row in result.ledger] == ["fused"]
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("x", (4, 3, N)), ("c", (3, N)))}
    before, after = (run_onnxruntime(item, feeds) for item in (proto, ir.to_proto(result.model)))
    for got, expected in zip(after, before, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


class Inner(nn.Module):
    """A LayerNorm by hand, an unbiased variance in it."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.randn(N)), nn.Parameter(torch.randn(N))

    def forward(self, x):
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * self.gain + self.shift


class Choice(nn.Module):
    """One branch folds a BatchNorm behind a hand-written norm, the other holds a stock LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.linear, self.batch, self.layer = Inner(), nn.Linear(N, N), nn.BatchNorm1d(N), nn.LayerNorm(N)
        nn.init.normal_(self.batch.running_mean)
        nn.init.uniform_(self.batch.running_var, 0.5, 2.0)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.batch(self.linear(self.inner(x))), lambda x: self.layer(x), (x,))


def test_branches_of_a_traced_model():
    torch.manual_seed(0)
    model = Choice().eval()
    program = trace(model, torch.randn(3, N))
    result = rewrite(program.model)
    onnx.checker.check_model(ir.to_proto(result.model))
    found = kinds(result.model)
    assert (found["LayerNormalization"], found["BatchNormalization"], found["Sqrt"]) == (2, 0, 0)
    assert Counter((row.kind, row.action) for row in result.ledger) == {
        ("LayerNormalization", "fused"): 2,
        ("BatchNormalization", "folded"): 1,
    }
    model.double()
    for sign in (1.0, -1.0):
        x = sign * torch.rand(5, N, dtype=torch.float64)
        with torch.no_grad():
            expected = model(x)
        (got,) = Evaluator(result.model).run({"x": x}).values()
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_norm_of_unknown_rank_has_a_row_with_what_to_do():
    """Behind an operator that shape inference does not know, nothing can be probed: it is kept, and said so."""
    text = f"""
        <ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
        net (float[n, {N}] x) => (float[n, {N}] y) <{CONSTANTS}>
        {{ h = mine.Odd (x) {layer_norm("h", "y")} }}
    """
    model = ir.from_onnx_text(text)
    before = kinds(model)
    result = rewrite(model)
    assert {kind: count for kind, count in kinds(result.model).items() if kind != "mine"} == dict(before)
    rows = [row for row in result.ledger if row.kind == "normalization"]
    assert [row.action for row in rows] == ["kept"]
    assert "the rank of 'h' is not known" in rows[0].reason
