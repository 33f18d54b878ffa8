"""Each convention by hand, and ours configured to it: same results, gradients and kept statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normdeploy.conformance import by_hand
from normdeploy.nn import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from normdeploy.nn.unregistered import mode, move, set_mode

CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}


class Holder(nn.Module):
    """A network around one normalization, as its author has it."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def normalize_in_float64(
    rows: list[list[float]], *, correction: int = 0, eps: float = 0.0, eps_on: str = "variance"
) -> list[list[float]]:
    """Normalize each row of plain numbers by the textbook formula, with nothing but ``math``."""
    result = []
    for row in rows:
        mean = math.fsum(row) / len(row)
        variance = math.fsum((value - mean) ** 2 for value in row) / (len(row) - correction)
        divisor = math.sqrt(variance + eps) if eps_on == "variance" else math.sqrt(variance) + eps
        result.append([(value - mean) / divisor for value in row])
    return result


def batches(*shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    # the last batch has narrow columns, where epsilon shows
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64) * scale + shift
        for scale, shift in ((1, 0), (3, 2), (4e-3, 1))
    ]


BATCH_CASES: list[tuple[str, Callable[[], Any], Callable[[], BatchNorm], tuple[int, ...], tuple[str, str] | None]] = [
    ("B1", lambda: by_hand.B1(3), lambda: BatchNorm(3, correction=1), (8, 3), ("seen_mean", "seen_var")),
    ("B2", lambda: by_hand.B2(3), lambda: BatchNorm(3, 1e-6, correction=1), (8, 3), ("mean_so_far", "var_so_far")),
    (
        "B2 rank 3",
        lambda: by_hand.B2((5, 3)),
        lambda: BatchNorm((5, 3), 1e-6, correction=1, over=(0,)),
        (8, 5, 3),
        ("mean_so_far", "var_so_far"),
    ),
    ("B3", lambda: by_hand.B3(), lambda: BatchNorm(3, 0, affine=False, track_running_stats=False), (8, 3), None),
    (
        "B4 rank 2",
        lambda: by_hand.B4(3, 2),
        lambda: BatchNorm(3, running_correction=0),
        (8, 3),
        ("moving_mean", "moving_var"),
    ),
    (
        "B4 rank 4",
        lambda: by_hand.B4(3, 4),
        lambda: BatchNorm(3, running_correction=0),
        (4, 3, 5, 2),
        ("moving_mean", "moving_var"),
    ),
    (
        "B5",
        lambda: by_hand.B5(3),
        lambda: BatchNorm(3, running_correction=0),
        (4, 3, 6),
        ("running_mean", "running_var"),
    ),
    (
        "B5 untracked",
        lambda: by_hand.B5(3, affine=False, track_running_stats=False),
        lambda: BatchNorm(3, affine=False, track_running_stats=False),
        (4, 3, 6),
        None,
    ),
    ("B6", lambda: nn.BatchNorm1d(3), lambda: BatchNorm(3), (8, 3), ("running_mean", "running_var")),
    (
        "B6 cumulative",
        lambda: nn.BatchNorm2d(3, momentum=None),
        lambda: BatchNorm(3, momentum=None),
        (4, 3, 5, 2),
        ("running_mean", "running_var"),
    ),
    (
        "B6 untracked",
        lambda: nn.BatchNorm1d(3, track_running_stats=False),
        lambda: BatchNorm(3, track_running_stats=False),
        (8, 3),
        None,
    ),
]


@pytest.mark.parametrize(
    ("theirs", "ours", "shape", "kept"), [c[1:] for c in BATCH_CASES], ids=[c[0] for c in BATCH_CASES]
)
def test_batchnorm_convention(
    theirs: Callable[[], Any], ours: Callable[[], BatchNorm], shape: tuple[int, ...], kept: tuple[str, str] | None
) -> None:
    norm, module = theirs(), ours().double()
    holder = Holder(norm)
    move(holder, dtype=torch.float64)
    for x in batches(*shape):
        mine, yours = x.clone().requires_grad_(), x.clone().requires_grad_()
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        got, wanted = module(mine), holder(yours)
        torch.testing.assert_close(got, wanted, **(CLOSE if x.std() > 0.1 else {"rtol": 1e-7, "atol": 1e-7}))
        (got * weight).sum().backward()
        (wanted * weight).sum().backward()
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, yours.grad, rtol=1e-6, atol=1e-9 * float(mine.grad.abs().max() + 1))
    if kept is not None:
        mean, variance = (getattr(norm, name) for name in kept)
        torch.testing.assert_close(module.running_mean, mean.detach().reshape(module.shape), **CLOSE)
        torch.testing.assert_close(module.running_var, variance.detach().reshape(module.shape), rtol=1e-9, atol=1e-12)
    module.eval()
    set_mode(holder, training=False)
    with torch.no_grad():
        x = batches(*shape)[0]
        torch.testing.assert_close(module(x), holder(x), rtol=1e-8, atol=1e-8)


