"""A dynamic number of time steps: kept through recurrent layers, told where the trace fixes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from forked_python import ForkedPython
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.trace import trace

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


@pytest.mark.parametrize("layer", ["GRU", "LSTM"])
def test_time_stays_dynamic_through_a_recurrent_layer(layer: str, tmp_path: Path, forked: ForkedPython):
    """In a process of its own, twice: after some traces of other networks torch fixes a dimension, and it is told."""
    program = f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"
    done = forked.run(program, layer, str(tmp_path / "net.onnx"), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def stays_dynamic(layer: type[nn.RNNBase], path: Path) -> None:
    """torch's shape propagation says 7, the example's number of steps: a border map of 7 places was folded by it."""
    torch.manual_seed(0)
    model = Recurrent(layer).eval()
    result = nd.export(model, (torch.randn(2, 7, 6),), path, dynamic_shapes=DYNAMIC, verify="quick")
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


def as_dynamic_again(layer: type[nn.RNNBase]) -> None:
    traced = trace(layer(6, 6, batch_first=True).eval(), (torch.randn(2, 7, 6),), dynamic_shapes=DYNAMIC)
    assert traced.notes == []
    assert not any(isinstance(size, int) for size in traced.model.graph.inputs[0].shape[:2])


def test_a_size_that_stays_is_still_known_behind_a_recurrent_layer(tmp_path: Path):
    model = Recurrent(nn.GRU).eval()
    nd.export(model, (torch.randn(2, 7, 6),), tmp_path / "net.onnx", verify=False)
    declared = onnx.load(tmp_path / "net.onnx").graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in declared] == [0, 4, 7]


class Stacked(nn.Module):
    """A recurrent layer both ways, another one, and a norm of the features: all sizes but the batch are known."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GRU(6, 4, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(8, 6, batch_first=True)
        self.layer, self.norm, self.head = nn.LayerNorm(6), nn.BatchNorm1d(6), nn.Linear(6, 2)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(self.second(self.first(x)[0])[0])
        return self.head(self.norm(y.transpose(1, 2)).transpose(1, 2))


def test_sizes_behind_recurrent_layers_are_known_where_the_number_of_steps_is(tmp_path: Path):
    """The features behind a layer that runs both ways are a Reshape to computed sizes: inference alone loses them."""
    result = nd.export(Stacked().eval(), (torch.randn(2, 7, 6),), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass"
    assert [row.reason for row in result.ledger.rows if row.action == "kept"] == []


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
def test_a_plain_recurrent_layer_is_one_operator_for_each_of_its_layers(given: dict[str, Any], tmp_path: Path):
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


if __name__ == "__main__":
    stays_dynamic(getattr(nn, sys.argv[1]), Path(sys.argv[2]))
    as_dynamic_again(getattr(nn, sys.argv[1]))
