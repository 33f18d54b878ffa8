"""Weights of a feature that is 0 in all samples: a file that has others is no pass, unless a sample meets them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper, parser

from normdeploy.verification import verify
from normdeploy.verification.derivation.related.relation import identity
from normdeploy.verification.derivation.related.report import Row
from normdeploy.verification.derivation.related.stored_rounding import Wrong
from normdeploy.verification.sides.watch import Watch

HEAD = """<ir_version: 8, opset_import: ["": 18]> g (float[n,4] x) => (float[n,3] y)
    <float[4,6] w = {{0}}, float[6] b = {{0}}, float zero = {{0.0}}, float one = {{1.0}}, float[6,3] t = {{0}}> {{
    s = MatMul(x, w) a = Add(s, b) {body} y = MatMul(h, t) }}"""
WRITTEN = "g = Greater(a, zero) h = Cast<to = 1>(g)"
OTHERWISE = "m = Neg(a) k = Sign(m) r = Relu(k) c = Neg(k) h = Relu(c)"
"""The same by way of signs, which no algebra of ours explains: what the last product reads is a matter of samples."""


def written(path: Path, body: str, *, bias: float, factor: float = 1.0) -> Path:
    """Write a product behind a comparison; its third feature is 1 where a sum exceeds -bias."""
    rng = np.random.default_rng(1)
    numbers = {
        "w": rng.standard_normal((4, 6)).astype(np.float32) / 4,
        "b": np.array([0, 0.1, bias, -0.1, 0.2, 0], np.float32),
        "t": rng.standard_normal((6, 3)).astype(np.float32),
    }
    numbers["t"][2] *= np.float32(factor)
    proto = parser.parse_model(HEAD.format(body=body))
    for tensor in proto.graph.initializer:
        if tensor.name in numbers:
            tensor.CopyFrom(numpy_helper.from_array(numbers[tensor.name], tensor.name))
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize(("bias", "status"), [(-1e7, "not-exercised"), (-8.0, "fail")])
def test_a_row_that_only_met_zeros_is_named_or_met(bias: float, status: str, tmp_path: Path) -> None:
    source = written(tmp_path / "source.onnx", WRITTEN, bias=bias)
    verdict = verify(source, written(tmp_path / "wrong.onnx", OTHERWISE, bias=bias, factor=1.1), level="quick")
    assert verdict.status == status, verdict.summary()


@pytest.mark.parametrize(("rounding", "asked"), [(True, False), (False, True)])
def test_weights_within_another_rounding_need_not_be_met(rounding: bool, asked: bool) -> None:
    """Though they are none of what else they were held against."""
    node = ir.node("MatMul", [ir.Value(name="x"), ir.Value(name="t")])
    row, against = Row(node), (node.outputs[0], identity(ir.Value(name="w"), 2))
    row.take(Wrong("is another"), against, sure=False)
    row.take(Wrong("is 8 units off", rounding), against, sure=False)
    assert row.is_unlike == asked


@pytest.mark.parametrize("bias", [-1e7, -8.0])
def test_weights_of_the_reference_need_not_be_met(bias: float, tmp_path: Path) -> None:
    source = written(tmp_path / "source.onnx", WRITTEN, bias=bias)
    verdict = verify(source, written(tmp_path / "right.onnx", OTHERWISE, bias=bias), level="quick")
    assert "nothing but 0" not in verdict.summary()


@pytest.mark.parametrize("feature", [0, 5])
def test_a_row_is_met_where_its_feature_is_not_0(feature: int) -> None:
    head = '<ir_version: 8, opset_import: ["": 18]> g (float[n,6] x) => (float[n,2] y)'
    (node,) = ir.from_onnx_text(f"{head} <float[6,2] w = {{{', '.join('1' * 12)}}}> {{ y = MatMul(x, w) }}").graph
    watch = Watch(frozenset({"y"}), {"y": (feature,)})
    for place, idle in ((3, True), (feature, False)):
        watch.begin({"x": np.eye(6, dtype=np.float32)[place : place + 1]})
        watch(node, [torch.ones((1, 2), dtype=torch.float64)])
        assert bool(watch.idle) is idle
