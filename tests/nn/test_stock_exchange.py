"""State goes to and comes from torch's stock modules where the convention is theirs, and is refused where it is not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from normdeploy.errors import InputError, ModelError, UsageError
from normdeploy.nn import BatchNorm, GroupNorm, LayerNorm, RMSNorm


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_batchnorm_there_and_back(rank: int, affine: bool, track: bool, momentum: float | None) -> None:
    kind: Any = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[rank]
    stock = kind(5, 1e-3, momentum, affine, track)
    x = torch.randn(4, 5, *[3] * rank) * 2 + 1
    stock(x)
    ours = BatchNorm.from_torch(stock)
    back = ours.to_torch(rank)
    assert type(back) is kind
    assert back.state_dict().keys() == stock.state_dict().keys() == ours.state_dict().keys()
    for module in (ours, back):
        fresh = copy.deepcopy(stock)
        torch.testing.assert_close(module.eval()(x), fresh.eval()(x), rtol=0, atol=0)
        torch.testing.assert_close(module.train()(x), fresh.train()(x), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(module.state_dict(), fresh.state_dict(), rtol=1e-6, atol=1e-6)


def test_layer_and_group_norm_there_and_back() -> None:
    x = torch.randn(2, 4, 6)
    for stock, ours in (
        (nn.LayerNorm(6, 1e-3), LayerNorm),
        (nn.LayerNorm((4, 6), elementwise_affine=False), LayerNorm),
        (nn.LayerNorm(6, bias=False), LayerNorm),
        (nn.GroupNorm(2, 4, 1e-3), GroupNorm),
        (nn.GroupNorm(2, 4, affine=False), GroupNorm),
    ):
        for p in stock.parameters():
            nn.init.normal_(p)
        module = ours.from_torch(stock)  # type: ignore[attr-defined, arg-type]
        torch.testing.assert_close(module(x), stock(x), rtol=0, atol=0)
        torch.testing.assert_close(module.to_torch()(x), stock(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "module",
    [
        BatchNorm(3, correction=1),
        BatchNorm(3, running_correction=0),
        BatchNorm(3, eps_on="deviation"),
        BatchNorm((3, 2), over=(0,)),
        LayerNorm(3, correction=1),
        LayerNorm(3, eps_on="deviation"),
        LayerNorm(3, dims=(1,)),
        GroupNorm(1, 3, correction=1),
        GroupNorm(1, 3, eps_on="deviation"),
    ],
    ids=str,
)
def test_other_conventions_are_refused(module: Any) -> None:
    with pytest.raises(ModelError, match="has no equal in torch"):
        module.to_torch(*([1] if isinstance(module, BatchNorm) else []))


def test_arguments_are_checked() -> None:
    for wrong in (
        lambda: BatchNorm(3, eps=-1),
        lambda: BatchNorm(3, momentum=2),
        lambda: BatchNorm(3, correction=-1),
        lambda: BatchNorm((3, 2)),
        lambda: BatchNorm(3).to_torch(4),
        lambda: LayerNorm(3, eps_on="root"),  # type: ignore[arg-type]
        lambda: LayerNorm(1, correction=1),
        lambda: LayerNorm((3, 2), dims=(1,)),
        lambda: RMSNorm((3, 2), dims=(1,)),
        lambda: GroupNorm(2, 3),
        lambda: BatchNorm(3)(torch.zeros(1, 3)),
        lambda: BatchNorm(3, correction=1, eps_on="deviation")(torch.zeros(1, 3)),
        lambda: GroupNorm(3, 3, correction=1)(torch.zeros(2, 3)),
    ):
        with pytest.raises(UsageError, match="expected"):
            wrong()


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (BatchNorm(3), (2, 4)),
        (BatchNorm(3), (3,)),
        (BatchNorm((3, 2), over=(0,)), (4, 3, 3)),
        (LayerNorm(3), (2, 4)),
        (LayerNorm((2, 3)), (3,)),
        (LayerNorm(3, dims=(1,)), (2, 4, 3)),
        (RMSNorm(3), (2, 4)),
        (GroupNorm(1, 3), (2, 4)),
    ],
    ids=str,
)
def test_input_shapes_are_checked(module: nn.Module, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="expected"):
        module(torch.zeros(shape))


def test_reset_forgets() -> None:
    module = BatchNorm(3)
    module(torch.randn(4, 3))
    module.reset_running_stats()
    torch.testing.assert_close(module.state_dict(), BatchNorm(3).state_dict())
