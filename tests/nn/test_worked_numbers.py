"""The worked numbers every implementation is checked against, for ours and for the hand-written ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from normdeploy.conformance import by_hand
from normdeploy.nn import BatchNorm, GroupNorm, LayerNorm

COLUMNS = torch.tensor(
    [[0.87717015, 0.7769747], [0.12235527, 0.6907834], [0.6839817, 0.23128869], [0.56366396, 0.3721697]]
)
COLUMNS_EXACT = [
    [1.1374613, 1.1579129],
    [-1.5849051, 0.77283055],
    [0.44069487, -1.2800831],
    [0.00674868, -0.6506599],
]
COLUMNS_EPSILON = [[1.1374, 1.1578], [-1.5848, 0.7728], [0.4407, -1.2800], [0.0067, -0.6506]]
ROWS = torch.tensor([[0.76992553, 0.00166408, 0.5785207, 0.7359749], [0.55730516, 0.5911572, 0.5388567, 0.5622644]])
ROWS_EXACT = [[0.8046649, -1.6839927, 0.18464021, 0.6946874], [-0.2714092, 1.5333978, -1.2549816, -0.00701022]]
ROWS_EPSILON = [[0.8046, -1.6839, 0.1846, 0.6947], [-0.2676, 1.5121, -1.2375, -0.0069]]


@pytest.mark.parametrize(
    "batchnorm",
    [
        lambda eps: BatchNorm(2, eps=eps),
        lambda eps: BatchNorm(2, eps=eps, running_correction=0),
        lambda eps: BatchNorm(2, eps=eps, affine=False, track_running_stats=False),
        lambda eps: BatchNorm(2, eps=eps, over=(0,)),
        by_hand.B3,
        lambda eps: by_hand.B5(2, eps=eps),
    ],
)
def test_batchnorm_of_four_rows(batchnorm: Callable[[float], Callable[[Tensor], Tensor]]) -> None:
    exact, epsilon = batchnorm(0.0)(COLUMNS), batchnorm(1e-5)(COLUMNS)
    torch.testing.assert_close(exact, torch.tensor(COLUMNS_EXACT), rtol=2e-6, atol=2e-7)
    torch.testing.assert_close(epsilon, torch.tensor(COLUMNS_EPSILON), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "layernorm",
    [
        lambda eps: LayerNorm(4, eps=eps),
        lambda eps: LayerNorm(4, eps=eps, dims=(1,)),
        lambda eps: LayerNorm(4, eps=eps, elementwise_affine=False),
        lambda eps: GroupNorm(1, 4, eps=eps),
        by_hand.L3,
    ],
)
def test_layernorm_of_two_rows(layernorm: Callable[[float], Callable[[Tensor], Tensor]]) -> None:
    exact, epsilon = layernorm(0.0)(ROWS), layernorm(1e-5)(ROWS)
    # the second row's spread is 0.019: a float32 input error of 6e-8 is 3e-6 there
    torch.testing.assert_close(exact, torch.tensor(ROWS_EXACT), rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(epsilon, torch.tensor(ROWS_EPSILON), rtol=0, atol=1e-4)


def test_statistics_of_the_worked_numbers() -> None:
    module = BatchNorm(2, momentum=1.0, running_correction=0)
    module(COLUMNS)
    torch.testing.assert_close(module.running_mean, torch.tensor([0.5617928, 0.5178041]), rtol=0, atol=1e-7)
    torch.testing.assert_close(module.running_var.sqrt(), torch.tensor([0.27726424, 0.22382565]), rtol=0, atol=1e-7)


def test_a_wrong_epsilon_shows_on_the_narrow_row() -> None:
    wrong = LayerNorm(4, eps=1e-6)(ROWS)
    distance = (wrong - torch.tensor(ROWS_EPSILON)).abs().amax(1)
    assert distance[0] < 1e-3 < 1e-2 < distance[1]
