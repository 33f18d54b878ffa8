"""BatchNorms whose scale is 0 on some channels, folded in front of operators that read each channel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

import normdeploy as nd
from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify

BN = nn.BatchNorm1d


class Heads(nn.Module):
    """Queries, keys and values are normalized and read by heads, which Einsum multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.norms = nn.ModuleList(BN(8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            norm(layer(x).transpose(1, 2)).transpose(1, 2).unflatten(-1, (2, 4))
            for layer, norm in zip(self.layers, self.norms, strict=False)
        )
        weights = torch.einsum("bthe,bshe->bhts", q, k).mul(0.5).softmax(-1)
        result: Tensor = self.layers[3](torch.einsum("bhts,bshe->bthe", weights, v).flatten(2))
        return result


class LinearAttention(nn.Module):
    """Keys times values first; the values are normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.norm, self.o = *(nn.Linear(8, 8) for _ in range(3)), BN(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
        v = self.norm(self.v(x).transpose(1, 2)).transpose(1, 2)
        z = 1 / (torch.einsum("bnd,bd->bn", q, k.sum(1)) + 1e-6)
        result: Tensor = self.o(torch.einsum("bnd,bde,bn->bne", q, torch.einsum("bnd,bne->bde", k, v), z))
        return result


class Upsampled(nn.Module):
    """A picture made by a layer, normalized and made larger."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.conv = nn.Linear(6, 128), nn.BatchNorm2d(8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.conv(F.interpolate(self.norm(self.layer(x).unflatten(1, (8, 4, 4))), scale_factor=2))
        return result


class Branches(nn.Module):
    """UniRepLKNet's: dilated kernels beside a large one, a norm behind each and one behind their sum."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((9, 1), (5, 1), (3, 2), (3, 3))
        self.convs = nn.ModuleList(
            nn.Conv2d(6, 6, k, padding=d * (k - 1) // 2, dilation=d, groups=6, bias=False) for k, d in sizes
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in sizes)
        self.last, self.layer = nn.BatchNorm2d(6), nn.Linear(6, 12)

    def forward(self, x: Tensor) -> Tensor:
        total = torch.stack([norm(conv(x)) for conv, norm in zip(self.convs, self.norms, strict=True)]).sum(0)
        return x.mean(1, keepdim=True) + F.gelu(self.layer(self.last(total).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class RowOfKernels(nn.Sequential):
    """Two kernels that become one, a layer over another axis than the norm's, and the norm."""

    def __init__(self) -> None:
        first, second = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, (3, 1), groups=6)
        super().__init__(first, second, nn.Linear(6, 4), nn.BatchNorm2d(6))


class Positions(nn.Module):
    """A shift along another axis in front of the norm, and a layer scale behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(6, 8, 1), BN(8)
        self.places, self.scale = nn.Parameter(torch.randn(5)), nn.Parameter(torch.rand(8, 1) + 0.3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.conv(x) + self.places) * self.scale
        return result


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "heads": (Heads, (2, 5, 8)),
    "linear attention": (LinearAttention, (2, 5, 8)),
    "upsampled": (Upsampled, (2, 6)),
    "branches": (Branches, (2, 6, 11, 11)),
    "kernels in a row": (RowOfKernels, (2, 3, 6, 6)),
    "positions in front and a scale behind": (Positions, (2, 6, 5)),
}


def drawn(kind: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = CASES[kind]
    model = make().eval()
    for index, norm in enumerate(model.modules()):
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias)
            norm.running_mean.normal_()  # type: ignore[union-attr]  # they are tracked
            norm.running_var.uniform_(0.3, 2)  # type: ignore[union-attr]
            norm.weight.data[index % 3 :: 3] = 0  # keys' elsewhere: what queries add to all keys alike does nothing
    return model, torch.randn(shape)


@pytest.mark.parametrize("kind", list(CASES))
def test_a_right_file_is_written_and_each_operator_proven(kind: str, tmp_path: Path) -> None:
    model, x = drawn(kind)
    verdict = nd.export(model, x, tmp_path / "net.onnx", verify="quick").verdict
    assert verdict is not None
    assert verdict.check("derivation").status == "pass", verdict.check("derivation").detail


@pytest.mark.parametrize("kind", list(CASES))
def test_what_is_scaled_by_nothing_has_its_shift_and_no_more(kind: str, tmp_path: Path) -> None:
    """Weights that are 0 and biases of such channels are held against the source like others."""
    model, x = drawn(kind)
    traced = trace(model, (x,))
    rewritten = rewrite(traced.model)
    proto = onnx.load(save_graph(rewritten.model.clone(), tmp_path / "net.onnx"))
    found = 0
    for stored in proto.graph.initializer:
        array = numpy_helper.to_array(stored)
        if array.dtype != np.float32 or array.ndim < 2 or array.size < 32 or (array != 0).all():
            continue
        place = tuple(np.argwhere(array == 0)[0])
        wrong = array.copy()
        wrong[place] = np.abs(array).max() / 100
        stored.CopyFrom(numpy_helper.from_array(wrong, stored.name))
        onnx.save(proto, tmp_path / "wrong.onnx")
        stored.CopyFrom(numpy_helper.from_array(array, stored.name))
        known = {"traced": traced, "rewritten": rewritten}
        verdict = verify(model, tmp_path / "wrong.onnx", args=(x,), level="quick", **known)
        assert verdict.status == "fail", verdict.summary()
        found += 1
    assert found or kind == "branches"  # whose kernels are one, of which no channel is 0
