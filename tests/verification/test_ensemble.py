"""Where a module has no graph, and perhaps no float64 either, runs of its own say what rounding explains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser
from torch import Tensor, nn

from normdeploy.verification import verify
from normdeploy.verification.sides.ensemble import ensemble
from normdeploy.verification.sides.flat_values import Signature
from normdeploy.verification.sides.two_sides import EagerReference


class Branching(nn.Module):
    """Control flow on values: no tracer follows it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x) if float(x.sum()) < 1e9 else x[:, :5]


class SingleOnly(Branching):
    """As above, and it insists on float32."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return super().forward(x)


def written(model: Branching, folder: Path, **change: float) -> Path:
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[N,64] x) => (float[N,5] y) { y = Gemm<transB=1>(x, w, b) }'
    )
    weight = model.lin.weight.detach().numpy().copy()
    weight[0, 0] *= change.get("factor", 1.0)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    proto.graph.initializer.append(numpy_helper.from_array(model.lin.bias.detach().numpy(), "b"))
    path = folder / "net.onnx"
    onnx.save(proto, str(path))
    return path


@pytest.mark.parametrize(("kind", "stands"), [(Branching, ""), (SingleOnly, "float32 ensemble")])
def test_a_right_file_is_weak_and_a_wrong_one_fails(kind: type[Branching], stands: str, tmp_path: Path):
    model = kind().eval()
    args = (torch.randn(4, 64),)
    verdict = verify(model, written(model, tmp_path), args=args)
    assert verdict.status == "weak", verdict.summary()
    assert stands in verdict.summary()
    assert verify(model, written(model, tmp_path, factor=1.001), args=args, level="quick").status == "fail"


def test_the_deviation_is_that_of_roundings_of_the_terms():
    """sum of 64 products, each factor moved by up to 2u: sqrt(2) u sqrt(2 / 3) sqrt(sum of squared terms) and more."""
    model = Branching().eval()
    x = torch.randn(4, 64)
    ((mean, deviation),) = ensemble(EagerReference(model, Signature(model, (x,), None, ["x"]), None), {"x": x.numpy()})
    weight, bias = model.lin.weight.detach().double().numpy(), model.lin.bias.detach().double().numpy()
    wide = x.double().numpy()
    np.testing.assert_allclose(mean, wide @ weight.T + bias, rtol=0, atol=2e-7)
    terms = np.sqrt(np.square(wide[:, None, :] * weight[None]).sum(-1))
    expected = 2 * 2.0**-24 * np.sqrt(2 / 3) * terms
    assert 0.5 < float(np.sqrt(np.mean(deviation**2) / np.mean(expected**2))) < 2.5


class Turned(nn.Module):
    """Whole numbers times complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.polar(torch.ones(8), torch.arange(8.0)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(self.weight * x.to(torch.complex64).conj())


def test_complex_numbers_are_moved_part_by_part():
    """Each part moves by up to 2u in each of three calls, and each call rounds."""
    model, x = Turned().eval(), torch.arange(1, 9)
    ((_, deviation),) = ensemble(EagerReference(model, Signature(model, (x,), None, ["x"]), None), {"x": x.numpy()})
    parts = torch.view_as_real(model.weight.detach()).double().numpy() * x.numpy()[:, None]
    one = np.linalg.norm(2 * 2.0**-24 / np.sqrt(3) * parts)
    assert np.sqrt(3) * one < np.linalg.norm(deviation) < 3 * np.sqrt(3) * one
    assert (deviation <= 12 * 2.0**-24 * np.abs(parts)).all()


class Drawing(Branching):
    """Takes probabilities alone: noise makes 1 more than that in half of the runs."""

    def forward(self, x: Tensor) -> Tensor:
        if float(torch.ones(1) * 1) > 1:
            raise ValueError("no probability")
        return super().forward(x)


class Insisting(Drawing):
    """Raises whatever was moved."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if bool((torch.ones(1000) * 1 != 1).any()):
            raise ValueError("one is not one")
        return y


@pytest.mark.parametrize("kind", [Drawing, Insisting])
def test_runs_that_noise_makes_invalid_are_left_out(kind: type[Branching]):
    model, x = kind().eval(), torch.randn(4, 64)
    reference = EagerReference(model, Signature(model, (x,), None, ["x"]), None)
    ((mean, deviation),) = ensemble(reference, {"x": x.numpy()})
    np.testing.assert_allclose(mean, model.lin(x).detach().numpy(), atol=1e-5)
    assert deviation.any() == (kind is Drawing)
