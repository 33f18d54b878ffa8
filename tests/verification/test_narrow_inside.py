"""Graphs of float32 that compute in float16 or bfloat16 somewhere: a runtime rounds there, or it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.family_case import make_case
from normdeploy.verification.samples.family import Family, Kind
from normdeploy.verification.sides.graph_reference import GraphReference

Write = Callable[..., Path]

GATE = """g (float[N,6] x) => (float[N,6] y) {
    a = Cast<to=10>(x) v = Cast<to=10>(w) b = MatMul(a, v) c = HardSigmoid(b) y = Cast<to=1>(c) }"""
UNIT = {10: 2.0**-11, 16: 2.0**-8}


def weight() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)


@pytest.mark.parametrize("level", ["quick", "default"])
def test_a_file_that_is_narrow_inside_equals_itself(write: Write, level: str):
    """onnxruntime takes the Casts out at one level of optimization and not at another."""
    path = write(GATE, w=weight())
    verdict = verify(path, path, level=level)
    assert verdict.status == "pass", verdict.summary()


@pytest.mark.parametrize("by", [1.01, -1.0])
def test_a_number_that_is_off_in_front_of_the_cast_fails(write: Write, by: float):
    wrong = weight()
    wrong[2, 3] *= by
    verdict = verify(write(GATE, w=weight()), write(GATE, "other", w=wrong), level="quick")
    assert verdict.status == "fail", verdict.summary()


@pytest.mark.parametrize("to", [10, 16])
@pytest.mark.parametrize("fast", [False, True])
def test_what_is_declared_narrow_is_rounded_as_such(write: Write, tmp_path: Path, to: int, fast: bool):
    path = write(f"g (float[N] x) => (float[N] y) {{ a = Cast<to={to}>(x) y = Cast<to=1>(a) }}")
    x = np.random.default_rng(0).uniform(1, 2, 4096).astype(np.float32)
    reference = GraphReference(path, tmp_path)
    assert reference.graph is not None
    family, noisy = Family("normal", {"x": x}, Kind.NORMAL), NoisyGraph(reference.graph)
    case = make_case(reference, noisy, family, ["y"], runs=32, seed=0, precision="float32", fast=fast)
    found = np.sqrt(np.mean((case.spread[0] / x.astype(np.float64)) ** 2))
    assert 0.9 * UNIT[to] * 3**-0.5 < found < 1.1 * UNIT[to] * 3**-0.5


def test_what_is_not_declared_narrow_is_not(graph_of: Callable[[str], ir.Model]):
    model = graph_of("g (float[N] x) => (float[N] y, float16[N] z) { y = Exp(x) z = Cast<to=10>(y) }")
    x = np.random.default_rng(0).uniform(-0.1, 0.1, 4096).astype(np.float32)
    *_, (wide, narrow) = NoisyGraph(model).spreads({"x": x}, roundoff=2.0**-24, floor=2.0**-126)
    assert 0 < wide.max() < 2.0**-22
    assert narrow.max() > 2.0**-13


def test_squares_beyond_the_range_of_half_precision_end_in_a_verdict(write: Write, tmp_path: Path):
    """What a runtime makes infinite is looked for operator by operator, each as its type holds it."""
    source = write(
        """g (float16[2,3,4] x) => (float16[2,3,4] y) {
        a = Mul(x, x) b = Pow(a, two) c = ReduceMean <keepdims = 1> (b, axis)
        d = Add(c, e) f = Sqrt(d) y = Div(a, f) }""",
        two=np.float16(2), axis=[1], e=np.float16(0.02),
    )  # fmt: skip
    folded = tmp_path / "folded.onnx"
    ir.save(rewrite(ir.load(source)).model, folded)
    verdict = verify(source, folded)
    assert verdict.check("derivation").status == "pass", verdict.summary()
    assert "the file is right in float64" in verdict.summary()
