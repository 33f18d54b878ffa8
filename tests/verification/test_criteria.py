from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.verification.bounds.criteria import CONSTANTS, Bounds, judge, partitions, rms

U = 2.0**-24


def bounds(truth: np.ndarray, eager: np.ndarray | float = 0.0, spread: np.ndarray | float = 0.0) -> Bounds:
    shape = truth.shape
    eager, spread = np.broadcast_to(np.float64(eager), shape), np.broadcast_to(np.float64(spread), shape)
    return Bounds(truth, eager, spread, U, 2.0**-126, np.ones(shape, bool))


def test_the_criterion_is_the_published_formula():
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((40, 1))
    eager, spread = np.abs(rng.standard_normal((40, 1))) * 1e-7, np.abs(rng.standard_normal((40, 1))) * 2e-8
    error = np.abs(rng.standard_normal((40, 1))) * 1e-6

    def root(x: np.ndarray) -> float:
        return float(np.sqrt(np.mean(x**2)))

    by_rms = root(error) / (4 * max(root(eager), root(spread)) + U * root(truth) + 2.0**-126)
    by_max = error.max() / (8 * max(eager.max(), 3 * root(spread)) + 2 * U * np.abs(truth).max() + 2 * 2.0**-126)
    assert judge(truth + error, bounds(truth, eager, spread)).ratio == pytest.approx(max(by_rms, by_max), rel=1e-6)


def test_an_error_in_one_channel_is_not_diluted_by_the_others():
    truth = np.random.default_rng(1).standard_normal((64, 50))
    wrong = truth.copy()
    wrong[:, 7] *= 1 + 64 * U
    whole = rms(wrong - truth) / (U * rms(truth))
    judged = judge(wrong, bounds(truth, spread=U))
    assert judged.ratio > 3 * whole / 5
    assert judged.ratio > 1
    assert judged.block == "channel 7"


def test_the_worst_element_is_named():
    truth = np.ones((3, 20, 5))
    wrong = truth.copy()
    wrong[2, 11, 4] = 1.5
    assert judge(wrong, bounds(truth, spread=U)).worst == (2, 11, 4)


def test_elements_left_out_do_not_count():
    truth = np.ones((4, 8))
    wrong = truth.copy()
    wrong[1, 3] = 9.0
    b = bounds(truth, spread=U)
    keep = np.ones((4, 8), bool)
    keep[1, 3] = False
    assert judge(wrong, b).ratio > 1
    assert judge(wrong, Bounds(b.truth, b.eager, b.spread, U, 0.0, keep)).ratio == 0.0


def test_shapes_are_never_broadcast():
    with pytest.raises(ValueError, match="shapes differ"):
        judge(np.ones((4, 1)), bounds(np.ones(4)))


@settings(deadline=None, max_examples=40)
@given(st.floats(-6, 6), st.integers(0, 5))
def test_scaling_everything_changes_no_ratio(exponent: float, seed: int):
    rng = np.random.default_rng(seed)
    truth, error = rng.standard_normal((8, 30)), rng.standard_normal((8, 30)) * 1e-6
    scale = 10.0**exponent
    one = judge(truth + error, bounds(truth, 1e-7, 1e-7)).ratio
    other = judge(scale * (truth + error), bounds(scale * truth, scale * 1e-7, scale * 1e-7)).ratio
    assert other == pytest.approx(one, rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 9))
def test_partitions_cover_every_element_once_and_pool_what_is_alike(shape: list[int], seed: int):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-9, 9, shape[-1])
    for part in partitions(values, CONSTANTS.minimum):
        assert sorted(part.rows(values).ravel()) == sorted(values.ravel())
        assert part.sizes.sum() == values.size
        if part.axis is None:
            continue
        channels = np.moveaxis(values, part.axis, 0).reshape(values.shape[part.axis], -1)
        blocks = [part.members(i) for i in range(len(part.starts))]
        assert sorted(i for block in blocks for i in block) == list(range(len(channels)))
        for block, size in zip(blocks, part.sizes, strict=True):
            assert size == channels[block].size
            tops = np.abs(channels[block]).max(axis=1)
            assert tops.max() <= 16 * tops.min()


def test_a_score_beside_pixel_coordinates_is_held_against_its_own_rounding():
    """Four boxes of one image: a score off by 1e-4 is thousands of its roundings, and a fraction of a coordinate's."""
    rng = np.random.default_rng(0)
    for shape in ((1, 4, 5), (4, 5), (5,)):
        truth = rng.uniform(100, 640, shape)
        truth[..., 0] = rng.uniform(0.2, 0.9, shape[:-1])
        spread = 4 * U * np.abs(truth)
        wrong = truth.copy()
        wrong[..., 0] += 1e-4
        assert judge(wrong, bounds(truth, spread, spread)).ratio > 5
        assert judge(truth + spread, bounds(truth, spread, spread)).ratio < 1


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 99), st.sampled_from([(2, 7), (1, 30), (9,), (3, 2, 4)]))
def test_rounding_of_few_elements_is_no_failure(seed: int, shape: tuple[int, ...]):
    """Errors drawn like the noise that four runs measured, channels of any size."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6, shape[-1])
    size = U * np.abs(truth) * 3
    spread = np.sqrt(np.mean(np.square(rng.standard_normal((4, *shape))), axis=0)) * size
    error, eager = rng.standard_normal(shape) * size, np.abs(rng.standard_normal(shape)) * size
    assert judge(truth + error, bounds(truth, eager, spread)).ratio <= 1


def test_what_is_beyond_the_smallest_bound_there_is_is_beyond_all():
    truth = np.zeros((4, 16))
    smallest = Bounds(truth, truth, truth, 2.0**-53, 2.0**-1022, np.ones((4, 16), bool))
    assert judge(truth + 10, smallest).ratio == np.inf


def test_subnormal_values_do_not_vanish_when_squared():
    truth = np.full((4, 16), 1e-300)
    assert judge(truth * 2, Bounds(truth, 0 * truth, 0 * truth, U, 1e-320, np.ones((4, 16), bool))).ratio > 1


def test_numbers_whose_squares_overflow_have_a_root_mean_square():
    assert rms(np.array([3e200, -4e200])) == pytest.approx(np.sqrt(12.5) * 1e200)
    assert rms(np.array([np.inf, 1.0])) == np.inf
