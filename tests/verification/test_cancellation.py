"""Sums that cancel: their noise is measured on their terms, and covers what kernels really do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.graph import Evaluator
from normdeploy.verification import verify
from normdeploy.verification.bounds.cancellation import condensed, of_one_size, row_shift, terms
from normdeploy.verification.bounds.noise import NoisyGraph

U, FLOOR = 2.0**-24, 2.0**-126
Graph = Callable[[str], ir.Model]


def spread(model: ir.Model, feeds: Mapping[str, np.ndarray], runs: int = 24) -> np.ndarray:
    *_, (s,) = NoisyGraph(model).spreads(feeds, roundoff=U, floor=FLOOR, runs=runs)
    return s


def with_weights(model: ir.Model, **weights: np.ndarray) -> ir.Model:
    for name, array in weights.items():
        old = next(v for n in model.graph for v in n.inputs if v is not None and v.name == name)
        new = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        old.replace_all_uses_with(new)
        model.graph.register_initializer(new)
    return model


def test_a_mean_that_cancels_has_noise_of_its_terms(graph_of: Graph):
    model = graph_of("g (float[1,1,16,16] x) => (float[1,1,1,1] y) { y = GlobalAveragePool(x) }")
    x = np.random.default_rng(0).standard_normal((1, 1, 16, 16)).astype(np.float32)
    x[0, 0, 8:] = -x[0, 0, :8]  # the mean is zero but for one unit
    x[0, 0, 0, 0] = np.nextafter(x[0, 0, 0, 0], np.float32(9))
    s = float(spread(model, {"x": x}).item())
    size = float(np.abs(x.astype(np.float64)).mean())
    assert 0.1 * U * size < s < 0.2 * U * size  # 1/4 of the terms, uniform: 0.144


def test_an_addition_of_two_numbers_is_rounded_relative_to_its_result(graph_of: Graph):
    model = graph_of("g (float[64] a, float[64] b) => (float[64] y) { y = Sub(a, b) }")
    rng = np.random.default_rng(0)
    a = rng.standard_normal(64).astype(np.float32)
    b = (a * np.float32(1 - 2**-12)).astype(np.float32)
    s = spread(model, {"a": a, "b": b})
    assert (s <= U * np.abs(a.astype(np.float64) - b)).all()


@pytest.mark.parametrize(
    "body",
    [
        "g (float[6,40] x) => (float[6,3] y) { y = MatMul(x, w) }",
        "g (float[6,40] x) => (float[6,3] y) { y = Gemm<transB=1>(x, w) }",
        "g (float[2,4,9,9] x) => (float[2,6,7,7] y) { y = Conv(x, w) }",
        "g (float[2,4,9,9] x) => (float[2,6,5,9] y) { y = Conv<group=2, strides=[2,1], pads=[1,1,1,1]>(x, w) }",
    ],
)
def test_a_product_with_a_constant_image_has_noise_of_its_terms(graph_of: Graph, body: str):
    """Filters whose weights add up to nothing, on a constant: the result is rounding alone, and so is the noise."""
    rng = np.random.default_rng(0)
    model = graph_of(body)
    node = next(iter(model.graph))
    grouped = node.attributes.get_int("group", 1)
    shape = {"MatMul": (40, 3), "Gemm": (3, 40)}.get(node.op_type, (6, 4 // grouped, 3, 3))
    axes = (0,) if node.op_type == "MatMul" else tuple(range(1, len(shape)))
    w = rng.standard_normal(shape)
    w = (w - w.mean(axes, keepdims=True)).astype(np.float32)
    feed = np.ones([int(n) for n in model.graph.inputs[0].shape.numpy()], np.float32)
    s = spread(with_weights(model, w=w), {"x": feed})
    size = np.abs(w.astype(np.float64)).sum(axes).mean()
    assert 0.1 * U * size < np.median(s) < 0.6 * U * size


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_stand_in_for_a_weight_gives_the_same_terms(
    groups: int, inner: int, outer: int, window: int, gemm: bool, seed: int
):
    generator = torch.Generator().manual_seed(seed)
    if gemm:
        flip = seed % 2
        node = ir.node("Gemm", [None, None], attributes={"transB": flip})
        x = torch.randn(4, inner, dtype=torch.float64, generator=generator)
        w = torch.randn(*((outer, inner) if flip else (inner, outer)), dtype=torch.float64, generator=generator)
    else:
        node = ir.node("Conv", [None, None], attributes={"group": groups})
        x = torch.randn(2, groups * inner, 5, 5, dtype=torch.float64, generator=generator)
        w = torch.randn(groups * outer, inner, window, window, dtype=torch.float64, generator=generator)
    whole, small = terms(node, [x, w], 9), terms(node, [x, condensed(node, 1, w)], 9)
    assert whole is not None
    torch.testing.assert_close(small, whole)
    # Cauchy-Schwarz: no smaller than its share of the product itself
    product = (x @ (w.T if seed % 2 else w)) if gemm else torch.nn.functional.conv2d(x, w, groups=groups)
    assert bool((whole >= 0.3 * product.abs() - 1e-12).all())


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("y = LayerNormalization<axis=-1, epsilon=1e-5>(x, s, b)", 17),
        ("y = InstanceNormalization<epsilon=1e-5>(x, s, b)", 17),
        ("y = GroupNormalization<epsilon=1e-5, num_groups=2>(x, s, b)", 21),
    ],
)
def test_the_mean_of_a_constant_row_moves_the_row(body: str, opset: int):
    """x - mean is zero but for the mean's own rounding, which 1 / sqrt(epsilon) makes 300 times larger."""
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": {opset}]> g (float[2,4,4] x) => (float[2,4,4] y) {{ {body} }}'
    )
    weights = {"s": np.full(4, 2.0, np.float32), "b": np.ones(4, np.float32)}
    x = np.full((2, 4, 4), 0.7, np.float32)
    s = spread(with_weights(model, **weights), {"x": x})
    shift = 2.0 * U * 0.7 / np.sqrt(1e-5) / np.sqrt(3)
    assert 0.5 * shift < np.median(s) < 1.5 * shift
    eager = Evaluator(model, dtype=torch.float32).run({"x": x})["y"].double().numpy()
    assert np.abs(eager - 1.0).max() <= 4 * np.median(s)


