"""Population statistics: exact whatever the batches, for every convention, in one process and in two."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forked_python import ForkedPython
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normdeploy.conformance import by_hand
from normdeploy.errors import ModelError, UsageError
from normdeploy.nn import BatchNorm, Moments, recalibrate
from normdeploy.nn.sites import statistics_sites
from normdeploy.nn.unregistered import full_state, set_mode


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    offset=st.sampled_from([0.0, 1e3, -1e6]),
    correction=st.sampled_from([0, 1]),
    seed=st.integers(0, 99),
)
def test_pooling_is_exact(sizes: list[int], offset: float, correction: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    parts = [draw.normal(size=(n, 3, 2)) * draw.uniform(0.1, 5) + offset + draw.normal() for n in sizes]
    moments = Moments()
    for part in parts:
        moments.update(torch.from_numpy(part), (0, 2))
    # extended precision is the reference, in one go
    whole = np.concatenate(parts).astype(np.longdouble)
    assert moments.count == whole.shape[0] * 2
    np.testing.assert_allclose(moments.mean, whole.mean((0, 2)).astype(float), rtol=1e-14, atol=1e-14)
    variance = whole.var((0, 2), ddof=correction).astype(float)
    np.testing.assert_allclose(moments.variance(correction), variance, rtol=1e-9 if offset else 1e-13)


def test_averaging_variances_misses_how_the_means_differ() -> None:
    parts = [torch.randn(6, 1, dtype=torch.float64) + shift for shift in (-3.0, 3.0)]
    moments = Moments()
    for part in parts:
        moments.update(part, (0,))
    averaged = torch.stack([part.var(0, correction=0) for part in parts]).mean(0)
    torch.testing.assert_close(moments.variance(), torch.cat(parts).var(0, correction=0))
    between = ((parts[0].mean(0) - parts[1].mean(0)) / 2) ** 2
    torch.testing.assert_close(moments.variance() - averaged, between)
    assert float(between) > 1


def test_moments_refuse_what_they_cannot_answer() -> None:
    moments = Moments()
    with pytest.raises(UsageError, match="stream more data"):
        moments.variance()
    moments.update(torch.zeros(2, 3), (0,))
    with pytest.raises(UsageError, match="one shape"):
        moments.update(torch.zeros(2, 4), (0,))


CASES: list[tuple[Callable[[], Any], tuple[int, ...], tuple[str, str], int]] = [
    (lambda: nn.BatchNorm1d(3), (3,), ("running_mean", "running_var"), 1),
    (lambda: nn.BatchNorm2d(3, momentum=None), (3, 2, 2), ("running_mean", "running_var"), 1),
    (lambda: BatchNorm(3, correction=1, running_correction=0), (3, 4), ("running_mean", "running_var"), 0),
    (lambda: BatchNorm((3, 4), over=(0,)), (3, 4), ("running_mean", "running_var"), 1),
    (lambda: by_hand.B1(3), (3,), ("seen_mean", "seen_var"), 1),
    (lambda: by_hand.B2((4, 3)), (4, 3), ("mean_so_far", "var_so_far"), 1),
    (lambda: by_hand.B4(3, 2), (3,), ("moving_mean", "moving_var"), 0),
    (lambda: by_hand.B4(3, 4), (3, 2, 2), ("moving_mean", "moving_var"), 0),
    (lambda: by_hand.B5(3), (3, 5), ("running_mean", "running_var"), 0),
]


class Net(nn.Module):
    """Something in front and behind, so that the normalization's input is not the network's."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.norm = norm
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(x * self.gain + 1))


@pytest.mark.parametrize("case", range(len(CASES)))
def test_every_convention_gets_the_population(case: int) -> None:
    build, shape, (mean_name, variance_name), correction = CASES[case]
    torch.manual_seed(case)
    model = Net(build())
    set_mode(model, training=False)
    batches = [torch.randn(n, *shape) * 2 + n for n in (5, 9, 2)]
    (report,) = recalibrate(model, batches)
    joined = torch.cat(batches).double() * 2 + 1
    kept = getattr(model.norm, mean_name)
    axes = (0,) if kept.numel() > 3 else tuple(d for d in range(joined.ndim) if d != 1)
    mean, variance = joined.mean(axes), joined.var(axes, correction=correction)
    torch.testing.assert_close(kept.flatten(), mean.float().flatten(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        getattr(model.norm, variance_name).flatten(), variance.float().flatten(), rtol=1e-6, atol=1e-6
    )
    assert report.path == "norm"
    # before, the mean was 0 and the variance 1
    expected = (mean / variance.sqrt()).square().mean().sqrt()
    assert report.mean_distance == pytest.approx(float(expected), rel=1e-5)
    assert report.deviation_distance == pytest.approx(float((1 / variance.sqrt() - 1).square().mean().sqrt()), rel=1e-5)
    assert not model.norm.training if hasattr(model.norm, "training") else True
    assert not model.training


def test_classes_and_hooks_are_given_back() -> None:
    call = by_hand.B1.__call__
    model = Net(by_hand.B1(3))
    recalibrate(model, [torch.randn(5, 3)])
    assert by_hand.B1.__call__ is call
    stock = Net(nn.BatchNorm1d(3))
    recalibrate(stock, [torch.randn(5, 3)])
    assert not stock.norm._forward_hooks
    assert not stock.norm._forward_pre_hooks


def test_two_normalizations_of_one_plain_class_are_kept_apart() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Net(by_hand.B1(3)), nn.Linear(3, 3), Net(by_hand.B1(3)))
    assert [site.path for site in statistics_sites(model)] == ["1.norm", "3.norm"]
    reports = recalibrate(model, [torch.randn(50, 3) for _ in range(3)])
    assert [report.path for report in reports] == ["1.norm", "3.norm"]
    first, second = model[1].norm, model[3].norm
    assert not torch.allclose(first.seen_mean, second.seen_mean)