LAYER_CASES: list[tuple[str, Callable[[], Any], Callable[[], nn.Module], tuple[int, ...]]] = [
    ("L1", lambda: by_hand.L1(6), lambda: LayerNorm(6, correction=1, dims=(1,)), (5, 6)),
    ("L2 in training", lambda: by_hand.L2(6), lambda: LayerNorm(6, 1e-6, correction=1), (5, 6)),
    ("L3", lambda: by_hand.L3(1e-5), lambda: LayerNorm(6, elementwise_affine=False), (5, 4, 6)),
    ("L4", lambda: by_hand.L4(6), lambda: LayerNorm(6, 1e-6, correction=1, eps_on="deviation"), (5, 4, 6)),
    ("L5", lambda: nn.LayerNorm((4, 6)), lambda: LayerNorm((4, 6)), (5, 4, 6)),
    ("L5 without bias", lambda: nn.LayerNorm(6, bias=False), lambda: LayerNorm(6, bias=False), (5, 4, 6)),
    ("GroupNorm", lambda: nn.GroupNorm(2, 6), lambda: GroupNorm(2, 6), (5, 6, 3)),
    ("InstanceNorm", lambda: nn.InstanceNorm1d(6), lambda: GroupNorm(6, 6), (5, 6, 3)),
    ("RMSNorm", lambda: nn.RMSNorm(6, 1e-6), lambda: RMSNorm(6), (5, 4, 6)),
]


@pytest.mark.parametrize(("theirs", "ours", "shape"), [c[1:] for c in LAYER_CASES], ids=[c[0] for c in LAYER_CASES])
def test_layernorm_convention(theirs: Callable[[], Any], ours: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    holder, module = Holder(theirs()), ours().double()
    move(holder, dtype=torch.float64)
    for x in batches(*shape):
        mine, yours = x.clone().requires_grad_(), x.clone().requires_grad_()
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        got, wanted = module(mine), holder(yours)
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)
        (got * weight).sum().backward()
        (wanted * weight).sum().backward()
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, yours.grad, rtol=1e-7, atol=1e-10 * float(mine.grad.abs().max() + 1))


def test_the_mistaken_layernorm_depends_on_the_last_batch_and_ours_does_not() -> None:
    norm = by_hand.L2(6)
    norm(torch.randn(5, 6))
    norm.eval()
    with pytest.raises(RuntimeError, match="size"):
        norm(torch.randn(3, 6))
    ours = LayerNorm(6, 1e-6, correction=1)
    x = torch.randn(3, 6)
    torch.testing.assert_close(ours.train()(x), ours.eval()(x), rtol=0, atol=0)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=3, max_size=3), min_size=3, max_size=6
    ),
    correction=st.sampled_from([0, 1]),
    eps=st.sampled_from([1e-6, 1e-5, 1e-3]),
    eps_on=st.sampled_from(["variance", "deviation"]),
)
def test_all_kinds_against_plain_arithmetic(rows: list[list[float]], correction: int, eps: float, eps_on: Any) -> None:
    x = torch.tensor(rows, dtype=torch.float64)
    reference = normalize_in_float64(rows, correction=correction, eps=eps, eps_on=eps_on)
    wanted = torch.tensor(reference, dtype=torch.float64)
    # x - m cancels: its error is a few units of the largest value, over a divisor of at least sqrt(eps) or eps
    tolerance: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12 * max(1, float(x.abs().max())) / eps}
    convention: dict[str, Any] = {"eps": eps, "correction": correction, "eps_on": eps_on, "dtype": torch.float64}
    torch.testing.assert_close(LayerNorm(3, **convention)(x), wanted, **tolerance)
    torch.testing.assert_close(LayerNorm(3, dims=(0,), **convention)(x.T), wanted.T, **tolerance)
    torch.testing.assert_close(GroupNorm(1, 3, **convention)(x), wanted, **tolerance)
    columns = BatchNorm(len(rows), **convention)
    torch.testing.assert_close(columns(x.T), wanted.T, **tolerance)


@pytest.mark.parametrize("eps_on", ["variance", "deviation"])
@pytest.mark.parametrize("unit_offset", [False, True])
def test_rmsnorm_by_its_formula(eps_on: Any, unit_offset: bool) -> None:
    x = torch.randn(5, 4, 6, dtype=torch.float64) * 1e-3
    module = RMSNorm(4, 1e-3, unit_offset=unit_offset, eps_on=eps_on, dims=(1,)).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([0.5, -1.0, 2.0, 0.0]))
    squares = (x**2).mean(1, keepdim=True)
    root = torch.sqrt(squares + 1e-3) if eps_on == "variance" else torch.sqrt(squares) + 1e-3
    scale = module.weight.view(1, 4, 1) + (1 if unit_offset else 0)
    torch.testing.assert_close(module(x), x / root * scale, **CLOSE)


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
@pytest.mark.parametrize("running_correction", [0, 1])
@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("eps_on", ["variance", "deviation"])
def test_running_statistics_of_every_combination(
    momentum: float | None, running_correction: int, correction: int, eps_on: Any
) -> None:
    module = BatchNorm(
        3, momentum=momentum, running_correction=running_correction, correction=correction, eps_on=eps_on
    ).double()
    mean, variance = torch.zeros(3).double(), torch.ones(3).double()
    for number, x in enumerate(batches(4, 3, 5), start=1):
        module(x)
        weight = 1 / number if momentum is None else momentum
        flat = x.transpose(0, 1).reshape(3, -1)
        mean = (1 - weight) * mean + weight * flat.mean(1)
        variance = (1 - weight) * variance + weight * flat.var(1, correction=running_correction)
    torch.testing.assert_close(module.running_mean, mean, **CLOSE)
    torch.testing.assert_close(module.running_var, variance, **CLOSE)
    assert int(module.num_batches_tracked) == 3


def test_evaluation_mode_of_a_plain_class_is_given_back() -> None:
    holder = Holder(by_hand.B1(3))
    assert holder.norm.training
    with mode(holder, training=False):
        assert not holder.norm.training
    assert holder.norm.training
