"""Masks that are worked out of positions, which no input decides: every decoder of transformers without a mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.verification import verify


class Packed(nn.Module):
    """Attention within each of the sequences that were packed into a row: here there is always one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(64, 8)
        self.norm, self.heads = nn.LayerNorm(8), nn.Linear(8, 24)
        nn.init.normal_(self.norm.weight)

    def forward(self, ids: Tensor) -> Tensor:
        batch, size = ids.shape
        places = torch.arange(size)[None]
        x = self.norm(self.words(ids) + self.places(places))
        rows = places.expand(batch, -1)
        pieces = (torch.diff(rows, prepend=rows[:, :1] - 1, dim=-1) != 1).cumsum(-1)
        mask = (pieces[:, :, None] == pieces[:, None, :]) & (places[0][None, :] <= places[0][:, None])
        mask = mask[:, None].expand(batch, -1, size, size)
        q, k, v = (part.view(batch, size, 2, 4).transpose(1, 2) for part in self.heads(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_a_mask_of_positions_is_confirmed_at_every_size(tmp_path: Path) -> None:
    shapes = ({0: "batch", 1: "time"},)
    ids = torch.randint(0, 20, (2, 9))
    verdict = nd.export(Packed().eval(), (ids,), tmp_path / "net.onnx", dynamic_shapes=shapes).verdict
    assert verdict is not None
    assert verdict.status == "pass", verdict.summary()
    assert verdict.check("derivation").status == "pass", verdict.summary()


GRAPH = """<ir_version: 10, opset_import: ["": 21]> g (float[b,n] x) => (float[b,n] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] first = {{0}}, int64[1] second = {{1}}, int64[1] third = {{2}},
     int64[1] far = {{100}}, int64[1] end = {{9223372036854775807}}> {{
    n = Shape<start=1, end=2>(x) k = Squeeze(n) places = Range(zero, k, one) more = Concat<axis = 0>(places, n)
    {} r = Cast<to = 1>(p) y = Add(x, r) }}"""

STEP = """later = Slice(more, second, end) sooner = Slice(more, first, n) d = Sub(later, sooner)
    e = Equal(d, one) p = Cast<to = 7>(e)"""


@pytest.mark.parametrize(
    ("source", "file", "confirmed"),
    [
        (STEP.replace("p =", "q =") + " p = Expand(q, n)", STEP, True),
        (STEP.replace("p =", "q =") + " p = Reshape(q, n)", STEP, True),
        # as long as x up to a hundred: an error beyond, there
        ("q = Slice(places, first, far) p = Expand(q, n)", "p = Slice(places, first, far)", False),
        # from the third on there is nothing where the size is 1
        ("q = Slice(more, third, end) p = ReduceMax<keepdims = 1>(q)", "p = ReduceMax<keepdims = 1>(more)", False),
    ],
)
def test_bounds_of_at_most_one_are_within_every_size(source: str, file: str, confirmed: bool, tmp_path: Path) -> None:
    for name, body in (("source", source), ("file", file)):
        onnx.save(onnx.parser.parse_model(GRAPH.format(body)), tmp_path / f"{name}.onnx")
    args = {"x": np.ones((4, 6), np.float32)}
    verdict = verify(tmp_path / "source.onnx", tmp_path / "file.onnx", args=args)
    assert (verdict.check("derivation").status == "pass") == confirmed, verdict.summary()
