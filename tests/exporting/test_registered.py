"""Plain tensors that forward assigns do not stop the trace, and are given back as they were."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from normdeploy.exporting.plain_tensors import module_tensors, plain_tensors_registered


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
