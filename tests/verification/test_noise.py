from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import torch

from normdeploy.verification.bounds.accuracy import reduction_length
from normdeploy.verification.bounds.hashing import hashed_noise
from normdeploy.verification.bounds.noise import NoisyGraph

U, FLOOR = 2.0**-24, 2.0**-126


def test_equal_values_get_equal_noise_and_it_is_uniform():
    values = torch.tensor([1.5, 2.5, 1.5, -3.0], dtype=torch.float64)
    noise = hashed_noise(values, 3)
    assert noise[0] == noise[2]
    assert noise[0] != noise[1]
    assert hashed_noise(values, 4)[0] != noise[0]
    many = hashed_noise(torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), 1)
    assert abs(float(many.mean())) < 5e-3
    assert abs(float(many.std()) - 3**-0.5) < 5e-3
    assert float(many.abs().max()) <= 1


def test_moving_operators_add_no_noise(graph_of: Callable[[str], ir.Model]):
    model = graph_of("g (float[2,3] x) => (float[3,2] y) { t = Transpose<perm=[1,0]>(x) r = Relu(t) y = Identity(r) }")
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    *_, (s,) = NoisyGraph(model).spreads({"x": x}, roundoff=U, floor=FLOOR)
    assert not s.any()


def test_the_spread_of_a_chain_has_the_size_of_its_roundings(graph_of: Callable[[str], ir.Model]):
    model = graph_of("g (float[4096] x) => (float[4096] y) { a = Mul(x, x) b = Mul(a, x) y = Mul(b, x) }")
    x = np.random.default_rng(0).uniform(1, 2, 4096).astype(np.float32)
    *_, (s,) = NoisyGraph(model).spreads({"x": x}, roundoff=U, floor=FLOOR, runs=32)
    relative = np.sqrt(np.mean((s / x.astype(np.float64) ** 4) ** 2))
    assert 0.9 * np.sqrt(3) * 3**-0.5 * U < relative < 1.1 * np.sqrt(3) * 3**-0.5 * U


def test_long_sums_and_weights_add_noise(graph_of: Callable[[str], ir.Model]):
    model = graph_of("g (float[8,K] x, float[K,5] w) => (float[8,5] y) { y = MatMul(x, w) }")
    node = next(iter(model.graph))
    shapes = {"x": (8, 4096), "w": (4096, 5)}
    assert reduction_length(node, shapes, (8, 5)) == 4096


def test_a_constant_image_does_not_average_its_rounding_away(graph_of: Callable[[str], ir.Model]):
    model = graph_of("g (float[N] x) => (float[N] y) { y = Exp(x) }")
    noisy = NoisyGraph(model)

    def mean_error(x: np.ndarray) -> float:
        runs = [noisy.run({"x": x}, roundoff=1e-3, floor=FLOOR, seed=seed)["y"] for seed in range(24)]
        return float(np.sqrt(np.mean([np.mean(y / np.exp(x.astype(np.float64)) - 1) ** 2 for y in runs])))

    constant = np.full(4096, 0.3, np.float32)
    varied = np.random.default_rng(0).uniform(0.2, 0.4, 4096).astype(np.float32)
    assert 0.6 < mean_error(constant) / (3**-0.5 * 1e-3) < 1.5
    assert mean_error(varied) < 3 * 3**-0.5 * 1e-3 / 64


def test_weights_are_perturbed_and_scalars_are_not(graph_of: Callable[[str], ir.Model]):
    model = graph_of("g (float[3] x) => (float[3] y, float[3] z) { y = Max(x, w) z = Max(x, c) }")
    for name, value in (("w", np.full(3, 5.0, np.float32)), ("c", np.float32(5.0))):
        old = next(v for n in model.graph for v in n.inputs if v is not None and v.name == name)
        new = ir.Value(name=name, const_value=ir.tensor(value, name=name))
        old.replace_all_uses_with(new)
        model.graph.register_initializer(new)
    out = NoisyGraph(model).run({"x": np.zeros(3, np.float32)}, roundoff=1e-3, floor=FLOOR, seed=1)
    assert (out["y"] != 5.0).all()
    assert np.abs(out["y"] - 5.0).max() <= 5e-3
    assert (out["z"] == 5.0).all()


