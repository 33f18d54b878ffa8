"""The same spellings as torch writes them: what the exporter makes of each library call is recognised too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

C = 12
LN, RMS, IN = "LayerNormalization", "RMSNormalization", "InstanceNormalization"
GROUPED = [IN, "Add", "Mul", "Reshape", "Reshape"]
TURNED = [LN, "Transpose", "Transpose"]


class Parameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.g = nn.Parameter(torch.randn(C) + 1)
        self.b = nn.Parameter(torch.randn(C))


def var_mean(p, x):
    v, m = torch.var_mean(x, -1, keepdim=True, correction=0)
    return torch.addcmul(p.b, p.g, (x - m) * torch.rsqrt(v + 1e-5))


def unbiased(p, x):
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) * p.g + p.b


def annotated(p, x):
    """L4 as in the Annotated Transformer."""
    return p.g * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + p.b


def llama(p, x):
    h = x.to(torch.float32)
    return p.g * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def gemma(p, x):
    return x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + p.g.float())


def channels_first(p, x):
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    return p.g[:, None, None] * ((x - u) / torch.sqrt(s + 1e-6)) + p.b[:, None, None]


def permuted(p, x):
    return F.layer_norm(x.permute(0, 2, 3, 1), (C,), p.g, p.b).permute(0, 3, 1, 2)


def grouped(p, x):
    n, c, h, w = x.shape
    t = x.view(n, 3, -1)
    v, m = torch.var_mean(t, -1, keepdim=True, unbiased=False)
    return ((t - m) / (v + 1e-5).sqrt()).view(n, c, h, w) * p.g.view(1, -1, 1, 1) + p.b.view(1, -1, 1, 1)


def instance(p, x):
    m, s = x.mean((2, 3), keepdim=True), x.std((2, 3), keepdim=True, correction=0)
    return (x - m) / s * p.g.view(1, -1, 1, 1) + p.b.view(1, -1, 1, 1)


def contracted(p, x):
    d = x - torch.einsum("nlc->nl", x)[..., None] / C
    return d * (torch.einsum("nlc,nlc->nl", d, d)[..., None] / C + 1e-5) ** -0.5 * p.g


ROWS, IMAGE = (3, 5, C), (3, C, 4, 6)
SPELLINGS: list[tuple[Callable[[Parameters, Tensor], Tensor], tuple[int, ...], list[str]]] = [
    (var_mean, ROWS, [LN]),
    (unbiased, ROWS, [LN]),
    (annotated, ROWS, [LN, "Add", "Reciprocal", "Mul", "Add"]),
    (llama, ROWS, [RMS]),
    (gemma, ROWS, [RMS]),
    (contracted, ROWS, [LN]),
    (lambda p, x: F.layer_norm(x, (C,), p.g, p.b), ROWS, [LN]),
    (lambda p, x: F.layer_norm(x, (C,)) * (1 + p.g), ROWS, [LN]),
    (lambda _, x: F.layer_norm(x, x.shape[1:]), ROWS, [LN]),
    (lambda p, x: F.rms_norm(x, (C,), p.g, 1e-6), ROWS, [RMS]),
    (channels_first, IMAGE, TURNED),
    (permuted, IMAGE, TURNED),
    (grouped, IMAGE, GROUPED),
    (instance, IMAGE, [IN]),
    (lambda p, x: F.group_norm(x, 3, p.g, p.b), IMAGE, GROUPED),
    (lambda p, x: F.instance_norm(x, weight=p.g, bias=p.b), IMAGE, [IN]),
]


class Everything(nn.Module):
    """One input and one output per spelling: one trace for all."""

    def __init__(self) -> None:
        super().__init__()
        self.p = Parameters()

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(self.p, x) for (function, _, _), x in zip(SPELLINGS, xs, strict=True))


@pytest.fixture(scope="module")
def traced():
    torch.manual_seed(1)
    model = Everything().eval()
    return model, trace(model, tuple(torch.randn(shape) for _, shape, _ in SPELLINGS))


def behind(value) -> list[str]:
    """Return the operators that lead to a graph output."""
    seen, stack = set(), [value]
    while stack:
        node = stack.pop().producer()
        if node is not None and node not in seen:
            seen.add(node)
            stack.extend(item for item in node.inputs if item is not None)
    return sorted(node.op_type for node in seen)


def test_traced_spellings_become_single_operators(traced):
    model, program = traced
    result = rewrite(program.model)
    found = [behind(output) for output in result.canonical.graph.outputs]
    assert found == [sorted(expected) for _, _, expected in SPELLINGS]
    norms = [row for row in result.ledger if "ormalization" in row.kind]
    assert [row.action for row in norms] == ["fused"] * len(SPELLINGS)
    torch.manual_seed(2)
    xs = [torch.randn(7, *shape[1:], dtype=torch.float64) for _, shape, _ in SPELLINGS]
    with torch.no_grad():
        expected = model.double()(*xs)
    for graph in (result.canonical, result.model):
        values = Evaluator(graph).run(dict(zip(program.input_names, xs, strict=True)))
        for got, want in zip(values.values(), expected, strict=True):
            torch.testing.assert_close(got, want.double(), rtol=2e-6, atol=2e-6)