def test_upsampling_before_a_global_pool_does_not_fail(tmp_path: Path):
    """A graph of opset 7 as converters wrote it; a few outputs, each the mean of values that cancel."""
    from onnx import parser, save

    proto = parser.parse_model(
        '<ir_version: 7, opset_import: ["": 7]> g (float[N,3,5,5] x) => (float[N,3,1,1] y) '
        '{ u = Upsample<mode="nearest", scales=[1.0,1.0,2.0,2.0]>(x) y = GlobalAveragePool(u) }'
    )
    path = tmp_path / "old.onnx"
    save(proto, str(path))
    for seed in range(3):
        verdict = verify(path, path, seed=seed)
        assert verdict.check("rounding").status == "pass", verdict.summary()


def test_the_mean_of_repeated_numbers_errs_more_than_that_of_scattered_ones():
    """One number added again and again rounds the same way each time: here by float32, one lane after the other."""
    node = ir.node("LayerNormalization", [ir.val("x"), ir.val("g")], attributes={"axis": -1})
    scale = torch.ones(4096, dtype=torch.float64)
    constant, scattered = torch.full((1, 4096), 0.7), 0.7 + 0.1 * torch.randn(1, 4096)
    moved = [row_shift(node, [x.double(), scale], 4096) for x in (constant, scattered)]
    assert moved[0] is not None
    assert moved[1] is not None
    # per unit of 1/sqrt(v + e): what one u of the mean is worth
    spreads = [math.sqrt(float(x.double().var(correction=0)) + 1e-5) for x in (constant, scattered)]
    growth = [float(m[0].max()) * s / 0.7 for m, s in zip(moved, spreads, strict=True)]
    assert growth[0] > 5 * growth[1]
    lanes = constant.reshape(-1, 8)
    total = torch.zeros(8)
    for row in lanes:
        total = total + row
    error = abs(float(total.double().sum()) / 4096 - float(constant[0, 0].double())) / (0.7 * 2.0**-24)
    assert error < 4 * growth[0]


BACKGROUNDS = {
    "one number": lambda _, n: np.full(n, 1.1618743),
    "one number among zeros": lambda rng, n: np.where(rng.random(n) < 0.7, 1.1618743, 0.0),
    "two numbers mixed": lambda rng, n: rng.choice([0.33318771, 1.1618743], n, p=[0.2, 0.8]),
    "all but one number": lambda rng, n: 1.1618743 * (1 + 1e-7 * rng.standard_normal(n)),
    "spots": lambda rng, n: np.where(rng.random(n) < 0.01, 300 * rng.random(n), 1.1618743),
}


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceSum", "GlobalAveragePool", "AveragePool"])
@pytest.mark.parametrize("background", BACKGROUNDS)
def test_equal_terms_added_one_after_the_other_are_covered(graph_of: Graph, operator: str, background: str):
    """Each addition of an equal term is rounded in the same direction: float32's error grows with their number."""
    call = "AveragePool<kernel_shape=[111,111]>(x)" if operator == "AveragePool" else f"{operator}(x)"
    given = f"{operator}(x, axes)" if operator.startswith("Reduce") else call
    axes = "int64[2] axes = {2, 3}" if operator.startswith("Reduce") else ""
    model = graph_of(f"g (float[1,8,111,111] x) => (float[1,8,1,1] y) <{axes}> {{ y = {given} }}")
    rng = np.random.default_rng(0)
    scales = 2.0 ** rng.uniform(-1, 1, 8)
    x = np.stack([scale * BACKGROUNDS[background](rng, 111 * 111) for scale in scales]).astype(np.float32)
    count = 1 if operator == "ReduceSum" else x.shape[1]
    sequential = np.add.accumulate(x, axis=1, dtype=np.float32)[:, -1].astype(np.float64) / count
    error = np.abs(sequential - x.astype(np.float64).sum(1) / count)
    s = spread(model, {"x": x.reshape(1, 8, 111, 111)}, runs=4).reshape(-1)
    assert np.sqrt(np.mean(error**2)) < 4 * np.sqrt(np.mean(s**2))