@pytest.mark.parametrize(
    ("opset", "body"),
    [(9, 'y = Upsample<mode="nearest">(a, scales)'), (10, "y = Resize(a, scales)"),
     (19, 'y = Resize<coordinate_transformation_mode="asymmetric", nearest_mode="floor">(a, , scales)')],
    ids=["Upsample", "Resize 10", "Resize"],
)  # fmt: skip
def test_stored_scales_are_where_to_read_and_do_not_round(opset: int, body: str):
    """At twice the size every other position is a pixel's edge: a scale moved by a rounding would exchange pixels."""
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["": {opset}]> g (float[2,3,5,5] x) => (float[2,3,10,10] y)
        <float[4] scales = {{1.0, 1.0, 2.0, 2.0}}> {{ a = Relu(x) {body} }}"""
    )
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 5, 5)).astype(np.float32)}
    *_, (spread,) = NoisyGraph(model).spreads(feeds, roundoff=2.0**-24, floor=2.0**-126, runs=12, seed=1)
    assert np.abs(spread).max() < 8 * 2.0**-24 * np.abs(feeds["x"]).max()


LINSPACE = """g (float[n] x) => (float[16] y) {
    count = Constant<value = int64 {16}>() first = Constant<value = int64 {0}>() step = Constant<value = int64 {1}>()
    start = Cast<to = 1>(first) limit = Cast<to = 1>(count) delta = Cast<to = 1>(step)
    places = Range(start, limit, delta) high = ReduceSumSquare<keepdims = 0>(x) y = Mul(places, high)
}"""

FLOORED = """g (float[n] x) => (float[n] y) {
    long = Shape(x) size = Cast<to = 1>(long) three = Constant<value = float {3.0}>() part = Div(size, three)
    whole = Mul(part, three) floor = Floor(whole) back = Cast<to = 7>(floor)
    high = ReduceSumSquare<keepdims = 1>(x) y = Expand(high, back)
}"""


@pytest.mark.parametrize("text", [LINSPACE, FLOORED])
def test_how_many_elements_there_are_is_not_rounded(text: str, graph_of: Callable[[str], ir.Model]):
    noisy = NoisyGraph(graph_of(text))
    x = np.linspace(0.1, 1, 6, dtype=np.float32)
    *_, (s,) = noisy.spreads({"x": x}, roundoff=1e-3, floor=FLOOR, runs=12)
    assert s.any()  # what is computed from the data is


def test_a_cast_of_what_its_type_holds_adds_no_noise(graph_of: Callable[[str], ir.Model]):
    model = graph_of("g (int64[4] x) => (float[4] y, float16[4] z) { y = Cast<to = 1>(x) z = Cast<to = 10>(x) }")
    x = np.array([3, 2**11 + 1, 2**24 - 1, 2**24 + 1])
    *_, (single, half) = NoisyGraph(model).spreads({"x": x}, roundoff=U, floor=FLOOR)
    np.testing.assert_array_equal(single != 0, [False, False, False, True])
    np.testing.assert_array_equal(half != 0, [False, True, True, True])


def test_what_says_how_many_rows_there_are_gets_no_noise(graph_of: Callable[[str], ir.Model]):
    """Old exports take the root of a count for the sides of a picture: 3.9999 would leave three rows of four."""
    model = graph_of("""g (float[1,16] x) => (float[s,s] y) {
        n = Constant<value = float {16.0}>() half = Constant<value = float {0.5}>() at = Constant<value_ints = [0]>()
        root = Pow(n, half) side = Cast<to = 7>(root) one = Unsqueeze(side, at) sizes = Concat<axis = 0>(one, one)
        y = Reshape(x, sizes) }""")
    x = np.random.default_rng(0).standard_normal((1, 16)).astype(np.float32)
    noisy = NoisyGraph(model)
    for seed in range(8):
        assert noisy.run({"x": x}, roundoff=24 * U, floor=FLOOR, seed=seed, distinct=True)["y"].shape == (4, 4)
