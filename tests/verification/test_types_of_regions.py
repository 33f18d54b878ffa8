"""A norm whose statistics the source computes in wider floats than its result: the file may keep more, never less."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from normdeploy.exporting.trace import trace
from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation

SIZES = [{"x": (3, 8)}, {"x": (5, 8)}]
HALF, FLOAT = "float16", "float"
TOLD = Derivation((Hint("z", "z", "", np.ones(()), np.zeros(())),))

SOURCE = """m = ReduceMean(x, last) c = Sub(x, m)
    w = Cast<to = 1>(x) n = ReduceMean(w, last) d = Sub(w, n) q = Mul(d, d) v = ReduceMean(q, last) s = Sqrt(v)
    t = Cast<to = 10>(s) u = Add(t, half) z = Div(c, u)"""
"""Half precision, of which torch takes a standard deviation in float32."""

ROWS = "w = Cast<to = 1>(x) h, p, i = LayerNormalization<epsilon = 0.0>(w, ones) s = Reciprocal(i)"
END = "y = Mul(h, k) z = Cast<to = 10>(y)"
FILES = {
    "all in float32": (f"{ROWS} u = Add(s, one) k = Div(s, u) {END}", True),
    "as the source": (SOURCE, True),
    "all in half": (
        """h, p, i = LayerNormalization<epsilon = 0.0>(x, halves) j = Cast<to = 10>(i)
        s = Reciprocal(j) u = Add(s, half) k = Div(s, u) z = Mul(h, k)""",
        False,
    ),
    "the deviation rounded": (
        f"{ROWS} r = Cast<to = 10>(s) t = Cast<to = 1>(r) u = Add(t, one) k = Div(t, u) {END}",
        False,
    ),
    "another epsilon": (f"{ROWS} u = Add(s, two) k = Div(s, u) {END}", False),
}


def graph(body: str, dtype: str) -> ir.Model:
    numbers = "float16[1] half = {15360}, float[1] one = {1.0}, float[1] two = {2.0}"  # 15360: the bits of 1.0
    rows = f"float[8] ones = {{{', '.join(['1.0'] * 8)}}}, float16[8] halves = {{{', '.join(['15360'] * 8)}}}"
    given = f"g ({dtype}[n, 8] x) => ({dtype}[n, 8] z) <int64[1] last = {{-1}}, {numbers}, {rows}>"
    text = f'<ir_version: 9, opset_import: ["" : 20]> {given} {{ {body} }}'
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


@pytest.mark.parametrize("case", FILES)
def test_a_file_keeps_as_many_digits_as_the_source(case: str):
    body, right = FILES[case]
    assert check_derivation(graph(SOURCE, HALF), graph(body, HALF), TOLD, SIZES).confirmed is right


@pytest.mark.parametrize("to", [10, 16])
def test_what_the_source_rounds_within_a_wider_network_is_rounded(to: int):
    deviation = "m = ReduceMean(x, last) c = Sub(x, m) q = Mul(c, c) v = ReduceMean(q, last) s = Sqrt(v)"
    source = f"{deviation} r = Cast<to = {to}>(s) t = Cast<to = 1>(r) u = Add(t, one) z = Div(c, u)"
    without = f"{deviation} u = Add(s, one) z = Div(c, u)"
    assert check_derivation(graph(source, FLOAT), graph(source, FLOAT), TOLD, SIZES).confirmed
    assert not check_derivation(graph(source, FLOAT), graph(without, FLOAT), TOLD, SIZES).confirmed


class OverDeviation(nn.Module):
    """g (x - m) / (s + e) + b with torch's own standard deviation, as Annotated Transformer writes it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.gain * (x - mean) / (deviation + 1e-6) + self.bias


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_norm_over_the_deviation_is_confirmed_for_every_input(dtype: torch.dtype):
    """In float64 the file has no LayerNormalization, whose epsilon is a float32: it squares what is centred."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), OverDeviation(32), nn.ReLU(), nn.Linear(32, 8)).eval().to(dtype)
    traced = trace(net, torch.randn(3, 16).to(dtype)).model
    found = rewrite(traced)
    assert [row.action for row in found.ledger] == ["fused"]
    assert check_derivation(traced, found.model, found.derivation, [{"input": (3, 16)}, {"input": (5, 16)}]).confirmed
