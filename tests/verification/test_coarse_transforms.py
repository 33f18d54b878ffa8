"""A Fourier transform that onnxruntime computes coarsely is blamed on it by name; one that it computes well is not."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.exporting.translations.fourier_translations import LONGEST
from normdeploy.verification.sides.kernels import coarse_transforms, known_kernels


class Mixed(nn.Module):
    """FNet's mixing: the real part of a transform over places and features, and a norm behind it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.fft.fftn(x, dim=(1, 2)).real)


def test_the_verdict_names_the_transform_and_what_to_do(tmp_path):
    with pytest.raises(nd.VerificationError) as caught:
        nd.export(Mixed(4).eval(), (torch.randn(2, LONGEST + 2, 4),), tmp_path / "net.onnx", verify="quick")
    verdict = caught.value.verdict
    assert verdict is not None
    assert any("DFT" in reason and "power of two" in reason for reason in verdict.reasons), verdict.summary()


@pytest.mark.parametrize(("places", "width"), [(16, 64), (60, 100)])
def test_a_power_of_two_passes_and_a_short_transform(tmp_path, places: int, width: int):
    result = nd.export(Mixed(width).eval(), (torch.randn(2, places, width),), tmp_path / "net.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()


@pytest.mark.parametrize(
    ("shape", "operands", "named"),
    [
        ("B,64,2", "x, , axis", False),
        ("B,96,2", "x, , axis", True),
        ("B,96,2", "x, short, axis", False),  # cut to 32
        ("B,N,2", "x, , axis", True),  # a length that nobody knows may be any
        ("B,64,2", "x, long, axis", True),
    ],
)
def test_which_lengths_are_coarse(graph_of: Callable[[str], ir.Model], shape: str, operands: str, named: bool):
    text = f"""g (float[{shape}] x) => (float[B,M,2] y) <int64 axis = {{1}}, int64 short = {{32}}, int64 long = {{66}}>
        {{ y = DFT({operands}) }}"""
    found = coarse_transforms(graph_of(text).graph)
    assert ("DFT" in found) == named
    assert found == known_kernels(graph_of(text).graph)


@pytest.mark.parametrize(("opset", "shape", "named"), [(17, "B,64,96,2", False), (17, "B,96,64,2", True),
                                                       (20, "B,64,96,2", True), (20, "B,96,64,2", False)])  # fmt: skip
def test_the_axis_of_a_transform_that_names_none(opset: int, shape: str, named: bool):
    """The first behind the batch in operator set 17, the last in front of the parts in 20."""
    text = f'<ir_version: 10, opset_import: ["": {opset}]> g (float[{shape}] x) => (float[{shape}] y) {{ y = DFT(x) }}'
    found = coarse_transforms(ir.from_proto(onnx.parser.parse_model(text)).graph)
    assert ("DFT" in found) == named
