"""Adaptive pooling: windows that overlap, that are longer than the input, of sizes known before and of any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from each_function import Each
from torch import Tensor, nn
from torch.nn import functional as F

import normdeploy as nd

Pool = Callable[[Tensor], Any]

IMAGES: dict[str, Pool] = {
    "average": lambda x: F.adaptive_avg_pool2d(x, 4),
    "average_of_rows": lambda x: F.adaptive_avg_pool2d(x, (1, 4)),
    "average_of_all": lambda x: F.adaptive_avg_pool2d(x, 1),
    "average_stretched": lambda x: F.adaptive_avg_pool2d(x, (17, 20)),
    "greatest": lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
    "greatest_of_all": lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True),
    "greatest_of_columns": lambda x: F.adaptive_max_pool2d(x, (4, 1)),
    "greatest_stretched": lambda x: F.adaptive_max_pool2d(x, 17),
    "greatest_of_one_image": lambda x: F.adaptive_max_pool2d(x[0], 4, return_indices=True),
    "average_of_one_image": lambda x: F.adaptive_avg_pool2d(x[0], 4),
}
SIDE_BY_SIDE: dict[str, Pool] = {
    "average": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    "greatest": lambda x: F.adaptive_max_pool2d(x, (2, 9), return_indices=True),
    "greatest_of_one_image": lambda x: F.adaptive_max_pool2d(x[0], (None, 3)),
    "average_of_one_image": lambda x: F.adaptive_avg_pool2d(x[0], 1),
}
VOLUMES: dict[str, Pool] = {
    "average": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4)),
    "greatest": lambda x: F.adaptive_max_pool3d(x, (3, 2, 4), return_indices=True),
    "greatest_of_all": lambda x: F.adaptive_max_pool3d(x, 1),
    "side_by_side": lambda x: F.adaptive_max_pool3d(x, (5, 3, 2)),
}
ROWS: dict[str, Pool] = {
    "average": lambda x: F.adaptive_avg_pool1d(x, 4),
    "greatest": lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True),
    "average_of_floats": lambda x: F.adaptive_avg_pool1d(x.half(), 3),
}


def draw(*shape: int) -> Tensor:
    """Return few different numbers, so that greatest ones are equal."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).float() / 4


def held(
    functions: dict[str, Pool], folder: Path, shape: tuple[int, ...], *others: tuple[int, ...], **how: Any
) -> None:
    """Hold a file against torch: extremes and places as they are, averages but for the last digits."""
    model = Each(functions).eval()
    nd.export(model, (draw(*shape),), folder / "net.onnx", verify=False, **how)
    run = nd.load(folder / "net.onnx")
    for x in (draw(*one) for one in (shape, *others)):
        got, want = run(x.numpy()), model(x)
        assert set(got) == set(want)
        for name, true in want.items():
            assert got[name].dtype == true.numpy().dtype, name
            rtol = 1e-3 if "floats" in name else 1e-6
            np.testing.assert_allclose(got[name], true.numpy(), rtol=rtol, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(
    ("functions", "shape"),
    [(IMAGES, (2, 3, 13, 6)), (SIDE_BY_SIDE, (2, 3, 8, 9)), (VOLUMES, (2, 2, 5, 6, 8)), (ROWS, (2, 3, 10))],
    ids=["images", "side by side", "volumes", "rows"],
)
def test_windows_of_known_sizes(functions: dict[str, Pool], shape: tuple[int, ...], tmp_path: Path) -> None:
    held(functions, tmp_path, shape, (1, *shape[1:]))


def test_windows_of_sizes_that_come_later(tmp_path: Path) -> None:
    """torch's own form of the average holds the places of the example's size."""
    sizes = ({0: "batch", 2: "height", 3: "width"},)
    held(IMAGES, tmp_path, (2, 3, 13, 6), (1, 3, 24, 20), (3, 3, 8, 5), (2, 3, 4, 4), dynamic_shapes=sizes)


class Pooled(nn.Module):
    """A norm in front of windows that overlap."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.norm(self.conv(x)))  # type: ignore[no-any-return] # torch's functions return what they do


@pytest.mark.parametrize("name", ["average", "greatest_of_columns"])
@pytest.mark.parametrize("sizes", [None, ({0: "batch", 2: "height", 3: "width"},)], ids=["known", "any"])
def test_a_norm_in_front_of_them_is_folded_and_proven(name: str, sizes: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = Pooled(IMAGES[name]).eval()
    torch.nn.init.uniform_(model.norm.running_var, 0.5, 2.0)  # type: ignore[arg-type] # a buffer of this norm
    found = nd.export(model, (draw(2, 3, 13, 7),), path, verify="quick", dynamic_shapes=sizes)
    assert found.verdict is not None
    assert found.verdict.passed, found.verdict.summary()
    assert "for every input" in found.verdict.summary()
    written = [node.op_type for node in onnx.load(path).graph.node]
    assert "BatchNormalization" not in written
    if sizes is None:
        assert len(written) <= 8  # torch's own form of the average: 54
