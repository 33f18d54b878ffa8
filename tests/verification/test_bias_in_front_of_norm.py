"""A bias that a norm takes away again: beside it small inputs round off, which is no difference of the graphs."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch
from torch import nn

from normdeploy.exporting.trace import trace
from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation

HEAD = '<ir_version: 10, opset_import: ["": 20]> g (float[2,1,6,6] x) => (float[2,2,6,6] y) '
CONSTANTS = "<float[2,1,1,1] w = {0.1, 0.3}, float[2] one = {1, 1}, float[2] none = {0, 0}"
SOURCE = f"{HEAD}{CONSTANTS}, float[2] b = {{50, -20}}> {{ c = Conv(x, w, b) y = InstanceNormalization(c, one, none) }}"
FILE = f"{HEAD}{CONSTANTS}> {{ c2 = Conv(x, w) y = InstanceNormalization(c2, one, none) }}"
SIZES = [{"x": (2, 1, 6, 6)}]


def confirmed(file: str) -> bool:
    graphs = [ir.from_onnx_text(text) for text in (SOURCE, file)]
    return check_derivation(graphs[0], graphs[1], Derivation((Hint("y", "y"),)), SIZES).confirmed


def test_what_rounds_off_shows_nothing():
    assert confirmed(FILE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("InstanceNormalization(", "InstanceNormalization<epsilon = 1.01e-5>("),
        ("InstanceNormalization(", "InstanceNormalization<epsilon = 0.0>("),
        ("{0.1, 0.3}", "{0.1, 0.30001}"),
        ("{0, 0}", "{0, 1e-6}"),
    ],
)
def test_what_differs_is_seen(old: str, new: str):
    assert old in FILE
    assert not confirmed(FILE.replace(old, new))


def test_the_rewriting_says_what_it_dropped():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.InstanceNorm2d(3), nn.ConvTranspose2d(3, 2, 2), nn.InstanceNorm2d(2))
    traced = trace(model.eval(), torch.randn(2, 1, 8, 8)).model
    found = rewrite(traced)
    products = [node for node in found.model.graph if node.op_type in ("Conv", "ConvTranspose")]
    assert [len(node.inputs) for node in products] == [2, 2]
    report = check_derivation(traced, found.model, found.derivation, [{"input": (2, 1, 8, 8)}])
    assert report.confirmed
    kinds = {row.node.name: row.identity.partition(":")[0] for row in report.rows}
    assert {kinds[node.name] for node in products} == {"linear"}  # one by one, not with the norm behind it, at points
