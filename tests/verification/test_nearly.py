"""A file that is right but for last digits, as torch's own folding in float32 leaves them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.verification import Verdict
from normdeploy.verification.float64_chain import ROUNDED_ONCE, ROUNDED_OTHERWISE, Links


class Net(nn.Module):
    """Convolutions whose results are so large that a part of an epsilon is about a rounding of them."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(3):
            conv = nn.Conv2d(6, 6, 3, padding=1, bias=False)
            with torch.no_grad():
                conv.weight *= 10
            layers += [conv, nn.BatchNorm2d(6, momentum=None), nn.SiLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layers(x).mean((2, 3)))
        return result


@dataclass
class Folded:
    model: nn.Module
    x: Tensor
    path: Path

    def verdict(self, path: Path | None = None) -> Verdict:
        return nd.verify(self.model, path or self.path, args=self.x, level="quick")


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Folded:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 6, 5, 5)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, 0, 0.3)
    model(torch.randn(64, 6, 5, 5))
    model.eval()
    path = tmp_path_factory.mktemp("nearly") / "torch.onnx"
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False, external_data=False)
    return Folded(model, x, path)


def test_what_torch_folds_in_float32_passes_and_says_what_its_rounding_hides(folded: Folded) -> None:
    assert not [node for node in onnx.load(folded.path).graph.node if node.op_type == "BatchNormalization"]
    verdict = folded.verdict()
    assert "right within another rounding" in verdict.check("derivation").detail
    assert verdict.status == "pass", verdict.summary()
    mutants = [(site, mutant) for site in verdict.sites for mutant in site.mutants]
    hidden = [mutant for _, mutant in mutants if "another order of rounding" in mutant.note]
    assert hidden
    assert all(mutant.name.startswith("epsilon") and mutant.harmless for mutant in hidden)
    assert all(mutant.killed or mutant.harmless for _, mutant in mutants)
    smallest = min(float(n.running_var.min()) for n in folded.model.modules() if isinstance(n, nn.BatchNorm2d))
    assert 1e-5 / smallest / 2 < 20 * 2.0**-24 * 2  # what is called hidden is no larger than what may be off


@pytest.mark.parametrize("units", [64, 1000])
def test_a_number_further_off_than_another_rounding_fails(folded: Folded, tmp_path: Path, units: int) -> None:
    proto = onnx.load(folded.path)
    (weights, *_) = [t for t in proto.graph.initializer if list(t.dims) == [6, 6, 3, 3]]
    array = numpy_helper.to_array(weights).copy()
    place = np.unravel_index(np.abs(array).argmax(), array.shape)
    array[place] *= np.float32(1 + units * 2.0**-24)
    weights.CopyFrom(numpy_helper.from_array(array, weights.name))
    onnx.save(proto, tmp_path / "off.onnx")
    verdict = folded.verdict(tmp_path / "off.onnx")
    assert verdict.status == "fail", verdict.summary()
    assert verdict.check("derivation").status == "fail", verdict.summary()


def test_more_is_let_pass_the_less_is_known() -> None:
    assert Links().limit == 1
    assert Links(hold=True).limit == ROUNDED_ONCE
    assert Links(nearly=True).limit == ROUNDED_OTHERWISE


class Ghost(nn.Module):
    """A norm whose shift is about a rounding of what it shifts, in front of a padded convolution; a sum in a view."""

    def __init__(self) -> None:
        super().__init__()
        self.point, self.norm = nn.Conv2d(6, 6, 1, bias=False), nn.BatchNorm2d(6)
        self.around, self.last = nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        first = self.norm(self.point(x))
        both = torch.cat([first, self.last(self.around(first))], 1)[:, :12]
        both += torch.cat([x, x], 1)
        return torch.relu(both)


def test_a_shift_that_another_rounding_hides_is_hidden_behind_a_padded_border(tmp_path: Path) -> None:
    """As in GhostNet, whose ``x += y`` on a view of the whole torch writes as a ScatterND of all rows."""
    torch.manual_seed(0)
    model, x = Ghost(), torch.randn(2, 6, 5, 5)
    for norm in (model.norm, model.last):
        nn.init.normal_(norm.running_mean, 0, 1e-6)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
    model.eval()
    path = tmp_path / "torch.onnx"
    dynamic = ({0: torch.export.Dim("batch", max=64)},)
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False, external_data=False, dynamic_shapes=dynamic)
    assert not {"BatchNormalization", "ScatterND"} & {node.op_type for node in onnx.load(path).graph.node}
    verdict = nd.verify(model, path, args=x, level="quick")
    assert verdict.status == "pass", verdict.summary()
    assert "right within another rounding" in verdict.check("derivation").detail
    border = [m for site in verdict.sites for m in site.mutants if "border" in m.name]
    assert border
    assert all(mutant.killed or "another order of rounding" in mutant.note for mutant in border)


LAYERS = """<ir_version: 10, opset_import: ["": 21]> g (float[n,4,5,5] x) => (float[n,4,5,5] y) {{
    c = Conv(x, w) {0} = BatchNormalization(c, g, b, m, v) s_{0} = Sigmoid({0}) p_{0} = Mul({0}, s_{0})
    d = Conv(p_{0}, u) {1} = BatchNormalization(d, g, b, m, v) s_{1} = Sigmoid({1}) p_{1} = Mul({1}, s_{1})
    y = Conv(p_{1}, w) }}"""

FOLDED = """<ir_version: 10, opset_import: ["": 21]> g (float[n,4,5,5] x) => (float[n,4,5,5] y) {{
    {0} = Conv(x, wf, k) s_{0} = Sigmoid({0}) p_{0} = Mul({0}, s_{0})
    {1} = Conv(p_{0}, uf, k) s_{1} = Sigmoid({1}) p_{1} = Mul({1}, s_{1}) y = Conv(p_{1}, w) }}"""


@pytest.mark.parametrize("names", [("one", "two"), ("two", "one")], ids=["named alike", "named crosswise"])
def test_numbers_within_rounding_say_more_than_names(names: tuple[str, str], tmp_path: Path) -> None:
    """torch names values by number, and another trace counts otherwise: MobileViT's."""
    rng = np.random.default_rng(0)
    w, u = rng.normal(size=(2, 4, 4, 1, 1)).astype(np.float32)
    g, b, m = rng.normal(size=(3, 4)).astype(np.float32)
    v = rng.uniform(0.5, 2.0, 4).astype(np.float32)
    scale = g / np.sqrt(v + np.float32(1e-5))  # in float32, as torch does it
    held = {"w": w, "u": u, "g": g, "b": b, "m": m, "v": v, "k": b - m * scale}
    held |= {"wf": w * scale[:, None, None, None], "uf": u * scale[:, None, None, None]}
    paths = tmp_path / "source.onnx", tmp_path / "file.onnx"
    for path, text, named in zip(paths, (LAYERS, FOLDED), (("one", "two"), names), strict=True):
        proto = onnx.parser.parse_model(text.format(*named))
        read = {name for node in proto.graph.node for name in node.input}
        proto.graph.initializer.extend(numpy_helper.from_array(held[name], name) for name in sorted(read & set(held)))
        onnx.save(proto, path)
    verdict = nd.verify(*paths, level="quick")
    assert verdict.status == "pass", verdict.summary()
    assert "right within another rounding" in verdict.check("derivation").detail