def test_statistics_per_row_are_refused() -> None:
    class PerRow(nn.Module):
        """The mistaken LayerNorm, with tensors from the start."""

        def __init__(self) -> None:
            super().__init__()
            self.mean, self.var = torch.zeros(5, 1), torch.ones(5, 1)

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(-1, keepdim=True).detach()
            self.var = 0.9 * self.var + 0.1 * x.var(-1, keepdim=True).detach()
            return x

    with pytest.raises(ModelError, match="per row"):
        recalibrate(nn.Sequential(PerRow()), [torch.randn(5, 6)])


def test_another_rule_is_refused() -> None:
    class Largest(by_hand.B5):
        """Keeps the largest variance it ever saw."""

        def forward(self, x: Tensor) -> Tensor:
            kept = self.running_var.clone()
            y = super().forward(x)
            self.running_var = torch.maximum(kept, x.var((0, 2)) * 3)
            return y

    with pytest.raises(ModelError, match="no running average"):
        recalibrate(nn.Sequential(Largest(3)), [torch.randn(5, 3, 4)])


def test_nothing_to_recalibrate() -> None:
    with pytest.raises(ModelError, match="no running statistics"):
        recalibrate(nn.Sequential(nn.LayerNorm(3), nn.InstanceNorm1d(3, track_running_stats=True)), [torch.zeros(2, 3)])
    with pytest.raises(UsageError, match="saw no data"):
        recalibrate(nn.Sequential(nn.BatchNorm1d(3)), [])


@pytest.mark.parametrize("sizes", [(4, 3, 1), (1, 4, 3), (4, 1, 1, 2), (1, 1, 3), (1, 1)])
@pytest.mark.parametrize("norm", [lambda: nn.BatchNorm1d(3), lambda: BatchNorm(3), lambda: by_hand.B1(3)])
def test_batches_of_one_row_are_joined_to_their_neighbours(norm: Any, sizes: tuple[int, ...]) -> None:
    model, whole = Net(norm()), torch.randn(sum(sizes), 3) * 2 + 1
    recalibrate(model, list(whole.split(sizes)))
    seen = (whole * 2 + 1).double()
    mean = getattr(model.norm, "running_mean", None)
    torch.testing.assert_close(
        (model.norm.seen_mean if mean is None else mean).flatten(), seen.mean(0).float(), rtol=1e-6, atol=1e-6
    )


class Deep(nn.Module):
    """Two normalizations; the second one may be made to fail after the first has been updated."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__()
        self.first, self.second, self.fails = first, second, 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x))
        self.fails -= 1
        if self.fails == 0:
            raise RuntimeError("out of memory")
        return y


def everything(model: nn.Module) -> dict[str, Tensor]:
    return {path: tensor.clone() for path, tensor in full_state(model).items()}


@pytest.mark.parametrize("norm", [lambda: nn.BatchNorm1d(3), lambda: BatchNorm(3), lambda: by_hand.B1(3)])
@pytest.mark.parametrize("how", ["one row in all", "fails in the second batch", "the data ends in an error"])
def test_a_pass_that_fails_leaves_everything_as_it_was(norm: Any, how: str) -> None:
    model = Deep(norm(), norm())
    recalibrate(model, [torch.randn(5, 3)])
    before = everything(model)
    set_mode(model, training=False)
    if how == "one row in all":
        with pytest.raises(UsageError, match=r"first gets an input of shape \(1, 3\).*larger batches"):
            recalibrate(model, [torch.randn(1, 3)])
    elif how == "fails in the second batch":
        model.fails = 2
        with pytest.raises(RuntimeError, match="out of memory"):
            recalibrate(model, [torch.randn(4, 3), torch.randn(4, 3)])
    else:

        def torn() -> Any:
            yield torch.randn(4, 3)
            yield torch.randn(4, 3)
            raise OSError("disk")

        with pytest.raises(OSError, match="disk"):
            recalibrate(model, torn())
    after = everything(model)
    assert after.keys() == before.keys()
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert not model.training


def test_images_of_other_sizes_are_not_joined_and_need_not_be() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3))
    recalibrate(model, [torch.randn(2, 3, 4, 4), torch.randn(1, 3, 5, 5), torch.randn(1, 3, 6, 6)])
    with pytest.raises(UsageError, match=r"shape \(1, 3, 1, 1\)"):
        recalibrate(model, [torch.randn(2, 3, 4, 4), torch.randn(1, 3, 1, 1)])


def _process(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        model = Net(nn.BatchNorm1d(3))
        data = torch.load(f"{folder}/data")
        recalibrate(model, data[:1] if rank == 0 else data[1:])
        torch.save(model.state_dict(), f"{folder}/{rank}")
    finally:
        dist.destroy_process_group()


def test_two_processes_pool_their_data(tmp_path: Path, forked: ForkedPython) -> None:
    data = [torch.randn(n, 3) + n for n in (4, 6, 3)]
    torch.save(data, tmp_path / "data")
    forked.ranks(Path(__file__), "_process", tmp_path)
    model = Net(nn.BatchNorm1d(3))
    recalibrate(model, copy.deepcopy(data))
    for rank in (0, 1):
        held = torch.load(tmp_path / str(rank))
        torch.testing.assert_close(held["norm.running_mean"], model.norm.running_mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(held["norm.running_var"], model.norm.running_var, rtol=1e-6, atol=1e-6)
