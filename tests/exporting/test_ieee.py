"""A reference computes in float32, whatever the user's program has allowed torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.exporting.module.ieee import ieee_float32
from normdeploy.verification.sides.two_sides import EagerReference


def _allowed() -> dict[str, str]:
    backends = torch.backends
    return {
        "cuda": backends.cuda.matmul.fp32_precision,
        "cudnn": backends.cudnn.conv.fp32_precision,
        "cudnn rnn": backends.cudnn.rnn.fp32_precision,
        "mkldnn": backends.mkldnn.matmul.fp32_precision,
        "mkldnn conv": backends.mkldnn.conv.fp32_precision,
        "mkldnn rnn": backends.mkldnn.rnn.fp32_precision,
    }


@pytest.fixture(autouse=True)
def _given_back():
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_users_settings_are_given_back_also_after_an_error(precision: str):
    torch.set_float32_matmul_precision(precision)
    before, inside = _allowed(), set[str]()

    def fail() -> None:
        inside.update(_allowed().values())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), ieee_float32():
        fail()
    assert inside == {"ieee"}
    assert _allowed() == before
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none here")
@pytest.mark.cuda
def test_convolutions_on_a_gpu_are_as_close_as_float32_is():
    torch.manual_seed(0)
    conv, x = nn.Conv2d(64, 64, 3).cuda(), torch.randn(2, 64, 16, 16).cuda()
    with torch.no_grad(), ieee_float32():
        error = (conv(x).double() - conv.double()(x.double())).abs().max()
    assert error < 1e-5  # TF32: some 1e-3


def test_the_reference_of_a_verdict_is_computed_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its rounding is part of the bound: in TF32 it would excuse a file that is wrong in the third digit."""
    seen: list[set[str]] = []
    asked: list[bool] = []
    outputs = EagerReference._outputs

    def remembering(self: EagerReference, *args: Any) -> list[Any]:
        asked.append(True)
        try:
            return outputs(self, *args)
        finally:
            asked.pop()

    monkeypatch.setattr(EagerReference, "_outputs", remembering)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if asked:
                seen.append(set(_allowed().values()))
            return self.norm(self.layer(x))

    torch.set_float32_matmul_precision("medium")
    model, x = Net().eval(), torch.randn(3, 4)
    nd.export(model, x, tmp_path / "net.onnx", verify=False)
    assert nd.verify(model, tmp_path / "net.onnx", args=x, level="quick").passed
    assert seen
    assert all(found == {"ieee"} for found in seen)
