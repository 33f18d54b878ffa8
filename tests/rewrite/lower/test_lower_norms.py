"""RMSNormalization below operator set 23: the six operators that onnxruntime fuses, and nothing raised."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnxruntime_outputs import run_onnxruntime
from torch import nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

C = 16
SIX = ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]


class Gated(nn.Module):
    """An RMSNorm in a spelling that the runtime does not fuse, in front of a projection."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(C))
        self.out = nn.Linear(C, 4)

    def forward(self, x):
        return self.out(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * (1 + self.gain))


def fused_by_runtime(model, path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4  # it warns that the file depends on the processor
    onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("opset", [18, 20, 22])
def test_the_asked_operator_set_is_kept_and_the_runtime_fuses_the_form(opset, tmp_path):
    torch.manual_seed(0)
    model = Gated().eval()
    program = trace(model, torch.randn(3, C), opset_version=opset)
    result = rewrite(program.model, highest_opset=opset)
    onnx.checker.check_model(ir.to_proto(result.model))
    assert result.model.opset_imports[""] == opset
    assert [node.op_type for node in result.model.graph] == [*SIX, "Gemm"]
    assert "SimplifiedLayerNormalization" in fused_by_runtime(result.model, tmp_path / "optimized.onnx")
    (row,) = [row for row in result.ledger if row.kind == "RMSNormalization"]
    assert (row.action, row.into) == ("fused", "its shortest form")
    assert f"may have {opset} at most" in row.reason
    x = torch.randn(5, C, dtype=torch.float64) * 1e-3
    with torch.no_grad():
        expected = model.double()(x)
    (got,) = Evaluator(result.model).run({"x": x}).values()
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_without_a_limit_it_is_one_operator():
    program = trace(Gated().eval(), torch.randn(3, C), opset_version=20)
    result = rewrite(program.model)
    assert result.model.opset_imports[""] == 23
    assert Counter(node.op_type for node in result.model.graph)["RMSNormalization"] == 1


def test_a_source_above_the_limit_keeps_its_own():
    program = trace(nn.RMSNorm(C), torch.randn(3, C), opset_version=23)
    result = rewrite(program.model, highest_opset=20)
    assert [node.op_type for node in result.model.graph] == ["RMSNormalization"]
    assert result.model.opset_imports[""] == 23


def test_half_precision_is_computed_in_float32():
    gain = np.linspace(0.5, 2, C)
    text = f"""
        <ir_version: 10, opset_import: ["" : 20]>
        net (float16[n, {C}] x) => (float16[n, {C}] y)
        <int64[1] last = {{-1}}, float e = {{0.001}}, float[{C}] g = {{{",".join(f"{item:.6f}" for item in gain)}}}>
        {{
            h = Cast <to = 1> (x)
            q = Mul (h, h)
            m = ReduceMean <keepdims = 1> (q, last)
            w = Add (m, e)
            s = Sqrt (w)
            z = Div (h, s)
            half = Cast <to = 10> (z)
            k = Cast <to = 10> (g)
            y = Mul (half, k)
        }}
    """
    result = rewrite(ir.from_onnx_text(text), highest_opset=20)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    assert [node.op_type for node in result.model.graph] == ["Cast", *SIX[:-1], "Cast", "Mul"]
    large = (np.ones((2, C)) * 1000).astype(np.float16)  # its square is infinite in float16
    np.testing.assert_allclose(run_onnxruntime(result.model, {"x": large})[0][0], gain, rtol=2e-3)


def test_in_a_body_too():
    text = f"""
        <ir_version: 10, opset_import: ["" : 20]>
        net (float[n, {C}] x, bool c) => (float[n, {C}] y) <int64[1] last = {{-1}}, float e = {{0.001}}>
        {{
            y = If (c) <
                then_branch = left () => (float[n, {C}] a) {{
                    q = Mul (x, x)
                    m = ReduceMean <keepdims = 1> (q, last)
                    w = Add (m, e)
                    s = Sqrt (w)
                    a = Div (x, s)
                }},
                else_branch = right () => (float[n, {C}] b) {{ b = Neg (x) }}
            >
        }}
    """
    result = rewrite(ir.from_onnx_text(text), highest_opset=20)
    onnx.checker.check_model(ir.to_proto(result.model))
    found = Counter(node.op_type for node in ir.traversal.RecursiveGraphIterator(result.model.graph))
    assert found == Counter([*SIX, "If", "Neg"])