@pytest.mark.parametrize("kind", ["random", "whole numbers", "either sign"])
def test_terms_that_do_not_repeat_their_rounding_have_the_noise_of_chance(graph_of: Graph, kind: str):
    body = "y = ReduceMean(x, axes)"
    model = graph_of(f"g (float[1,64,4096] x) => (float[1,64,1] y) <int64[1] axes = {{2}}> {{ {body} }}")
    rng = np.random.default_rng(0)
    random = rng.uniform(0.5, 1.5, (1, 64, 4096))
    sign = np.where(np.arange(4096) % 2 == 0, 1.0, -1.0)
    x = {"random": random, "whole numbers": np.full((1, 64, 4096), 3.0), "either sign": 1.1618743 * sign + 0 * random}
    s = spread(model, {"x": x[kind].astype(np.float32)}, runs=8)
    chance = U * math.sqrt(4096) / 4 * 3  # of the largest mean
    assert np.sqrt(np.mean(s**2)) < chance


def test_a_mean_over_a_background_passes_against_itself(graph_of: Graph, tmp_path: Path):
    """Spots on black leave one number nearly everywhere behind a Conv, and the runtime adds 12,321 of them."""
    model = graph_of("g (float[2,3,224,224] x) => (float[2,16] y) <int64[2] axes = {2, 3}> {"
                     "c = Conv<strides=[2,2]>(x, w, b) r = Relu(c) y = ReduceMean<keepdims=0>(r, axes) }")  # fmt: skip
    rng = np.random.default_rng(0)
    w = (0.2 * rng.standard_normal((16, 3, 3, 3))).astype(np.float32)
    ir.save(with_weights(model, w=w, b=rng.standard_normal(16).astype(np.float32)), tmp_path / "g.onnx")
    verdict = verify(tmp_path / "g.onnx", tmp_path / "g.onnx", level="quick")
    assert verdict.check("rounding").status == "pass", verdict.summary()


def signs_and_sums(terms_added: int, drifting: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of signs, weights of one size, float32's sums added one after the other, and the right ones."""
    rng = np.random.default_rng(3)
    x = np.where(rng.random((64, terms_added)) < 0.5, 1.0, -1.0).astype(np.float32)
    x[:, rng.random(terms_added) < drifting] = 1.0
    w = np.full((terms_added, 1), 0.1 / 3, np.float32)
    added = np.cumsum(x * w[:, 0], axis=1, dtype=np.float32)[:, -1:]
    return x, w, added, x.astype(np.float64) @ w.astype(np.float64)


@pytest.mark.parametrize("drifting", [0.3, 0.9])
def test_a_product_of_signs_errs_in_one_direction(graph_of: Graph, drifting: float):
    """Partial sums are multiples of one number, and pass by the same roundings again and again."""
    x, w, added, right = signs_and_sums(512, drifting)
    model = with_weights(graph_of("g (float[64,512] x) => (float[64,1] y) { y = MatMul(x, w) }"), w=w)
    s = spread(model, {"x": x})
    error = added - right
    assert np.sqrt(np.mean(error**2)) <= 4 * np.sqrt(np.mean(s**2))
    other = spread(model, {"x": x + np.linspace(0, 0.1, 512, dtype=np.float32)})
    assert np.sqrt(np.mean(s**2)) > 2 * np.sqrt(np.mean(other**2)), "terms of many sizes have the noise of chance"


@pytest.mark.parametrize(
    ("operator", "weight", "alike"),
    [
        ("MatMul(x, w)", np.outer([1, -1, 1], [0.5, 2.0]), True),  # a size per column
        ("MatMul(x, w)", np.outer([0.5, -1, 1], [1, 1]), False),
        ("MatMul(x, w)", np.array([[1, 1], [1, -1], [1, 0.5]]), False),  # the first column's is one
        ("MatMul(x, w)", np.outer([0.0, -1, 1], [1, 1]), True),  # ternary
        ("Gemm<transB=1>(x, w)", np.outer([0.5, 2.0], [1, -1, 1]), True),
        ("Gemm<transB=1>(x, w)", np.outer([1, 1], [0.5, -1, 1]), False),
    ],
)
def test_which_weights_are_of_one_size(graph_of: Graph, operator: str, weight: np.ndarray, alike: bool):
    model = graph_of(f"g (float[4,3] x) => (float[4,2] y) {{ y = {operator} }}")
    (node,) = model.graph
    assert of_one_size(node, 1, torch.from_numpy(weight)) is alike
