"""Constants that reach a product through other operators: of sizes (DeBERTa's relative positions), of sequences."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.hints import unchanged


class Relative(nn.Module):
    """Scores against positions that a layer makes of a table, once per sample; the queries have another reader."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(5, 8))
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x)
        key = self.key(self.positions).unsqueeze(0).repeat(x.shape[0], 1, 1)
        return torch.cat([torch.bmm(query, key.transpose(1, 2)) / 24**0.5, query], -1)


def test_a_scale_that_goes_into_a_tiled_constant_is_proven_for_every_input(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = nd.export(Relative().eval(), torch.randn(2, 3, 8), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.passed, result.verdict.summary()
    assert [row.action for row in result.ledger] == ["folded"]
    assert result.verdict.check("derivation").status == "pass", result.verdict.summary()


class Turned(nn.Module):
    """Queries turned by their positions: one table holds both factors, and is split in each call (EVA's)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(3, 16))
        self.query = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sines, cosines = self.table.split(8, -1)
        query = self.query(x)
        return torch.cat([(query * cosines + query.flip(-1) * sines) / 24**0.5, x], -1)


def test_parts_of_a_constant_that_the_trace_splits_are_constants(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = nd.export(Turned().eval(), torch.randn(2, 3, 8), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.check("derivation").status == "pass", result.verdict.summary()


class Bilinear(nn.Module):
    """A stock Bilinear lays its weights by sizes that the trace reads; a BatchNorm's scale goes into them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(5, 8)
        self.norm, self.both = nn.BatchNorm1d(8, affine=False), nn.Bilinear(8, 8, 4)
        self.norm.running_mean, self.norm.running_var = torch.randn(8), torch.rand(8) + 0.1

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.both(self.first(x), self.norm(self.second(y)))
        return out


def test_weights_that_the_trace_lays_by_sizes_are_constants(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(2, 6), torch.randn(2, 5))
    result = nd.export(Bilinear().eval(), inputs, tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.check("derivation").status == "pass", result.verdict.summary()
    assert [row.action for row in result.ledger if row.where == "norm"] == ["folded"]


SHARED = """
<ir_version: 9, opset_import: ["": 17]>
net (float[n, 4] x) => (float[n, 2] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}>
{
    biases = Identity(held)
    shape = Shape(x)
    width = Slice(shape, one, two, zero)
    half = Div(width, two)
    part = Slice(biases, zero, half, zero)
    scores = MatMul(x, weights)
    y = Add(scores, part)
}
"""


def test_a_part_of_a_shared_constant_between_bounds_of_fixed_sizes_is_a_constant(tmp_path: Path) -> None:
    """torch's former exporter shares equal weights by an Identity, and cuts packed ones at bounds that it computes."""
    model = onnx.parser.parse_model(SHARED)
    numbers = np.random.default_rng(0)
    for name, shape in (("held", (4,)), ("weights", (4, 2))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(numbers.normal(size=shape).astype("f4"), name))
    onnx.save(model, tmp_path / "source.onnx")
    result = nd.fold(tmp_path / "source.onnx", tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.check("derivation").status == "pass", result.verdict.summary()


REPEATED = """<ir_version: 10, opset_import: ["": 20]> g (float[N,3] x) => (bool[N,3] z)
<float[3] zeros = {{0.0, 0.0, 0.0}}, bool[1] one = {{{one}}}, int64[1] three = {{3}}> {{
    a = Greater(x, zeros) {made} z = And(a, c) }}"""
BY_SIZES = "n = Shape<start = 0, end = 1>(x) s = Concat<axis = 0>(n, three) c = Expand(one, s)"
"""What a trace writes of a tensor that is filled with one value."""


@pytest.mark.parametrize("one", [1, 0])
def test_one_value_repeated_by_sizes_is_the_value_to_what_broadcasts_it(one: int) -> None:
    source = ir.from_onnx_text(REPEATED.format(one=1, made=BY_SIZES))
    file = ir.from_onnx_text(REPEATED.format(one=one, made="c = Identity(one)"))
    shapes: list[dict[str, tuple[int, ...]]] = [{"x": (2, 3)}, {"x": (5, 3)}]
    report = check_derivation(source, file, unchanged(source), shapes)
    assert report.confirmed == bool(one)


@pytest.mark.parametrize(("want", "have"), [((2, 3), (3,)), ((3,), (1, 3)), ((2, 3), (2, 1)), ((2, 3), ())])
def test_rows_are_repeated_only_where_they_are_the_same(want: tuple[int, ...], have: tuple[int, ...]) -> None:
    """The file's constant broadcasts to the source's shape: the same numbers, and one of them another."""
    axes = ",".join(map(str, want))
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[2,3] x) => (float[2,3] z)
    {{ c = Constant<value = {}>() z = Max(x, c) }}"""
    small = np.arange(1.0, 1.0 + np.prod(have)).reshape(have)
    for changed in (False, True):
        large = np.array(np.broadcast_to(small, want) if len(want) >= len(have) else small.reshape(want), order="C")
        large.reshape(-1)[-1] += changed
        source = ir.from_onnx_text(text.format(f"float[{axes}] {{{', '.join(map(str, large.reshape(-1)))}}}"))
        file = ir.from_onnx_text(
            text.format(f"float[{','.join(map(str, have))}] {{{', '.join(map(str, small.reshape(-1)))}}}")
            if have
            else text.format(f"float {{{small}}}")
        )
        assert check_derivation(source, file, unchanged(source), [{"x": (2, 3)}]).confirmed != changed
