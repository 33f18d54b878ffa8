"""What the public functions add to the rooms they compose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.conformance import by_hand
from normdeploy.errors import UsageError

SAMPLES = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def test_export_says_what_the_doctor_calls_an_error(tmp_path: Path) -> None:
    """A faithful export of a broken normalization is a broken deployment: equal, and not silently so."""
    untracked = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 2))
    result = nd.export(untracked, SAMPLES, tmp_path / "net.onnx", verify="quick")
    assert any(note.startswith("1: ") and "no running statistics" in note for note in result.notes)
    assert result.verdict is not None
    assert result.verdict.check("companions").status == "note"
    assert "the reference itself mixes the samples of a batch" in result.verdict.summary()


def test_export_of_running_layernorm_statistics_is_not_silent(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), by_hand.L2(8), nn.Linear(8, 2))
    model.train()
    model(SAMPLES)
    result = nd.export(model.eval(), SAMPLES, tmp_path / "net.onnx", dynamic_shapes={}, verify="quick")
    assert any("running statistics of shape [6, 1]" in note for note in result.notes)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8), nn.LayerNorm(8), by_hand.B2(8)])
def test_nothing_is_said_of_sound_norms(norm: nn.Module, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 2))
    model(SAMPLES)
    assert nd.export(model.eval(), SAMPLES, tmp_path / "net.onnx", verify=False).notes == []


def test_a_file_in_float16_is_folded_first_and_rounded_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()
    model[1].running_var.uniform_(0.5, 2)
    result = nd.export(model, SAMPLES, tmp_path / "net.onnx", dtype="float16", verify="quick")
    assert result.verdict is not None
    assert result.verdict.check("conversion").status == "pass"
    proto = onnx.load(tmp_path / "net.onnx")
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    assert {array.dtype.name for array in stored.values() if array.dtype.kind == "f"} == {"float16"}
    assert proto.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert proto.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    scale = model[1].weight.double() / (model[1].running_var.double() + model[1].eps).sqrt()
    exact = (model[0].weight.double() * scale[:, None]).detach().numpy()
    (kernel,) = [array for array in stored.values() if array.shape in ((4, 8), (8, 4))]
    np.testing.assert_array_equal(kernel if kernel.shape == (8, 4) else kernel.T, exact.astype(np.float16))
    with pytest.raises(UsageError, match=r"'int4'.*float32, float16"):
        nd.export(model, SAMPLES, tmp_path / "other.onnx", dtype="int4")  # type: ignore[arg-type]  # a wrong word


@pytest.mark.parametrize(("name", "instead"), [("q.txt", "q.onnx"), ("q", "q.onnx"), (".", "model.onnx")])
def test_an_output_that_is_not_named_onnx_is_refused_before_any_work(name: str, instead: str, tmp_path: Path) -> None:
    class Unwilling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError(f"it was called with {x}")

    with pytest.raises(UsageError, match=rf"ends in \.onnx: write .*{instead}"):
        nd.export(Unwilling(), torch.zeros(1), tmp_path / name if name != "." else name)
    with pytest.raises(UsageError, match=rf"ends in \.onnx: write .*{instead}"):
        nd.fold(tmp_path / "unread.onnx", tmp_path / name if name != "." else name)
    assert not list(tmp_path.iterdir())


def test_an_output_in_capitals_is_onnx_too(tmp_path: Path) -> None:
    assert nd.export(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "NET.ONNX", verify=False).path.exists()
