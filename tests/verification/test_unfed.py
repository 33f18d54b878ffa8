"""What no input reaches: queries that a decoder learns, positions that follow from sizes (DETR's, in small)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normdeploy as nd
from normdeploy.graph import load_graph
from normdeploy.graph.derivation import Derivation, Exact, dataflow_keys
from normdeploy.verification import Verdict
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.derivation.related.unrounded import Constants, Unlike
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.mutation.unfed import unfed


class Queries(nn.Module):
    """A decoder's first layer: self-attention among learned queries, whose values are all one, then what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(5, 8))
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.norm, self.last = nn.LayerNorm(8), nn.LayerNorm(8)
        nn.init.normal_(self.norm.weight, 1.0, 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = torch.zeros(x.shape[0], 5, 8)
        at = self.positions.unsqueeze(0).repeat(x.shape[0], 1, 1)
        scores = self.query(start + at) @ self.key(start + at).transpose(1, 2) * 8**-0.5
        read = self.norm(start + self.out(F.softmax(scores, -1) @ self.value(start)))
        return self.last(F.softmax((read + at) @ x.transpose(1, 2) * 8**-0.5, -1) @ x + read)


class Positions(nn.Module):
    """Positions counted on a mask that is all ones, and brought to a range."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[0], 8, 8)
        small = F.interpolate(mask[None], size=(2, 4))[0].to(torch.bool)
        count = small.cumsum(2, dtype=torch.float32)
        return x + torch.sin(count / (count[:, :, -1:] + 1e-6) * 6.283185307)


def exported(module: nn.Module, x: torch.Tensor, folder: Path, level: str) -> Verdict:
    verdict = nd.export(module.eval(), x, folder / "net.onnx", verify=level).verdict
    assert verdict is not None
    return verdict


def test_a_site_that_no_input_reaches_is_proven_harmless_and_never_fed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    verdict = exported(Queries(), torch.randn(2, 3, 8), tmp_path, "default")
    assert verdict.passed, verdict.summary()
    assert verdict.check("derivation").status == "pass", verdict.summary()
    notes = [mutant.note for site in verdict.sites for mutant in site.mutants if mutant.harmless]
    assert any("no input reaches the site" in note for note in notes), notes


def test_what_follows_from_sizes_alone_is_told_from_what_is_fed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    exported(Queries(), torch.randn(2, 3, 8), tmp_path, "quick")
    graph = load_graph(tmp_path / "net.onnx").graph
    alone = unfed(graph)
    fed = set(graph.inputs)
    for node in graph:
        reads = [v for v in node.inputs if v in fed and node.op_type != "Shape"]
        fed.update(node.outputs if reads else ())
    assert alone
    assert alone == {v for node in graph for v in node.outputs if v not in fed}


def test_positions_that_a_resized_mask_gives_are_proven(tmp_path: Path) -> None:
    """A Resize is evaluated by onnx's reference, and its map is rounded: the positions are compared unrounded."""
    verdict = exported(Positions(), torch.randn(2, 2, 4), tmp_path, "quick")
    assert verdict.check("derivation").status == "pass", verdict.summary()


TWINS = """<ir_version: 10, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y)
    <float[4] query = {1, 2, 3, 4}, float[4] key = {5, 6, 7, 8}> { a = Mul(x, query) b = Mul(x, key) y = Sub(a, b) }"""

ALONE = """<ir_version: 10, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y) <float[4] key = {5, 6, 7, 8}> {
    b = Mul(x, key) y = Tanh(b) }"""


@pytest.mark.parametrize(
    ("text", "told", "contradicted"), [(TWINS, "a", False), (TWINS, "c", False), (ALONE, "c", True)]
)
def test_a_constant_is_contradicted_by_what_is_told_of_it_alone(text: str, told: str, contradicted: bool) -> None:
    """Queries and keys are computed alike: what a derivation knows of the one's constant is nothing of the other's."""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    key, values = dataflow_keys(model.graph), {str(v.name): v for node in model.graph for v in node.outputs}
    exact = Exact(told, key[values["b"]], "1", lambda: np.arange(1.0, 5.0))
    constants = Constants(Side(model, [{"x": (2, 4)}]), Derivation((), (exact,)))
    node = values["b"].producer()
    assert node is not None
    if contradicted:
        with pytest.raises(Unlike):
            constants.of(node, 1)
    else:
        assert constants.of(node, 1) is None


CAST = """<ir_version: 10, opset_import: ["": 20]> g (int64[N,4] x, int32[1] z) => (int32[N,4] y) { y = %s }"""


@pytest.mark.parametrize(
    ("file", "holds"),
    [("Cast<to = 6>(x)", True), ("CastLike(x, z)", True), ("Cast<to = 6, saturate = 0>(x)", False)],
)
def test_a_cast_may_name_its_type_or_read_it_off_a_value(file: str, holds: bool) -> None:
    source, other = (ir.serde.deserialize_model(onnx.parser.parse_model(CAST % t)) for t in ("CastLike(x, z)", file))
    given = [{"x": (n, 4), "z": (1,)} for n in (2, 3)]
    assert check_derivation(source, other, Derivation(()), given).confirmed is holds
