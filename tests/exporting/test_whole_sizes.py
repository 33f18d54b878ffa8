"""Sizes of which a model makes numbers by ``int``: the batch stays dynamic, and the file is right at every one."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.errors import TraceError
from normdeploy.exporting.torch_exporter.whole_sizes import int_keeps_sizes, numbers_made_of_sizes
from normdeploy.exporting.trace import trace

HERE = sys.modules[__name__].__dict__


def window_partition(x: torch.Tensor, size: int) -> torch.Tensor:
    """Cut an image into windows, as the first Swin transformers do."""
    batch, height, width, channels = x.shape
    x = x.view(batch, height // size, size, width // size, size, channels)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size, size, channels)


def window_reverse(windows: torch.Tensor, size: int, height: int, width: int) -> torch.Tensor:
    """Join them again: the batch is computed by a division of floats."""
    batch = int(windows.shape[0] / (height * width / size / size))
    x = windows.view(batch, height // size, width // size, size, size, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(batch, height, width, -1)


class Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, height, width, _ = x.shape
        windows = self.linear(self.norm(window_partition(x, 4)))
        windows = windows - windows.mean((1, 2), keepdim=True)
        return x + window_reverse(windows, 4, height, width)


class Flattened(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(int(x.size(0)), -1) * 2


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(3, int)
        assert not isinstance(3.0, int)
        half = int(0.5 * x.shape[1] + int("1") - 1)
        return x[:, :half] + x[:, half:]


class Rows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[at] * (at + 1) for at in range(int(x.shape[0]))])


def _run(path: Path, x: torch.Tensor) -> np.ndarray:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_windows_are_joined_right_at_every_batch(tmp_path: Path, first: int) -> None:
    torch.manual_seed(0)
    model, path = Windows().eval(), tmp_path / "net.onnx"
    result = nd.export(model, torch.randn(first, 8, 12, 6), path)
    assert result.verdict.status == "pass"
    assert not [note for note in result.notes if "fixed" in note]
    for batch in (1, 2, 3, 5, 8):
        x = torch.randn(batch, 8, 12, 6)
        with torch.no_grad():
            np.testing.assert_allclose(_run(path, x), model(x).numpy(), rtol=1e-4, atol=1e-5)


def test_an_int_of_the_batch_itself_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    nd.export(Flattened().eval(), torch.randn(3, 2, 4), path)
    for batch in (1, 3, 7):
        x = torch.randn(batch, 2, 4)
        np.testing.assert_array_equal(_run(path, x), 2 * x.reshape(batch, -1).numpy())


def test_a_dimension_that_was_asked_for_is_kept_too(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    nd.export(Pairs().eval(), torch.randn(2, 6), path, dynamic_shapes={"x": {0: "batch", 1: "width"}}, verify=False)
    for width in (2, 6, 10):
        x = torch.randn(4, width)
        np.testing.assert_allclose(_run(path, x), (x[:, : width // 2] + x[:, width // 2 :]).numpy(), rtol=1e-6)


def test_a_loop_over_it_fixes_it_and_a_note_says_so() -> None:
    traced = trace(Rows().eval(), torch.randn(3, 4))
    assert any("fixed at the example's size" in note for note in traced.notes)
    with pytest.raises(TraceError, match=r"^the model cannot be traced: it fixes a dimension that was asked to be dyn"):
        trace(Rows().eval(), torch.randn(3, 4), dynamic_shapes={"x": {0: "batch"}})


class Root(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : math.floor(math.sqrt(x.shape[1] * x.shape[1]) / 2)]


def test_a_number_that_no_second_trace_keeps_is_refused_where_it_was_asked_for() -> None:
    """torch writes the example's 3 for it; its file answers in half of the example's width at every width."""
    with pytest.raises(TraceError, match=r"Python number is made of it.*pass dynamic_shapes without that dimension"):
        trace(Root().eval(), torch.randn(2, 6), dynamic_shapes={"x": {0: "batch", 1: "width"}})


def test_the_module_has_its_own_int_again() -> None:
    before = torch.SymInt.__int__
    trace(Windows().eval(), torch.randn(2, 8, 8, 6))
    assert "int" not in HERE
    with pytest.raises(ZeroDivisionError), int_keeps_sizes([HERE]):
        _ = HERE["int"]("1") / 0
    assert "int" not in HERE
    assert torch.SymInt.__int__ is before


def test_an_int_of_the_authors_is_left_alone() -> None:
    place = {"int": float}
    with int_keeps_sizes([place]):
        assert place == {"int": float}
    assert place == {"int": float}


def test_what_stands_for_int_is_int_for_all_else() -> None:
    place: dict[str, object] = {}
    source = "seen = (int('7'), int('ff', 16), int(2.9), int(), isinstance(True, int), isinstance(1.0, int))"
    with int_keeps_sizes([place]):
        exec(source, place)
    assert place["seen"] == (7, 255, 2, 0, True, False)


def test_only_code_that_makes_numbers_of_sizes_is_found() -> None:
    other = types.ModuleType("other")
    exec("def half(x):\n    return x[: int(x.shape[0] / 2)]\n", other.__dict__)

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return other.half(x) * int("2")

    with numbers_made_of_sizes() as found:
        torch.export.export(Model(), (torch.randn(6, 2),), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)
    assert [place is other.__dict__ for place in found] == [True]
