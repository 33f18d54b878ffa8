"""An embedding with its normalization folded into the table: each row is compared, which is all that can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import Verdict, verify
from normdeploy.verification.derivation.regions.two_regions import Regions

IDS = torch.arange(14).reshape(2, 7) % 11


class Table(nn.Module):
    """Rows, normalized."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.norm, self.head = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.table(ids)).tanh())


def test_a_table_that_took_up_a_norm_is_confirmed_at_every_row(tmp_path: Path):
    net = Table().eval()
    net.table.weight.data[4] *= 1e-3  # the one row at which the epsilon counts
    exported = nd.export(net, IDS, tmp_path / "net.onnx")
    assert {node.op_type for node in onnx.load(exported.path).graph.node} == {"Gather", "Tanh", "MatMul", "Add"}
    assert exported.verdict is not None
    (said,) = (check for check in exported.verdict.checks if check.name == "derivation")
    assert said.status == "pass", said.detail


class Spelled(nn.Module):
    """As a T5 or LLaMA spells its norm; the scaled rows are read once more, so that what is spelled stays in view."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.scale, self.head = nn.Embedding(11, 8), nn.Parameter(torch.rand(8) + 0.5), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-2))
        return x * 3.0 + self.head(x).tanh()


def test_a_table_that_took_up_a_spelled_norm_is_confirmed_at_every_row(tmp_path: Path):
    exported = nd.export(Spelled().eval(), IDS, tmp_path / "net.onnx")
    assert not {"ReduceMean", "RMSNormalization"} & {node.op_type for node in onnx.load(exported.path).graph.node}
    assert exported.verdict is not None
    (said,) = (check for check in exported.verdict.checks if check.name == "derivation")
    assert said.status == "pass", said.detail


def units_off(net: nn.Module, folder: Path, row: int, units: int) -> Verdict:
    """Return the verdict of an own file of which one number of the table is so many units of the last place off."""
    traced = trace(net, IDS)
    rewritten = rewrite(traced.model)
    path = save_graph(rewritten.model.clone(), folder / "net.onnx")
    proto = onnx.load(path)
    (table,) = (tensor for tensor in proto.graph.initializer if tuple(tensor.dims) == (11, 8))
    numbers = numpy_helper.to_array(table).copy()
    for _ in range(units):
        numbers[row, 3] = np.nextafter(numbers[row, 3], np.float32(9))
    table.CopyFrom(numpy_helper.from_array(numbers, table.name))
    onnx.save(proto, path)
    return verify(net, path, args=IDS, traced=traced, rewritten=rewritten, level="quick")


@pytest.mark.parametrize("row", [0, 4, 10])
def test_a_number_of_such_a_table_that_is_two_units_off_is_named(tmp_path: Path, row: int):
    verdict = units_off(Table().eval(), tmp_path, row, 2)
    (said,) = (check for check in verdict.checks if check.name == "derivation")
    assert said.status == "fail", said.detail
    assert "Gather" in said.detail


@pytest.mark.parametrize(("units", "status"), [(0, "note"), (2, "fail")])
def test_where_such_a_table_is_open_its_own_digits_are_no_contradiction_and_others_are(
    units: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """That nothing was rewritten is tried then, and finds last digits that are not the rounding of the source's."""
    monkeypatch.setattr(Regions, "unseen", lambda *_: "nothing is seen")
    net = Table().eval()
    net.table.weight.data[4] *= 1e-3
    verdict = units_off(net, tmp_path, 4, units)
    (said,) = (check for check in verdict.checks if check.name == "derivation")
    assert said.status == status, said.detail
    assert verdict.status == ("pass" if status == "note" else "fail"), verdict.summary()
