"""Complex numbers in a network: rotary positions, Fourier layers, and each operator that picks or multiplies them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.errors import TraceError

Make = Callable[[Tensor, Tensor], Tensor]
GENERATOR = torch.Generator().manual_seed(0)
TURNS = torch.randn(5, 4, dtype=torch.cfloat, generator=GENERATOR)


def written(z: Tensor, place: Any, values: Tensor) -> Tensor:
    """Return what ``z[place] = values`` makes of zeros."""
    found = torch.zeros_like(z)
    found[place] = values
    return found


PICKS: dict[str, Make] = {
    "unsqueeze": lambda z, t: (z.unsqueeze(-1) * t[None, :, :, None]).squeeze(-1),
    "select": lambda z, _: z[:, -1],
    "expand": lambda z, t: z + t[0].expand(5, -1),
    "repeat": lambda z, _: z.repeat(3, 1, 1, 2),
    "split": lambda z, _: torch.cat(z.split(3, 1)[::-1], 1),
    "split with sizes": lambda z, _: torch.cat(z.split([1, 3], -1)[::-1], -1),
    "unbind": lambda z, _: z.unbind(-1)[2],
    "index": lambda z, t: z * t[torch.tensor([4, 0, 0, 1, 2])],
    "index_select": lambda z, _: z.index_select(-1, torch.tensor([3, 1])),
    "gather": lambda z, _: z.gather(-1, torch.tensor([[[3], [0], [1], [2], [2]]]).expand(z.shape[0], -1, -1)),
    "cumsum": lambda z, _: z.cumsum(-1),
    "pad": lambda z, _: nn.functional.pad(z, (1, 2, 0, 1)),
    "where": lambda z, t: torch.where(z.real > 0, z, z * t),
    "masked_fill": lambda z, _: z.masked_fill(z.real > 0, 0.5),
    "one written": lambda z, t: written(z, (slice(None), slice(None), -2), z[..., 0] * t[:, 0]),
    "several written": lambda z, t: written(z, (slice(None), torch.tensor([3, 0])), z[:, :2] * t[:2]),
    "zeros_like": lambda z, t: torch.zeros_like(z) - t,
    "new_zeros": lambda z, t: z.new_zeros(2, 5, 4) - t,
    "new_zeros of a real type": lambda z, t: z * z.new_zeros(5, 4, dtype=torch.float32) - t,
    "alias": lambda z, t: z * torch.ops.aten.alias(t),
    "detach": lambda z, t: z.detach() * t,
}
PRODUCTS: dict[str, Make] = {
    "a real tensor": lambda z, _: z * z.real,
    "a number": lambda z, _: z * (1 - 2j) + 1j,
    "power": lambda z, _: z**3,
    "exp": lambda z, _: torch.exp(z),
    "tanh": lambda z, _: torch.tanh(z),
    "exp of 1j x": lambda z, _: torch.exp(1j * z.real),
    "einsum": lambda z, t: torch.einsum("bnc,mc->bnm", z, t),
    "einsum of one": lambda z, _: torch.einsum("bnc->cb", z),
    "einsum over places": lambda z, t: torch.einsum("bnc,nc->bc", z, t),
    "matmul": lambda z, t: z @ t.mT,
    "linear": lambda z, t: nn.functional.linear(z, t, t[:, 0]),
    "conjugate": lambda z, _: z * z.conj(),
    "matrix product": lambda z, t: z[0] @ t.mT,
    "product in batches": lambda z, _: torch.bmm(z, z.mT),
    "norm": lambda z, _: z / torch.linalg.vector_norm(z, dim=-1, keepdim=True),
    "norm of all": lambda z, t: z / torch.linalg.vector_norm(t, ord=1),
}


class Each(nn.Module):
    """A norm, whose numbers are taken for pairs, and what is made of them."""

    def __init__(self, makes: dict[str, Make]) -> None:
        super().__init__()
        self.makes, self.norm = list(makes.values()), nn.LayerNorm(8)
        self.turns = nn.Parameter(TURNS.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        z = torch.view_as_complex(self.norm(x).unflatten(-1, (-1, 2)))
        return tuple(torch.view_as_real(make(z, self.turns)) for make in self.makes)


def run(path: Path, x: Tensor) -> list[np.ndarray]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})


@pytest.mark.parametrize("makes", [PICKS, PRODUCTS], ids=["picks", "products"])
def test_each_operator_of_complex_numbers_is_exported(tmp_path: Path, makes: dict[str, Make]):
    net, x = Each(makes).eval(), torch.randn(2, 5, 8, generator=GENERATOR)
    exported = nd.export(net, x, tmp_path / "net.onnx", verify="quick")
    assert exported.verdict is not None
    assert exported.verdict.status == "pass", exported.verdict.summary()
    with torch.no_grad():
        wanted = dict(zip(makes, net(x[:1]), strict=True))
    for (name, want), have in zip(wanted.items(), run(exported.path, x[:1]), strict=True):
        np.testing.assert_allclose(have, want.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda z, _: z**5, "power of 5"),
        (lambda z, _: nn.functional.pad(z, (1, 0), value=2.0), "padded with 2.0"),
        (lambda z, t: torch.einsum("bnc,nc,nc->bc", z, t, t), "einsum of 3"),
    ],
    ids=["power", "pad", "einsum"],
)
def test_what_has_no_form_is_said_with_a_remedy(tmp_path: Path, make: Make, said: str):
    with pytest.raises(TraceError, match=said):
        nd.export(Each({"it": make}).eval(), torch.randn(2, 5, 8), tmp_path / "net.onnx")


class Rotary(nn.Module):
    """Attention as the first LLaMA writes it: positions turn pairs of features; the turns are no buffer."""

    def __init__(self, heads: int = 2, width: int = 8) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.RMSNorm(heads * width)
        self.wq, self.wk = (nn.Linear(heads * width, heads * width, bias=False) for _ in range(2))
        angles = torch.outer(torch.arange(16), 1e4 ** (-torch.arange(0, width, 2) / width))
        self.turns = torch.polar(torch.ones_like(angles), angles)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k = (self.turned(w(h).unflatten(-1, (self.heads, -1))).transpose(1, 2) for w in (self.wq, self.wk))
        v = h.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return ((q @ k.mT / 8**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)

    def turned(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turns = self.turns[: x.shape[1]].view(1, x.shape[1], 1, -1)
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


def test_rotary_positions_in_complex_numbers_are_exported_and_proven(tmp_path: Path):
    torch.manual_seed(0)
    net, x = Rotary().eval(), torch.randn(2, 6, 16)
    exported = nd.export(net, x, tmp_path / "net.onnx", dynamic_shapes={"x": {0: "batch", 1: "time"}}, verify="quick")
    assert exported.verdict is not None
    assert exported.verdict.status == "pass", exported.verdict.summary()
    (said,) = (check for check in exported.verdict.checks if check.name == "derivation")
    assert said.status == "pass", said.detail
    longer = torch.randn(3, 11, 16)
    np.testing.assert_allclose(run(exported.path, longer)[0], net(longer).detach(), rtol=1e-4, atol=1e-5)


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: the lowest modes are mixed by complex weights, the others dropped."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes, self.norm = modes, nn.BatchNorm1d(width)
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(self.norm(x))
        mixed = torch.zeros(*modes.shape, dtype=torch.cfloat)
        mixed[:, :, : self.modes] = torch.einsum("bim,iom->bom", modes[:, :, : self.modes], self.weight)
        return torch.fft.irfft(mixed, n=x.shape[-1])


def test_a_fourier_layer_is_exported_and_proven(tmp_path: Path):
    torch.manual_seed(0)
    net = Spectral(4, 3)
    net(torch.randn(64, 4, 12) * 3 + 1)  # statistics
    exported = nd.export(net.eval(), torch.randn(2, 4, 12), tmp_path / "net.onnx", verify="quick")
    assert exported.verdict is not None
    assert exported.verdict.status == "pass", exported.verdict.summary()
    assert not {"DFT", "BatchNormalization"} & {node.op_type for node in onnx.load(exported.path).graph.node}
