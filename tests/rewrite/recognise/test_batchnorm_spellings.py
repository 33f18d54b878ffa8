"""Hand-written BatchNorm in evaluation leaves no trace behind a convolution or a linear layer."""

from __future__ import annotations

from collections import Counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

C = 6
IMAGE = (1, C, 1, 1)


class Statistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.g, self.b = (nn.Parameter(torch.randn(C) + 1) for _ in range(2))
        self.register_buffer("m", torch.randn(C))
        self.register_buffer("v", torch.rand(C) + 0.5)


def rows_division(s, x):
    """B1: (x - m) / sqrt(v + e), statistics of shape (1, C)."""
    return (x - s.m[None]) / torch.sqrt(s.v[None] + 1e-5) * s.g + s.b


def rows_reversed(s, x):
    """B2: constants first, epsilon 1e-6."""
    return s.b + s.g * ((x - s.m) * (s.v + 1e-6) ** -0.5)


def rows_addcmul(s, x):
    return torch.addcmul(s.b, (x - s.m) * torch.rsqrt(s.v + 1e-5), s.g)


def image_shapes(s, x):
    """B4: scale and shift of shape (1, C, 1, 1)."""
    g, b, m, v = (item.reshape(IMAGE) for item in (s.g, s.b, s.m, s.v))
    return g * ((x - m) * torch.reciprocal(torch.sqrt(v + 1e-5))) + b


def image_view(s, x):
    """B5: through a view to (N, C, -1) and back."""
    t = x.view(x.shape[0], C, -1)
    t = (t - s.m.view(1, C, 1)) / (s.v.view(1, C, 1) + 1e-5).sqrt()
    return (t * s.g.view(1, C, 1) + s.b.view(1, C, 1)).view(x.shape)


def image_permuted(s, x):
    t = x.permute(0, 2, 3, 1)
    return ((t - s.m) * torch.rsqrt(s.v + 1e-5) * s.g + s.b).permute(0, 3, 1, 2)


def image_flat_rows(s, x):
    """B2 on images: channels last, flattened to rows."""
    n, c, h, w = x.shape
    t = x.permute(0, 2, 3, 1).reshape(-1, c)
    t = (t - s.m) / torch.sqrt(s.v + 1e-5) * s.g + s.b
    return t.reshape(n, h, w, c).permute(0, 3, 1, 2)


def frozen(s, x):
    """Scale and shift computed at run time from four buffers, (C, 1, 1)."""
    scale = s.g * (s.v + 1e-5).rsqrt()
    shift = s.b - s.m * scale
    return x * scale[:, None, None] + shift[:, None, None]


def library(s, x):
    return F.batch_norm(x, s.m, s.v, s.g, s.b, False, 0.1, 1e-5)


def instance_with_running_statistics(s, x):
    return F.instance_norm(x, s.m, s.v, s.g, s.b, use_input_stats=False)


ROWS = [rows_division, rows_reversed, rows_addcmul, library]
IMAGES = [image_shapes, image_view, image_permuted, image_flat_rows, frozen, library, instance_with_running_statistics]


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.s = Statistics()
        self.linears = nn.ModuleList(nn.Linear(4, C) for _ in ROWS)
        self.convs = nn.ModuleList(nn.Conv2d(3, C, 3, padding=1, bias=index % 2 == 0) for index in range(len(IMAGES)))

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        rows, images = xs[: len(ROWS)], xs[len(ROWS) :]
        return (
            *(f(self.s, layer(x)) for f, layer, x in zip(ROWS, self.linears, rows, strict=True)),
            *(f(self.s, layer(x)) for f, layer, x in zip(IMAGES, self.convs, images, strict=True)),
        )


def test_hand_written_batch_norms_leave_no_trace():
    torch.manual_seed(0)
    model = Everything().eval()
    xs = [*(torch.randn(3, 4) for _ in ROWS), *(torch.randn(3, 3, 5, 5) for _ in IMAGES)]
    program = trace(model, tuple(xs))
    result = rewrite(program.model)
    assert Counter(node.op_type for node in result.model.graph) == {"Gemm": len(ROWS), "Conv": len(IMAGES)}
    assert all(row.action == "folded" for row in result.ledger)
    more = [torch.randn(4, *x.shape[1:], dtype=torch.float64) for x in xs]
    feeds = dict(zip(program.input_names, more, strict=True))
    with torch.no_grad():
        expected = model.double()(*feeds.values())
    for got, want in zip(Evaluator(result.model).run(feeds).values(), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
