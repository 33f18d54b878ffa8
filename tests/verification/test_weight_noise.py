"""Weights with noise: the same numbers, however large the weight is and however it lies in memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.graph import ExactTensor
from normdeploy.verification.bounds import noise, weight_noise
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.bounds.weight_noise import with_noise

DRAWN = np.random.default_rng(0).uniform(-1, 1, 1 << 18)
"""The random numbers of all weights."""

AMPLITUDE = 2.0**-16


def expected(weight: np.ndarray, start: int) -> np.ndarray:
    places = (start + np.arange(weight.size) % (1 << 18)) % (1 << 18)
    return weight.astype(np.float64) * (1 + AMPLITUDE * DRAWN[places].reshape(weight.shape))


@pytest.mark.parametrize("shape", [(3, 5), (1 << 18,), (3, 1 << 17), (7, 100_003)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_each_number_of_a_weight_is_moved_by_its_own_share(shape: tuple[int, ...], dtype: type[np.floating]):
    weight = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    found = with_noise(ir.tensor(weight), AMPLITUDE, 5 + (3 << 18))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected(weight, 5))


def test_a_weight_that_lies_otherwise_in_memory_gets_the_same():
    weight = np.random.default_rng(1).standard_normal((1000, 700)).astype(np.float32).T
    np.testing.assert_array_equal(with_noise(ir.tensor(weight), AMPLITUDE, 9), expected(weight, 9))


def test_of_an_unrounded_weight_the_unrounded_numbers_are_moved():
    weight = np.random.default_rng(1).standard_normal((600, 700))
    exact = ExactTensor(lambda: weight, ir.DataType.FLOAT, weight.shape)
    np.testing.assert_array_equal(with_noise(exact, AMPLITUDE, 9), expected(weight, 9))


def test_runs_without_noise_read_the_weights_as_they_are_stored(
    graph_of: Callable[[str], ir.Model], monkeypatch: pytest.MonkeyPatch
):
    """Of five runs behind S one has none, and moves no weight."""
    model = graph_of("g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }")
    moved: list[float] = []

    def counted(tensor: ir.TensorProtocol, amplitude: float, seed: int) -> np.ndarray:
        moved.append(amplitude)
        return weight_noise.with_noise(tensor, amplitude, seed)

    monkeypatch.setattr(noise, "with_noise", counted)
    graph, feeds = NoisyGraph(model), {"x": np.eye(2, dtype=np.float32)}
    *_, (s,) = graph.spreads_fast(feeds, roundoff=2.0**-24, runs=4)
    assert s.all()
    assert moved == [2.0**-16] * 4
    moved.clear()
    graph.run(feeds, roundoff=2.0**-24, floor=2.0**-126, seed=1, plain=True)
    assert moved == []
