"""GatherND: the slices that each tuple of indices names, one by one."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest
import torch

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator

X = np.random.default_rng(7).standard_normal((2, 3, 4, 5))


def evaluated(x: np.ndarray, at: np.ndarray, batch: int) -> np.ndarray:
    shapes = [",".join(map(str, array.shape)) for array in (x, at)]
    graph = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 18]> g (double[{shapes[0]}] x, int64[{shapes[1]}] i) => (double y)
        {{ y = GatherND<batch_dims = {batch}>(x, i) }}"""
    )
    return Evaluator(graph).run({"x": x, "i": at})["y"].numpy()


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("beside", [(), (6,), (2, 3)])
def test_each_tuple_of_indices_names_a_slice(batch: int, depth: int, beside: tuple[int, ...]):
    shape = (*X.shape[:batch], *beside)
    rng = np.random.default_rng(batch * 10 + depth)
    sizes = X.shape[batch : batch + depth]
    at = np.stack([rng.integers(-n, n, shape) for n in sizes], -1).astype(np.int64)
    want = np.zeros((*shape, *X.shape[batch + depth :]))
    for place in itertools.product(*map(range, shape)):
        want[place] = X[(*place[:batch], *at[place])]
    found = evaluated(X, at, batch)
    assert found.shape == want.shape
    assert np.array_equal(found, want)


@pytest.mark.parametrize("wrong", [[[2, 0]], [[-3, 0]], [[0, 3]]])
def test_an_index_outside_is_refused(wrong: list[list[int]]):
    with pytest.raises(GraphError, match="GatherND"):
        evaluated(X, np.array(wrong), 0)


def test_a_batch_that_indices_do_not_have_is_refused():
    with pytest.raises(GraphError, match="GatherND"):
        evaluated(X, np.zeros((3, 1), np.int64), 1)


def test_sizes_alone_are_followed():
    graph = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 18]> g (double[2,3,4] x, int64[5,2] i) => (double y)
        { y = GatherND(x, i) }"""
    )
    blank = torch.empty((2, 3, 4), dtype=torch.float64, device="meta")
    found = Evaluator(graph).run({"x": blank, "i": torch.zeros((5, 2), dtype=torch.int64)})["y"]
    assert found.is_meta
    assert tuple(found.shape) == (5, 4)
