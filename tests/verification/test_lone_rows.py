"""A norm whose rows have no neighbour: proven where the graph fixes one row, held against the module on two samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.check_levels import LEVELS
from normdeploy.verification.mutation import probes
from normdeploy.verification.mutation.lone_rows import one_row
from normdeploy.verification.mutation.mutant_sites import sites_of
from normdeploy.verification.record.answers import Killer, MutantReport
from normdeploy.verification.record.verdict import Verdict

NEIGHBOUR = "a neighbouring row's statistics"


class ClassToken(nn.Module):
    """Tokens of which the first alone is normalized, as XCiT's last blocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 1.5)
            self.norm.bias.normal_(0.0, 0.2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(x[:, :1])).squeeze(1)
        return y


def judged(tmp_path: Path, *, dynamic: bool, onnx: bool = False) -> tuple[Verdict, MutantReport]:
    torch.manual_seed(0)
    model, x = ClassToken().eval(), torch.randn(1, 5, 8)
    traced = trace(model, (x,), dynamic_shapes=None if dynamic else {"x": {}})
    rewritten = rewrite(traced.model)
    source, path = tmp_path / "source.onnx", tmp_path / "net.onnx"
    save_graph(traced.model.clone(), source)
    save_graph(rewritten.model.clone(), path)
    shapes = None if dynamic else {"x": {}}
    if onnx:
        verdict = verify(source, path, args={"x": x.numpy()}, level="quick")
    else:
        given = {"traced": traced, "rewritten": rewritten, "dynamic_shapes": shapes}
        verdict = verify(model, path, args=(x,), level="quick", **given)
    (mutant,) = (m for site in verdict.sites for m in site.mutants if m.name == NEIGHBOUR)
    return verdict, mutant


@pytest.fixture
def single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every network for one of which a run is much work, whose families have one sample; nothing may be fed.

    Nor do calls name numbers in place of the run that is looked at.
    """
    monkeypatch.setitem(LEVELS, "quick", replace(LEVELS["quick"], heavy=-1.0, lean=False))
    monkeypatch.setattr(probes, "cut_at", lambda *_: pytest.fail("a site was fed directly"))


@pytest.mark.parametrize("onnx", [False, True])
@pytest.mark.usefixtures("single_rows")
def test_rows_that_only_a_batch_sets_beside_each_other_are_looked_at_on_two_samples(tmp_path: Path, onnx: bool):
    verdict, mutant = judged(tmp_path, dynamic=True, onnx=onnx)
    assert verdict.status == "pass", verdict.summary()
    assert (mutant.killed, mutant.family) == (True, "batch=2")
    assert mutant.by is (Killer.DERIVATION if onnx else Killer.MODULE)


@pytest.mark.usefixtures("single_rows")
def test_a_row_that_never_has_a_neighbour_has_nothing_to_detect(tmp_path: Path):
    verdict, mutant = judged(tmp_path, dynamic=False)
    assert verdict.status == "pass", verdict.summary()
    assert (mutant.killed, mutant.harmless) == (False, True)
    assert "for every input" in mutant.note


@pytest.mark.parametrize(
    ("shape", "axis", "alone"),
    [("N,1,8", -1, False), ("1,1,8", -1, True), ("1,5,8", -1, False), ("1,5,8", 1, True), ("4,5,8", 0, True)],
)
def test_what_the_graph_says_of_rows(shape: str, axis: int, alone: bool):
    widths = shape.split(",")[axis % 3 :]
    count = torch.tensor([8 if n == "8" else int(n) for n in widths]).prod()
    ones = ", ".join(["1.0"] * int(count))
    graph = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 20]> g (float[{shape}] x) => (float[{shape}] y)
        <float[{",".join(widths)}] s = {{{ones}}}> {{ y = LayerNormalization<axis = {axis}>(x, s) }}"""
    )
    (site,) = sites_of(graph.graph)
    assert one_row(site) is alone


def test_one_row_has_the_right_result_and_two_have_not():
    """What is claimed of the mutant itself, in float64."""
    net = ClassToken().eval()
    (site,) = sites_of(trace(net, (torch.randn(2, 5, 8),)).model.graph)
    (mutant,) = (m for m in site.mutants if m.between_rows)
    x, weight, bias = (t.detach().double() for t in (torch.randn(2, 1, 8), net.norm.weight, net.norm.bias))
    one, both = mutant.apply([x[:1], weight, bias]), mutant.apply([x, weight, bias])
    deviation = (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    right = (x - x.mean(-1, keepdim=True)) / deviation * weight + bias
    assert torch.allclose(one, right[:1], rtol=1e-12, atol=0)
    assert float((both - right).abs().max()) > 0.1
