"""A dynamic number of time steps: kept through recurrent layers, told where the trace fixes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd

DYNAMIC = ({0: torch.export.Dim("n"), 1: torch.export.Dim("time")},)


class Recurrent(nn.Module):
    """A norm and a convolution behind a recurrent layer: the border of a picture of unknown length."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = layer(6, 6, batch_first=True)
        self.norm, self.conv = nn.BatchNorm1d(6), nn.Conv1d(6, 4, 3, padding=1)
        nn.init.normal_(self.norm.running_mean)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(self.layer(x)[0].transpose(1, 2)))


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
def test_time_stays_dynamic_through_a_recurrent_layer(layer: type[nn.RNNBase], tmp_path: Path):
    """torch's shape propagation says 5, the example's number of steps: a border map of 5 places was folded by it."""
    path = tmp_path / "net.onnx"
    model = Recurrent(layer).eval()
    result = nd.export(model, (torch.randn(2, 5, 6),), path, dynamic_shapes=DYNAMIC, verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass"
    assert result.notes == []
    declared = onnx.load(path).graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in declared] == [0, 4, 0]
    session = onnxruntime.InferenceSession(path)
    for steps in (3, 12):
        x = torch.randn(2, steps, 6)
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            expected = model.double()(x.double()).numpy()
        model.float()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_size_that_stays_is_still_known_behind_a_recurrent_layer(tmp_path: Path):
    model = Recurrent(nn.GRU).eval()
    nd.export(model, (torch.randn(2, 5, 6),), tmp_path / "net.onnx", verify=False)
    declared = onnx.load(tmp_path / "net.onnx").graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in declared] == [0, 4, 5]


class Stacked(nn.Module):
    """A recurrent layer both ways, another one, and a norm of the features, of which the number is known."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GRU(6, 4, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(8, 6, batch_first=True)
        self.layer, self.norm, self.head = nn.LayerNorm(6), nn.BatchNorm1d(6), nn.Linear(6, 2)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(self.second(self.first(x)[0])[0])
        return self.head(self.norm(y.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("shapes", [None, DYNAMIC])
def test_features_behind_recurrent_layers_are_known_in_each_trace_of_a_process(shapes: Any, tmp_path: Path):
    """They are behind a Reshape to computed sizes, which inference alone loses.

    torch held the steps of a process's first trace for those of all later ones.
    """
    for steps in (3, 5):
        path = tmp_path / f"{steps}.onnx"
        result = nd.export(Stacked().eval(), (torch.randn(2, steps, 6),), path, dynamic_shapes=shapes, verify="quick")
        assert (result.notes, result.verdict and result.verdict.status) == ([], "pass")
        assert [row.reason for row in result.ledger.rows if row.action == "kept"] == []
        declared = onnx.load(path).graph.output[0].type.tensor_type.shape.dim
        assert [dim.dim_value for dim in declared] == [0, 0 if shapes else steps, 2]


class Pooled(nn.Module):
    """The batch is what a recurrent layer counts as time, and a mean over the length stands behind it."""

    def __init__(self, layer: type[nn.RNNBase], both: bool) -> None:
        super().__init__()
        self.layer = layer(5, 4, num_layers=2, bidirectional=both)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool1d(self.layer(x.transpose(1, 2))[0].transpose(1, 2), 1)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_batch_that_a_recurrent_layer_counts_as_time_stays_dynamic(
    layer: type[nn.RNNBase], both: bool, tmp_path: Path
):
    """torch ran the layer over the example's steps, and the pool behind it took their number for the only one."""
    model = Pooled(layer, both).eval()
    result = nd.export(model, (torch.randn(2, 5, 7),), tmp_path / "net.onnx", verify="quick")
    assert (result.notes, result.verdict and result.verdict.status) == ([], "pass")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    for batch in (1, 6):
        x = torch.randn(batch, 5, 7)
        (found,) = session.run(None, {"x": x.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", [{}, {"nonlinearity": "relu", "bias": False, "bidirectional": True, "num_layers": 2}])
def test_a_recurrent_translations_layer_is_one_operator_for_each_of_its_layers(given: dict[str, Any], tmp_path: Path):
    """torch's exporter has no form for nn.RNN, and wrote each of the example's steps."""
    model = nn.RNN(6, 4, batch_first=True, **given).eval()
    nd.export(model, (torch.randn(2, 7, 6),), tmp_path / "net.onnx", dynamic_shapes=DYNAMIC, verify="quick")
    file = onnx.load(tmp_path / "net.onnx")
    assert [node.op_type for node in file.graph.node].count("RNN") == model.num_layers
    x = torch.randn(3, 12, 6)
    found = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {file.graph.input[0].name: x.numpy()})
    with torch.no_grad():
        for one, expected in zip(found, model.double()(x.double()), strict=True):
            np.testing.assert_allclose(one, expected.numpy(), rtol=1e-4, atol=1e-5)


class Loop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = x[:, 0]
        for step in range(1, x.shape[1]):
            total = torch.tanh(total + x[:, step])
        return total


def test_a_dimension_that_the_trace_fixes_is_told(tmp_path: Path):
    loop = nd.export(
        Loop().eval(), (torch.randn(2, 7, 6),), tmp_path / "loop.onnx", dynamic_shapes=DYNAMIC, verify=False
    )
    [note] = loop.notes
    assert "dimension 1 of 'x' is fixed at the example's size 7" in note
    kept = nd.export(
        nn.Tanh().eval(), (torch.randn(2, 7, 6),), tmp_path / "kept.onnx", dynamic_shapes=DYNAMIC, verify=False
    )
    assert kept.notes == []
