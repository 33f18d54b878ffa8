"""Modules that compute something else while they are traced are named."""

import functools

import pytest
import torch
from torch import nn
from torch.compiler import is_compiling as asks

import normdeploy as nd
from normdeploy.exporting.tracing import traced_otherwise


def helper():
    return asks()


def imported_inside():
    import torch

    return torch.jit.is_tracing()


def decorate(function):
    @functools.wraps(function)
    def inner(self, x):
        return function(self, x)

    return inner


class Direct(nn.Module):
    def forward(self, x):
        return x.clamp(max=3) if torch.compiler.is_compiling() else x


class ByHelper(nn.Module):
    def forward(self, x):
        return x.clamp(max=3) if helper() else x


class ByMethod(nn.Module):
    def forward(self, x):
        return self.inner(x)

    def inner(self, x):
        return x * 2 if torch.onnx.is_in_onnx_export() else x


class Inherited(ByMethod):
    pass


class ImportedInside(nn.Module):
    def forward(self, x):
        return x.clamp(max=3) if imported_inside() else x


class FromInside(nn.Module):
    def forward(self, x):
        from torch.compiler import is_exporting

        return x.clamp(max=3) if is_exporting() else x


class InAComprehension(nn.Module):
    def forward(self, x):
        return sum(x if asks() else -x for _ in range(2))


class Decorated(nn.Module):
    @decorate
    def forward(self, x):
        return x.clamp(max=3) if asks() else x


class OwnName(nn.Module):
    """An attribute of that name is no question to torch."""

    def __init__(self):
        super().__init__()
        self.is_compiling = False

    def forward(self, x):
        return x * 2 if self.is_compiling else x


@pytest.mark.parametrize(
    "kind", [Direct, ByHelper, ByMethod, Inherited, ImportedInside, FromInside, InAComprehension, Decorated]
)
def test_a_module_that_asks_is_named(kind):
    (row,) = traced_otherwise(nn.Sequential(nn.Linear(3, 3), kind(), kind()))
    assert row[:2] == ("1", kind.__name__)
    assert "is_" in row[2]


@pytest.mark.parametrize("module", [OwnName(), nn.MultiheadAttention(4, 2), nn.Sequential(nn.LSTM(3, 4))])
def test_others_are_not(module):
    assert traced_otherwise(module) == []


def test_it_is_a_note_of_the_export_and_a_finding(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), Direct()).eval()
    result = nd.export(model, torch.randn(2, 3), tmp_path / "net.onnx", verify=False)
    assert any("'1' (Direct) asks torch.compiler.is_compiling()" in note for note in result.notes)
    for findings in (nd.inspect(model), nd.inspect(model, torch.randn(2, 3))):
        assert [finding.where for finding in findings.of_kind("traced-otherwise")] == ["1"]
