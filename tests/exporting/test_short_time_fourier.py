"""Short-time Fourier transforms of fixed lengths: convolutions, about as exact as torch's own."""

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

pytestmark = pytest.mark.filterwarnings("ignore:A window was not provided")  # torch's, of what some of these ask

HANN, SHORT = torch.hann_window(40), torch.hamming_window(25)
TRANSFORMS: dict[str, Callable[..., Tensor]] = {
    "as BIOT has it": lambda x: torch.stft(x, 40, hop_length=20, center=False, return_complex=True),
    "centred, with a window": lambda x: torch.stft(x, 40, window=HANN.to(x), return_complex=True),
    "a short window": lambda x: torch.stft(x, 40, 7, 25, SHORT.to(x), return_complex=True),
    "a short window of ones": lambda x: torch.stft(x, 40, 7, 25, return_complex=True),
    "normalized": lambda x: torch.stft(x, 40, normalized=True, window=HANN.to(x), return_complex=True),
    "both sides": lambda x: torch.stft(x, 33, onesided=False, return_complex=True),
    "one signal": lambda x: torch.stft(x[0], 40, window=HANN.to(x), return_complex=True),
    "a power of two": lambda x: torch.stft(x, 32, pad_mode="constant", return_complex=True),
}


class Spectra(nn.Module):
    """All of them; the window is made in the forward, or given with the module."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(40))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made = torch.stft(x, 40, window=torch.hann_window(40, dtype=x.dtype), return_complex=True)
        own = torch.stft(x, 40, window=self.window, return_complex=True)
        return tuple(map(torch.view_as_real, (*(transform(x) for transform in TRANSFORMS.values()), made, own)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> nd.ExportResult:
    torch.manual_seed(0)
    return nd.export(Spectra(), torch.randn(2, 160), tmp_path_factory.mktemp("stft") / "net.onnx", verify="quick")


def test_they_are_convolutions_and_pass(exported: nd.ExportResult) -> None:
    assert exported.verdict is not None
    assert exported.verdict.status == "pass", exported.verdict.summary()
    operators = [node.op_type for node in onnx.load(exported.path).graph.node]
    assert "STFT" not in operators
    assert operators.count("Conv") == len(TRANSFORMS) + 2


@pytest.mark.parametrize("place", range(len(TRANSFORMS) + 2), ids=[*TRANSFORMS, "a window made", "a window of its own"])
def test_each_is_the_transform_in_float64(exported: nd.ExportResult, place: int) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 160)
    want = Spectra().double()(x.double())[place].numpy()
    session = ort.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    have = session.run(None, {session.get_inputs()[0].name: x.numpy()})[place]
    np.testing.assert_allclose(have, want, rtol=0, atol=2e-6 * np.abs(want).max())


class Normed(nn.Module):
    """Log-spectra and a BatchNorm in front of a convolution, as keyword spotting has it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(21), nn.Conv1d(21, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        power = torch.stft(x, 40, 10, window=HANN.to(x), return_complex=True).abs().square()
        return self.head(self.norm(torch.log(power + 1e-3)))


def test_a_spectrogram_of_any_length_is_proven_equal(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Normed()
    for _ in range(3):
        model(torch.randn(8, 200))
    shapes = {"x": {0: "batch", 1: "time"}}
    result = nd.export(model.eval(), torch.randn(2, 200), tmp_path / "net.onnx", dynamic_shapes=shapes)
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    x = torch.randn(3, 330)
    with torch.no_grad():
        np.testing.assert_allclose(nd.load(result.path)(x.numpy()), model(x).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("places", [1024, 4096])
def test_longer_transforms_stay(tmp_path: Path, places: int) -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.view_as_real(torch.stft(x, places, return_complex=True))

    exported = nd.export(Plain(), torch.randn(2, 2 * places), tmp_path / "net.onnx", verify=False)
    assert "STFT" in {node.op_type for node in onnx.load(exported.path).graph.node}
