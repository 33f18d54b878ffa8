"""``weight.data`` read and assigned in a forward: the file holds what eager torch computes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normdeploy as nd


class MergedAtEveryCall(nn.Module):
    """A 1x1 and a 3x3 convolution and a norm, merged in each forward, as networks of super-resolution do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)
        self.merged = nn.Conv2d(3, 5, 3)
        for tensor in (self.norm.running_mean, self.norm.weight, self.norm.bias):
            nn.init.normal_(tensor)
        self.merged.weight.requires_grad = False

    def merge(self) -> None:
        first, second = self.first.weight.data.clone().detach(), self.second.weight.data.clone().detach()
        self.merged.weight.data = F.conv2d(second, first.permute(1, 0, 2, 3)).contiguous()
        self.merged.bias.data = (second.sum((2, 3)) @ self.first.bias.data) + self.second.bias.data

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.merge()
        return self.norm(self.merged(x))

    def by_parts(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(self.first(x)))


class Twice(nn.Module):
    """What is assigned first is read, and assigned over."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = x * self.weight
        held = self.weight.data
        self.weight.data = held * 2
        between = x * self.weight
        self.weight.data = self.weight.data + 1
        result = before + 10 * between + 100 * (x * self.weight)
        self.weight.data = held
        return result


def _run(path: Path, x: torch.Tensor) -> np.ndarray:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


def test_what_is_merged_at_every_call_is_one_convolution(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, path = MergedAtEveryCall().eval(), tmp_path / "net.onnx"
    kept = model.merged.weight.detach().clone()
    result = nd.export(model, torch.randn(2, 3, 8, 8), path)
    assert result.verdict.status == "pass"
    assert [node.op_type for node in onnx.load(path).graph.node] == ["Conv"]
    assert torch.equal(model.merged.weight, kept), "the export leaves the model as it was"
    x = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        expected = model.double().by_parts(x.double()).numpy()
    np.testing.assert_allclose(_run(path, x), expected, rtol=1e-3, atol=1e-5)


def test_each_reader_sees_what_was_assigned_before_it(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    nd.export(Twice().eval(), torch.randn(2, 3), path)
    x = torch.randn(4, 3)
    np.testing.assert_allclose(_run(path, x), (x * (1 + 20 + 300)).numpy(), rtol=1e-6)


class Scripted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return global_norm(x)


def global_norm(x: torch.Tensor, epsilon: float = 1e-8) -> torch.Tensor:
    """Normalize over all axes but the first; the axes come of a tensor."""
    axes: list[int] = torch.arange(1, len(x.shape)).tolist()
    mean = x.mean(dim=axes, keepdim=True)
    variance = torch.var(x, dim=axes, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + epsilon)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's, and libraries still do it
    global_norm = torch.jit.script(global_norm)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5)])
def test_a_scripted_norm_is_traced_as_it_was_written(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "net.onnx"
    nd.export(Scripted().eval(), torch.randn(shape), path)
    x = torch.randn(shape) + 3
    flat = x.double().reshape(len(x), -1)
    expected = (flat - flat.mean(1, keepdim=True)) / (flat.var(1, keepdim=True, correction=0) + 1e-8).sqrt()
    np.testing.assert_allclose(_run(path, x), expected.reshape(shape).numpy(), rtol=1e-4, atol=1e-5)
    assert isinstance(global_norm, torch.jit.ScriptFunction)
    assert "LayerNormalization" in {node.op_type for node in onnx.load(path).graph.node}
