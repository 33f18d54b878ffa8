"""Two processes with a share of the batch each equal one process with the joined batch, on CPU."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked_python import ForkedPython
from torch import Tensor, nn

from normdeploy.errors import ModelError
from normdeploy.nn import BatchNorm, SyncBatchNorm, plain, synchronized

SHARES = (3, 5)
CONVENTIONS: list[dict[str, Any]] = [
    {},
    {"correction": 1},
    {"running_correction": 0, "momentum": None},
    {"correction": 1, "eps_on": "deviation", "eps": 0.1},
    {"affine": False, "track_running_stats": False},
]


def inputs(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # the shares differ in mean and spread, so that statistics of one share are far from those of both
    x = torch.randn(sum(SHARES), 3, 4, generator=generator, dtype=torch.float64)
    x[: SHARES[0]] = x[: SHARES[0]] * 3 + 5
    return x, torch.randn(sum(SHARES), 3, 4, generator=generator, dtype=torch.float64)


def network(convention: dict[str, Any]) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv1d(3, 3, 1), BatchNorm(3, **convention), nn.Tanh(), nn.BatchNorm1d(3)).double()


def train_two_steps(model: nn.Module, rows: slice) -> list[Tensor]:
    """Return the results of two steps and the gradients of the second."""
    results = []
    for seed in (0, 1):
        x, weight = inputs(seed)
        model.zero_grad()
        x = x[rows].clone().requires_grad_()
        y = model(x)
        (y * weight[rows]).sum().backward()
        assert x.grad is not None
        results += [y.detach(), x.grad]
    return results


def _process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        rows = slice(0, SHARES[0]) if rank == 0 else slice(SHARES[0], None)
        for number, convention in enumerate(CONVENTIONS):
            model = network(convention)
            assert synchronized(model) == ["1", "3"]
            results = train_two_steps(model, rows)
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            for gradient in gradients.values():
                dist.all_reduce(gradient)
            assert plain(model) == ["1", "3"]
            held = {"results": results, "gradients": gradients, "state": model.state_dict()}
            torch.save(held, os.path.join(folder, f"{number}.{rank}"))  # noqa: PTH118 - a process's plain string
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory, forked: ForkedPython) -> Path:
    folder = tmp_path_factory.mktemp("gloo")
    forked.ranks(Path(__file__), "_process", folder)
    return folder


@pytest.mark.parametrize("number", range(len(CONVENTIONS)), ids=[str(c) for c in CONVENTIONS])
def test_two_processes_are_one_with_the_joined_batch(joined: Path, number: int) -> None:
    model = network(CONVENTIONS[number])
    results = train_two_steps(model, slice(None))
    shares = [torch.load(joined / f"{number}.{rank}") for rank in (0, 1)]
    for index, whole in enumerate(results):
        parts = torch.cat([share["results"][index] for share in shares])
        torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-11)
    for share in shares:
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(share["gradients"][name], parameter.grad, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(dict(share["state"]), dict(model.state_dict()), rtol=1e-11, atol=1e-12)


def test_statistics_of_a_share_alone_are_far_off() -> None:
    """The comparison above could have failed: without synchronization the results differ by far more than its bound."""
    whole = train_two_steps(network({}), slice(None))
    own = train_two_steps(network({}), slice(0, SHARES[0]))
    assert (own[0] - whole[0][: SHARES[0]]).abs().max() > 0.1


def test_plain_gives_back_the_very_modules_with_the_tensors_of_now() -> None:
    model = network({"correction": 1})
    before = list(model)
    parameters = list(model.parameters())
    synchronized(model)
    assert isinstance(model[1], SyncBatchNorm)
    assert isinstance(model[3], SyncBatchNorm)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    model(inputs(0)[0])
    trained = copy.deepcopy(model.state_dict())
    plain(model)
    assert list(model) == before
    torch.testing.assert_close(dict(model.state_dict()), dict(trained), rtol=0, atol=0)


def test_alone_it_is_a_batchnorm() -> None:
    x = torch.randn(4, 3, 2)
    sync, alone = SyncBatchNorm(3, correction=1), BatchNorm(3, correction=1)
    torch.testing.assert_close(sync(x), alone(x))
    holder = nn.Sequential(sync)
    assert plain(holder) == ["0"]
    assert type(holder[0]) is BatchNorm
    torch.testing.assert_close(holder.eval()(x), alone.eval()(x))


def test_a_single_batchnorm_is_refused() -> None:
    with pytest.raises(ModelError, match="wrap it"):
        synchronized(nn.BatchNorm1d(3))
