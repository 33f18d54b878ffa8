"""Medians, k-th values, sorted places, masks, running products and extremes: onnxruntime returns what torch does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from each_function import Each
from torch import Tensor, nn

import normdeploy as nd

NAN, INF = float("nan"), float("inf")

BOUNDS = torch.tensor([-1.0, 0.0, 0.5, 0.5, 2.0])

ORDER: dict[str, Callable[[Tensor], Any]] = {
    "median": lambda x: tuple(x.median(1)),
    "median_kept": lambda x: x.median(-1, keepdim=True)[0],
    "median_of_all": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(-1)[0],
    "nanmedian_is_at": lambda x: x.nanmedian(-1)[1] * (x == x).any(-1),
    "nanmedian_kept": lambda x: x.nanmedian(1, keepdim=True)[0],
    "nanmedian_of_all": lambda x: x.nanmedian(),
    "median_of_integers": lambda x: (x.nan_to_num(0, 5, -5) * 3).long().median(1)[0],
    "left": lambda x: torch.searchsorted(BOUNDS, x),
    "right": lambda x: torch.searchsorted(BOUNDS, x, side="right"),
    "own_row": lambda x: torch.searchsorted(x.nan_to_num(0, 5, -5).sort(-1)[0], x, right=True, out_int32=True),
    "by_sorter": lambda x: torch.searchsorted(BOUNDS.flip(0), x, sorter=torch.arange(4, -1, -1)),
}
RUNNING: dict[str, Callable[[Tensor], Any]] = {
    "product": lambda x: x.cumprod(1),
    "product_of_the_batch": lambda x: x.cumprod(0),
    "product_in_float64": lambda x: x.cumprod(-1, dtype=torch.float64),
    "greatest": lambda x: tuple(x.cummax(-1)),
    "least": lambda x: tuple(x.cummin(1)),
    "greatest_of_integers": lambda x: tuple((x.nan_to_num(0, 5, -5) * 3).long().cummax(0)),
    "transmittance": lambda x: (1 - x.nan_to_num(0, 5, -5).clamp(0, 1)[:, :, None].expand(-1, -1, 3) / 3).cumprod(1),
}
UNLIKE = torch.tensor([
    [3.0, -1.0, 2.0, 0.5, 9.0, -7.0],
    [1.5, NAN, 2.5, -INF, 0.0, 4.0],
    [NAN, NAN, NAN, NAN, NAN, NAN],
    [INF, 1.0, -3.0, -INF, 6.0, NAN],
    [-0.5, -2.5, -0.25, 8.0, 0.125, 7.5],
])  # fmt: skip


def held(functions: dict[str, Callable[[Tensor], Any]], folder: Path, *inputs: Tensor) -> None:
    model = Each(functions).eval()
    nd.export(
        model, (torch.randn(4, 6, generator=torch.Generator().manual_seed(0)),), folder / "net.onnx", verify=False
    )
    run = nd.load(folder / "net.onnx")
    for x in inputs:
        got, want = run(x.numpy()), model(x)
        assert set(got) == set(want)
        for name, true in want.items():
            np.testing.assert_array_equal(got[name], true.numpy(), err_msg=name)
            assert got[name].dtype == true.numpy().dtype, name


def test_what_is_found_by_order_is_what_torch_finds(tmp_path: Path) -> None:
    """With NaN, infinities, an even and an odd number of elements that are known, and rows of other batches."""
    held(ORDER, tmp_path, UNLIKE, UNLIKE[:1], UNLIKE[[4, 0]])


def test_running_products_and_extremes_are_those_of_torch_bit_by_bit(tmp_path: Path) -> None:
    held(RUNNING, tmp_path, UNLIKE, UNLIKE[:1], UNLIKE[[4, 0]])


def test_a_kth_value_and_a_mask(tmp_path: Path) -> None:
    pick: dict[str, Callable[[Tensor], Any]] = {
        "third": lambda x: tuple(x.kthvalue(3, 1)),
        "second_kept": lambda x: x.kthvalue(2, keepdim=True)[0],
        "positive": lambda x: x.masked_select(x > 0),
        "of_columns": lambda x: x.masked_select(x.sum(0, keepdim=True) > 0),
        "of_one_row": lambda x: x[:1].masked_select(x > 0),
    }
    held(pick, tmp_path, UNLIKE[[0, 4]], UNLIKE[[4, 0, 4]])


@pytest.mark.parametrize("number", [0, 1])
def test_a_norm_in_front_of_them_is_proven(number: int, tmp_path: Path) -> None:
    """A ray of densities behind a norm, and the middle of many: each verdict stands for every input."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), Each(({"ray": RUNNING["product"]}, ORDER)[number]))
    found = nd.export(model.eval(), (torch.randn(4, 6),), tmp_path / "net.onnx", verify="quick")
    assert found.verdict is not None
    assert found.verdict.passed, found.verdict.summary()
    assert "for every input" in found.verdict.summary()
