"""What a forward writes to its own tensors is what it reads of them afterwards, in float64 as in its own precision."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normdeploy as nd
from normdeploy.verification.sides.double import float64_mode

ROWS = 4


def _nothing(_net: Writing, _x: Tensor) -> None:
    pass


class Writing(nn.Module):
    """Writes to what it holds before it reads it.

    Args:
        write: writes to the module's tensors.
    """

    def __init__(self, write: Callable[[Writing, Tensor], object] = _nothing) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.mean: Tensor
        self.register_buffer("mean", torch.linspace(0.1, 1, 4))
        self.scale = nn.Parameter(torch.linspace(-1, 1, 4))
        self.plain, self.write = torch.linspace(1, 2, 4), write

    def forward(self, x: Tensor) -> Tensor:
        self.write(self, x)
        y: Tensor = self.norm(self.linear((x - self.mean) * self.scale + self.plain))
        return y


def _twice(net: Writing, x: Tensor) -> None:
    same = net.mean
    same.sub_(0.3)
    net.mean.add_(same)


def _out(net: Writing, x: Tensor) -> None:
    torch.add(net.mean, 0.7, out=net.mean)


def _slice(net: Writing, x: Tensor) -> None:
    net.mean[1:3] += x[0, 1:3]


WRITES: dict[str, Callable[[Writing, Tensor], object]] = {
    "in turn": lambda net, x: net.mean.mul_(0.9).add_(x.mean(0) * 0.1),
    "to a slice": lambda net, _: net.mean[1:3].add_(1.0),
    "to an item": _slice,
    "to a narrow part": lambda net, x: net.mean.narrow(0, 1, 2).copy_(x[0, :2]),
    "to a shape of it": lambda net, _: net.mean.view(2, 2).t().mul_(2.0),
    "by another name": _twice,
    "as out": _out,
    "to one that is not registered": lambda net, _: net.plain[::2].neg_(),
    "to a parameter": lambda net, _: net.scale.clamp_(min=0.25),
    "behind a parameter": lambda net, _: net.scale.data.clamp_(min=0.25),
    "to a slice behind a parameter": lambda net, _: net.scale.detach()[:2].add_(0.5),
}


@pytest.mark.parametrize("kind", WRITES)
def test_what_is_written_is_read_in_float64(kind: str) -> None:
    torch.manual_seed(0)
    net, x = Writing(WRITES[kind]).eval(), torch.randn(ROWS, 4)
    other = copy.deepcopy(net).double()
    other.plain = net.plain.double()
    with torch.no_grad():
        expected = other(x.double())
        untouched = Writing(WRITES[kind]).double().eval()
        untouched.load_state_dict({k: v.double() for k, v in net.state_dict().items()})
        untouched.write, untouched.plain = _nothing, net.plain.double()
        before = untouched(x.double())
    assert not torch.allclose(expected, before, atol=1e-3), "the write changes nothing"
    with torch.no_grad(), float64_mode():
        found = net(x)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0, atol=1e-14)


def test_what_nobody_saw_written_is_read_as_it_is_now() -> None:
    buffer = torch.zeros(3)
    with torch.no_grad(), float64_mode():
        assert torch.equal(buffer + 1, torch.ones(3, dtype=torch.float64))
        with torch._C.DisableTorchFunction():
            buffer.fill_(2.0)
        assert torch.equal(buffer + 1, torch.full((3,), 3.0, dtype=torch.float64))


@pytest.mark.parametrize("cast", ["float", "to", "type", "double"])
def test_another_precision_is_another_tensor(cast: str) -> None:
    x = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float16)
    with torch.no_grad(), float64_mode(torch.float16):
        y = x * 1
        wide = getattr(y, cast)(*([torch.float32] if cast in ("to", "type") else []))
        wide -= wide.mean()
        assert y.tolist() == [1.0, 2.0, 6.0]
        assert wide.tolist() == [-2.0, -1.0, 3.0]
        same = y.half()
        same -= 1  # its own precision: the same tensor, as torch has it
        assert y.tolist() == [0.0, 1.0, 5.0]


class Cached(nn.Module):
    """Keys of earlier calls stand in a buffer; those of this one are written through a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.held: Tensor
        self.register_buffer("held", torch.randn(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        part = self.held.narrow(0, 2, ROWS)
        part.copy_(self.key(x))
        y: Tensor = self.norm(torch.softmax(x @ self.held.T, -1) @ self.held)
        return y


class Wide(nn.Module):
    """Computes in float16 but for a mean that it takes away in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        wide = h.float()
        wide -= wide.mean(-1, keepdim=True)
        return h + 2 * wide.to(h.dtype)


@pytest.mark.parametrize("kind", ["in turn", "to a slice", "as out"])
def test_a_file_of_a_module_that_writes_is_proven(kind: str, tmp_path) -> None:
    torch.manual_seed(0)
    verdict = nd.export(Writing(WRITES[kind]), torch.randn(ROWS, 4), tmp_path / "net.onnx").verdict
    assert verdict.status == "pass"


def test_a_cache_that_is_written_through_a_part_of_it_is_proven(tmp_path) -> None:
    torch.manual_seed(0)
    verdict = nd.export(Cached(), torch.randn(ROWS, 4), tmp_path / "net.onnx", dynamic_shapes={}).verdict
    assert verdict.status == "pass"


def test_a_mean_taken_away_in_float32_is_proven(tmp_path) -> None:
    torch.manual_seed(0)
    verdict = nd.export(Wide().half(), torch.randn(ROWS, 4).half(), tmp_path / "net.onnx").verdict
    assert verdict.status == "pass"


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.func.vmap(self._row)(x)
        return y

    def _row(self, x: Tensor) -> Tensor:
        y: Tensor = self.rows(x)
        y += x.mean()
        return y


def test_what_is_mapped_over_a_batch_is_run_in_float64(tmp_path) -> None:
    """Parts of it lie nowhere in memory by themselves."""
    torch.manual_seed(0)
    net, x = Mapped(), torch.randn(ROWS, 4)
    with torch.no_grad(), float64_mode():
        found = net(x)
    with torch.no_grad():
        expected = copy.deepcopy(net.rows).double()(x.double()) + x.double().mean(1, keepdim=True)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=0, atol=1e-14)
    verdict = nd.export(net, x, tmp_path / "net.onnx", verify="quick").verdict
    assert verdict.status == "pass", verdict.summary()


class Ensemble(nn.Module):
    """Three networks whose stacked weights are mapped over, as torch's guide has it; what is called has no numbers."""

    def __init__(self) -> None:
        super().__init__()
        nets = [nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2)) for _ in range(3)]
        self.weights = torch.func.stack_module_state(nets)[0]
        self.base = [copy.deepcopy(nets[0]).to("meta")]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.func.vmap(self._one, in_dims=(0, None))(self.weights, x)
        return y

    def _one(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(self.base[0], weights, (x,))
        return y


def test_an_ensemble_of_stacked_weights_is_proven(tmp_path) -> None:
    torch.manual_seed(0)
    verdict = nd.export(Ensemble(), torch.randn(ROWS, 4), tmp_path / "net.onnx", verify="quick").verdict
    assert verdict.status == "pass", verdict.summary()
