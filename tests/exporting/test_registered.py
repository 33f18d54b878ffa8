"""Plain tensors that forward assigns do not stop the trace, and are given back as they were."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.module.plain_tensors import module_tensors, plain_tensors_registered
from normdeploy.exporting.trace import trace


class ReturnsItsAverages(nn.Module):
    """Assigns its plain running mean to itself, detached, also in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.average = torch.tensor([1.0, 2.0])

    def forward(self, x: Tensor) -> Tensor:
        y, self.average = x - self.average, self.average.detach()
        return y


def test_the_bare_trace_fails_and_the_registered_one_does_not() -> None:
    model, x = nn.Sequential(ReturnsItsAverages()), torch.randn(3, 2)
    with torch.no_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of the assignment before it fails
            with pytest.raises(StopIteration):
                torch.export.export(model, (x,), strict=False)
        with plain_tensors_registered(module_tensors(model)):
            program = torch.export.export(model, (x,), strict=False)
        torch.testing.assert_close(program.module()(x), model(x), rtol=0, atol=0)


class Caches(ReturnsItsAverages):
    def forward(self, x: Tensor) -> Tensor:
        self.cache = x.sum(0)
        return super().forward(x) + self.cache


def test_what_forward_computes_anew_is_told_apart() -> None:
    model = Caches()
    model(torch.ones(1, 2))
    held = module_tensors(model)
    model(torch.ones(1, 2))
    assert {plain.name: plain.unchanged() for plain in held} == {"average": True, "cache": False}


def test_the_very_tensors_come_back_even_after_an_error() -> None:
    model = nn.Sequential(ReturnsItsAverages())
    held = model[0].average

    def fail_inside() -> None:
        with plain_tensors_registered(module_tensors(model)):
            assert list(dict(model.named_buffers())) == ["0.average"]
            model(torch.zeros(1, 2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert vars(model[0])["average"] is held
    assert not dict(model.named_buffers())


class Grid(nn.Module):
    """Keeps a grid per size of what it is given, as YOLO's head: 0 elements in the class, whole in the instance."""

    shape: torch.Size | None = None
    grid = torch.empty(0)

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        if self.shape != y.shape:
            self.grid = torch.arange(y.shape[2] * y.shape[3], dtype=y.dtype).reshape(1, 1, *y.shape[2:])
            self.shape = y.shape
        return y + self.grid


@pytest.mark.parametrize("ran", [False, True])
@pytest.mark.parametrize("given", [1, 2])
def test_a_default_in_the_class_hides_no_tensor_of_the_instance(ran: bool, given: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Grid(), nn.ReLU()).eval(), torch.randn(given, 3, 4, 5)
    with torch.no_grad():
        expected = model(x) if ran else None
        kept = dict(vars(model[0]))
        result = nd.export(model, x, tmp_path / "net.onnx", verify="quick")
        assert result.verdict is not None
        assert result.verdict.passed
        assert vars(model[0]) == kept
        again = torch.randn(3, 3, 4, 5)
        found = nd.load(tmp_path / "net.onnx")({"input": again.numpy()})["output"]
        torch.testing.assert_close(torch.from_numpy(found), model(again))
        assert expected is None or torch.equal(model(x), expected)


def test_a_run_that_fails_half_way_leaves_no_size_behind() -> None:
    """The batch is fixed by a view, after a size was kept whose grid is not there yet."""

    class Fixed(Grid):
        def forward(self, x: Tensor) -> Tensor:
            if self.shape != x.shape:
                self.shape = x.shape
                x.view(1, -1)
                self.grid = torch.arange(x.shape[-1], dtype=x.dtype) + x[:1].new_zeros(1).view(x.shape[0])
            return x + self.grid

    model = Fixed().eval()
    traced = trace(model, torch.randn(1, 3, 4, 5))
    assert any("fixed at the example's size" in note for note in traced.notes)
    assert model.shape is None
