"""Sizes of which a model makes numbers by ``int`` and the like: the batch stays dynamic, the file is right at each."""

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
from normdeploy.exporting.torch_exporter.whole_sizes import numbers_made_of_sizes, sizes_kept
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


class Counted(nn.Module):
    """As RT-DETR has it: the batch is the length of a tensor, and an anchor is repeated for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.randn(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = len(x)
        rows = [x[:, at] for at in range(x.shape[1])]
        return torch.cat([row.reshape(count, -1) for row in rows], 1) + self.anchor.repeat(count, len(rows))


class Sampled(nn.Module):
    """As NeRF has it, which samples along each ray."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(0, 1, 4).expand(len(x), 4).contiguous() * x[:, 0, :1] + x.mean(dim=(1, 2))[:, None]


class Averaged(nn.Module):
    """A mean over the batch by hand; `int` stays a type for torch where it makes no number of a size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(2.0, float)
        assert not isinstance(2, float)
        whole = torch.zeros(len(x), 1, 1, dtype=int) + float("1")
        return x - x.sum(0, keepdim=True) / float(x.shape[0]) + whole


class Rounded(nn.Module):
    """Python rounds halves to even numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * round(x.shape[0] / 2) + torch.sym_sqrt(x.shape[0])


class Decimals(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * round(x.shape[0] / 3, 2)


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


@pytest.mark.parametrize("kind", [Counted, Sampled, Averaged, Rounded])
def test_a_number_made_of_the_batch_keeps_it(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    path, model = tmp_path / "net.onnx", kind().eval()
    result = nd.export(model, torch.randn(3, 2, 4), path)
    assert result.verdict.status == "pass"
    assert not [note for note in result.notes if "fixed" in note]
    for batch in (1, 3, 5, 7):
        x = torch.randn(batch, 2, 4)
        with torch.no_grad():
            np.testing.assert_allclose(_run(path, x), model(x).numpy(), rtol=1e-5, atol=1e-6)
    assert not {"int", "float", "len"} & set(HERE)


def test_a_number_that_onnx_has_no_form_for_fixes_it() -> None:
    traced = trace(Decimals().eval(), torch.randn(3, 4))
    assert list(traced.model.graph.inputs[0].shape) == [3, 4]
    (note,) = (note for note in traced.notes if "fixed at the example's size" in note)
    assert "round(size, ndigits) has no form in ONNX" in note


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


class Neighbours(nn.Module):
    """A layer of a graph network: rows are mixed by a matrix of a fixed number of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return a @ self.linear(x)


def test_a_size_that_another_input_fixes_is_fixed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, example = Neighbours().eval(), (torch.randn(10, 6), torch.randn(7, 10))
    result = nd.export(model, example, tmp_path / "net.onnx")
    assert result.verdict.status == "pass"
    session = ort.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    assert [slot.shape for slot in session.get_inputs()] == [[10, 6], [7, 10]]


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
    with pytest.raises(ZeroDivisionError), sizes_kept([(HERE, "int")]):
        _ = HERE["int"]("1") / 0
    assert "int" not in HERE
    assert torch.SymInt.__int__ is before


@pytest.mark.parametrize("name", ["int", "len"])
def test_what_the_authors_call_so_is_left_alone(name: str) -> None:
    place = {name: float}
    with sizes_kept([(place, name)]):
        assert place[name] is float
    assert place == {name: float}


def test_what_stands_for_len_is_len_for_all_else() -> None:
    place, name = {"torch": torch}, "len"
    source = "seen = (len('abc'), len({1: 2}), len(range(4)), len(torch.zeros(5, 2)), len(torch.nn.Sequential()))"
    with sizes_kept([(place, name)]):
        exec(source, place)
        with pytest.raises(TypeError, match="0-d tensor"):
            exec("len(torch.tensor(1.0))", place)
    assert place["seen"] == (3, 1, 4, 5, 0)


def test_what_stands_for_float_is_float_for_all_else() -> None:
    place, name = dict[str, object](), "float"
    source = "seen = (float('7'), float(2), float(), isinstance(1.0, float), isinstance(1, float))"
    with sizes_kept([(place, name)]):
        exec(source, place)
    assert place["seen"] == (7.0, 2.0, 0.0, True, False)


def test_what_stands_for_int_is_int_for_all_else() -> None:
    place, name = dict[str, object](), "int"
    source = "seen = (int('7'), int('ff', 16), int(2.9), int(), isinstance(True, int), isinstance(1.0, int))"
    with sizes_kept([(place, name)]):
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
    assert [(place is other.__dict__, name) for place, name in found] == [(True, "int")]
