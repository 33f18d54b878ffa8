"""Lengths of padded inputs: masks whose size they decide, and inputs of other sizes, with lengths that fit them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.verification import verify


class Padded(nn.Module):
    """Attention over rows of unequal length: a mask as long as the longest has to fit the padded input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(8)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)
        self.queries, self.keys = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        batch, size = x.shape[0], x.shape[1]
        longest = int(torch.max(lengths).item())
        padded = torch.arange(longest).expand(batch, longest) >= lengths.unsqueeze(1)
        bias = torch.zeros(padded.shape).masked_fill(padded, -torch.inf).view(batch, 1, 1, size)
        bias = bias.expand(-1, 2, -1, -1).reshape(batch, 2, 1, size)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        queries, keys = (part(x).view(batch, size, 2, 4).transpose(1, 2) for part in (self.queries, self.keys))
        return torch.softmax(queries @ keys.transpose(-1, -2) + bias, -1) @ keys


def test_masks_as_long_as_the_longest_are_confirmed_and_tried_at_other_sizes(tmp_path: Path) -> None:
    args = torch.randn(2, 12, 8), torch.tensor([12, 9])
    shapes = {"x": {0: "batch", 1: "time"}, "lengths": {0: "batch"}}
    verdict = nd.export(Padded().eval(), args, tmp_path / "net.onnx", dynamic_shapes=shapes).verdict
    assert verdict is not None
    assert verdict.status == "pass", verdict.summary()
    assert verdict.check("derivation").status == "pass", verdict.summary()
    assert "time at" in verdict.check("dynamic").detail, verdict.summary()
    assert not any("refuses" in text for text in verdict.not_checked)


GRAPH = """<ir_version: 10, opset_import: ["": 21]> g (float[b,n] x, int64[b] lengths) => (float[b,n] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] single = {{1}}, int64[1] rest = {{-1}}> {{
    longest = ReduceMax<keepdims=0>(lengths) places = Range(zero, longest, one) some = Cast<to=1>(places)
    b = Shape<start=0, end=1>(x) n = Shape<start=1, end=2>(x) {body} }}"""

WHOLE = "row = Concat<axis=0>(single, n) a = Reshape(some, row)"
"""A row as long as x, or an error."""


def written(path: Path, body: str) -> Path:
    onnx.save(onnx.parser.parse_model(GRAPH.format(body=body)), path)
    return path


@pytest.mark.parametrize(
    ("source", "file", "confirmed"),
    [
        (f"{WHOLE} c = Reshape(a, row) y = Add(x, c)", f"{WHOLE} y = Add(x, a)", True),
        (f"{WHOLE} s = Shape(a) c = Reshape(a, s) y = Add(x, c)", f"{WHOLE} y = Add(x, a)", True),
        (
            "column = Concat<axis=0>(b, single) c = Reshape(some, column) y = Add(x, c)",
            "column = Concat<axis=0>(rest, single) c = Reshape(some, column) y = Add(x, c)",
            False,  # one place is added to all rows here, and is an error there
        ),
    ],
)
def test_what_names_each_size_has_these_sizes(source: str, file: str, confirmed: bool, tmp_path: Path) -> None:
    """A Reshape to sizes of other inputs is as large as they say; by -1 it is as large as what it reads."""
    args = {"x": np.ones((4, 4), np.float32), "lengths": np.array([4, 2, 3, 1])}
    paths = written(tmp_path / "source.onnx", source), written(tmp_path / "file.onnx", file)
    verdict = verify(*paths, args=args, level="quick")
    assert (verdict.check("derivation").status == "pass") == confirmed, verdict.summary()


@pytest.mark.parametrize(
    ("between", "confirmed"),
    [
        ("m = Identity(some)", True),
        ("m = CastLike(some, x)", True),
        ("m = Dropout(some)", True),
        ("g = Neg(some) m = Neg(g)", True),
        ("half = Constant<value_float=0.5>() h = Mul(some, half) m = Div(h, half)", True),
        ("half = Constant<value_float=0.5>() two = Constant<value_float=2.0>() h = Mul(some, half) m = Div(h, two)",
         False),
        ("ones = Constant<value_floats=[1.0, 1.0, 1.0, 1.0]>() m = Mul(some, ones)", False),  # four of one
    ],
)  # fmt: skip
def test_what_keeps_any_shape_is_looked_through_where_lengths_decide_it(
    between: str, confirmed: bool, tmp_path: Path
) -> None:
    ending = "e = Sqrt({0}) row = Concat<axis=0>(single, n) a = Reshape(e, row) y = Add(x, a)"
    source = written(tmp_path / "source.onnx", f"{between} {ending.format('m')}")
    file = written(tmp_path / "file.onnx", ending.format("some"))
    args = {"x": np.ones((4, 4), np.float32), "lengths": np.array([4, 2, 3, 1])}
    verdict = verify(source, file, args=args, level="quick")
    assert (verdict.check("derivation").status == "pass") == confirmed, verdict.summary()
