"""Fourier transforms of fixed lengths: products with a matrix, about as exact as torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.translations.fourier_translations import FASTER

fft = torch.fft
TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "real": lambda x: torch.view_as_real(fft.rfft(x, dim=1)),
    "both sides": lambda x: torch.view_as_real(fft.fft(x, dim=1)),
    "in two dimensions, one of 8": lambda x: torch.view_as_real(fft.rfft2(x, dim=(1, 2))),
    "in two dimensions, turned": lambda x: torch.view_as_real(fft.fft2(x, dim=(2, 1), norm="ortho")),
    "there and back": lambda x: fft.irfft(fft.rfft(x, dim=1) * 2, n=6, dim=1),
    "back, odd": lambda x: fft.irfft(fft.rfft(x[:, :5], dim=1), n=5, dim=1),
    "back, longer": lambda x: fft.irfft(fft.rfft(x, dim=1), n=10, dim=1),
    "back, shorter": lambda x: fft.irfft(fft.rfft(x, dim=1), n=3, dim=1),
    "back in two dimensions": lambda x: fft.irfft2(fft.rfft2(x[..., :6], norm="ortho"), s=(6, 6), norm="ortho"),
    "inverse": lambda x: torch.view_as_real(fft.ifft(fft.fft(x, dim=1) * (1 + 1j), dim=1)),
    "divided forward": lambda x: torch.view_as_real(fft.fft(x, dim=1, norm="forward")),
    "divided forward, back": lambda x: fft.irfft(fft.rfft(x, dim=1, norm="forward"), n=6, dim=1, norm="forward"),
    "of Hermitian numbers": lambda x: fft.hfft(torch.complex(x, -x), dim=1),
}


class Every(nn.Module):
    """A norm and all transforms of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(transform(self.norm(x)) for transform in TRANSFORMS.values())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> nd.ExportResult:
    torch.manual_seed(0)
    return nd.export(Every().eval(), torch.randn(2, 6, 8), tmp_path_factory.mktemp("fft") / "net.onnx", verify="quick")


def test_transforms_are_products_and_pass(exported: nd.ExportResult):
    assert exported.verdict is not None
    assert exported.verdict.status == "pass", exported.verdict.summary()
    assert "DFT" not in {node.op_type for node in onnx.load(exported.path).graph.node}


@pytest.mark.parametrize("place", range(len(TRANSFORMS)), ids=list(TRANSFORMS))
def test_each_is_the_transform_in_float64(exported: nd.ExportResult, place: int):
    torch.manual_seed(1)
    x = torch.randn(3, 6, 8)
    transform = list(TRANSFORMS.values())[place]
    want = transform(nn.functional.layer_norm(x.double(), (8,))).numpy()
    session = ort.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    have = session.run(None, {session.get_inputs()[0].name: x.numpy()})[place]
    np.testing.assert_allclose(have, want, rtol=0, atol=2e-6 * np.abs(want).max())


@pytest.mark.parametrize(("places", "stays"), [(FASTER, False), (2 * FASTER, True)])
def test_a_long_power_of_two_stays_a_transform(tmp_path: Path, places: int, stays: bool):
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.view_as_real(fft.rfft(x))

    exported = nd.export(Plain(), torch.randn(2, places), tmp_path / "net.onnx", verify=False)
    assert ("DFT" in {node.op_type for node in onnx.load(exported.path).graph.node}) == stays
