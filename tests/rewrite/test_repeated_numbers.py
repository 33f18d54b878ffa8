"""A number that a graph repeats to a shape is read as the number, and as nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normdeploy as nd
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

HEAD = '<ir_version: 10, opset_import: ["": 20]> g (float[n,3,4] x{more}) => (float[n,3,4] y) {constants} {{ {body} }}'
SHAPE = "s = Shape (x) "


def rewritten(body: str, *, constants: str = "", more: str = "") -> list[str]:
    """Return the operators that stay; what they compute at two batches is what the graph computed."""
    model = ir.from_onnx_text(HEAD.format(body=body, constants=constants, more=more))
    result = rewrite(model).model
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    for batch in (1, 3):
        rng = np.random.default_rng(batch)
        feeds = {value.name: rng.standard_normal((batch, 3, 4)).astype(np.float32) for value in model.graph.inputs}
        want, have = (Evaluator(graph).run(feeds)["y"].numpy() for graph in (model, result))
        np.testing.assert_allclose(have, want, rtol=1e-14)
    return [node.op_type for node in result.graph]


@pytest.mark.parametrize(
    ("body", "constants", "left"),
    [
        ("m = Expand (c, s) a = Add (x, m) y = Relu (a)", "<float[1] c = {0.0}>", ["Relu"]),
        ("m = ConstantOfShape (s) a = Add (m, x) y = Relu (a)", "", ["Relu"]),
        ("m = Expand (c, s) f = Cast <to = 1> (m) a = Mul (x, f) y = Relu (a)", "<bool[1,1,1] c = {1}>", ["Relu"]),
        # the mask of an attention that masks nothing
        ("m = Expand (c, s) f = Cast <to = 1> (m) v = ReduceMax (f, last) k = Cast <to = 9> (v) "
         "i = Where (k, low, none) w = Where (m, none, i) a = Add (x, w) b = Relu (a) y = Mul (b, v)",
         "<bool[1,1,4] c = {1, 1, 1, 1}, int64[1] last = {-1}, float low = {-inf}, float none = {0.0}>", ["Relu"]),
        # what is never, or always, filled in
        ("m = Expand (c, s) a = Where (m, one, x) y = Relu (a)", "<bool[1] c = {0}, float one = {1.0}>", ["Relu"]),
        ("o = ConstantOfShape (s) m = GreaterOrEqual (o, c) a = Where (m, x, c) y = Relu (a)", "<float c = {0.0}>",
         ["Relu"]),
        ("m = Expand (c, s) r = ReduceMean <keepdims = 1> (x, first) a = Where (m, r, zero) y = Relu (a)",
         "<bool c = {1}, int64[1] first = {0}, float zero = {0.0}>", ["Expand", "ReduceMean", "Where"]),
        # a number that is another one somewhere, rounded on its way, or larger than what it is combined with
        ("m = Expand (c, s) a = Add (x, m) y = Relu (a)", "<float[1,3,1] c = {0.0, 1.0, 0.0}>",
         ["Add", "Relu"]),
        ("m = Expand (c, s) f = Exp (m) a = Mul (x, f) y = Relu (a)", "<float[1] c = {0.3}>", ["Mul"]),
        ("r = ReduceMean <keepdims = 1> (x, first) m = Expand (c, s) a = Add (r, m) y = Relu (a)",
         "<float[1] c = {0.0}, int64[1] first = {0}>", ["ReduceMean", "Expand"]),
    ],
)  # fmt: skip
def test_a_repeated_number(body, constants, left):
    found = rewritten(SHAPE + body, constants=constants)
    assert [name for name in found if name in left] == left
    assert left != ["Relu"] or found == left


def test_computed_numbers_are_no_number():
    left = rewritten(SHAPE + "t = ReduceMin <keepdims = 1> (z, all) m = Expand (t, s) a = Add (x, m) y = Relu (a)",
                     constants="<int64[3] all = {0, 1, 2}>", more=", float[n,3,4] z")  # fmt: skip
    assert "Add" in left


class _Attention(nn.Module):
    """An attention with a mask that masks nothing, repeated to the batch, as transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inside = nn.LayerNorm(8), nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = self.inside(self.norm(x)).view(rows, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mask = torch.ones(1, 1, length, length, dtype=torch.bool).expand(rows, 1, length, length)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(rows, length, 8) + x


def test_a_mask_of_nothing_leaves_and_the_file_is_proven(tmp_path):
    torch.manual_seed(0)
    model = _Attention().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    exported = nd.export(model, torch.randn(2, 5, 8), tmp_path / "attention.onnx")
    names = {node.op_type for node in onnx.load(tmp_path / "attention.onnx").graph.node}
    assert not names & {"Expand", "Where", "Cast", "ReduceMax", "Mul"}
    assert {str(check.name): str(check.status) for check in exported.verdict.checks}["derivation"] == "pass"


class _Filled(nn.Module):
    """Masked with what masks nothing, between two convolutions that are one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.scale = nn.Conv1d(3, 4, 1), nn.Conv1d(4, 2, 1), nn.Parameter(torch.rand(4, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = y.masked_fill(torch.zeros_like(y, dtype=torch.bool), 0.0)
        return self.last(torch.where(torch.ones_like(y) > 0, y * self.scale, y))


def test_what_is_never_filled_in_is_not_asked_of_samples(tmp_path):
    torch.manual_seed(0)
    exported = nd.export(_Filled(), torch.randn(2, 3, 5), tmp_path / "filled.onnx", verify="quick")
    assert [node.op_type for node in onnx.load(tmp_path / "filled.onnx").graph.node] == ["Conv"]
    assert exported.verdict.passed
