"""Weights of nothing but zeros hide what stands in front of them: that is said, by layer, and never passed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from normdeploy.verification import verify

Write = Callable[..., Path]

HEAD = """g (float[N,8] x) => (float[N,3] y) {
    h = LayerNormalization<axis=-1>(x, scale, shift) z = MATMUL y = Add(z, bias) }"""

BRANCH = """g (float[N,8] x) => (float[N,8] y) {
    h = LayerNormalization<axis=-1>(x, scale, shift) a = MatMul(h, weight) b = Mul(a, gamma) s = Add(b, KEPT)
    y = LayerNormalization<axis=-1>(s, other, shift) }"""


def weights(**known: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {
        "scale": rng.uniform(0.5, 2, 8),
        "other": rng.uniform(0.5, 2, 8),
        "shift": rng.standard_normal(8),
        "weight": rng.standard_normal((8, 8)),
        "bias": rng.standard_normal(3),
        **known,
    }
    return {name: value.astype(np.float32) for name, value in found.items()}


def chosen(text: str, **known: np.ndarray) -> dict[str, np.ndarray]:
    return {name: value for name, value in weights(**known).items() if name in text}


@pytest.mark.parametrize("product", ["MatMul(h, head)", "Gemm<transB=1>(h, turned)"])
def test_a_head_of_zeros_is_named(write: Write, product: str):
    text = HEAD.replace("MATMUL", product)
    zeros = {"head": np.zeros((8, 3)), "turned": np.zeros((3, 8))}
    path = write(text, **chosen(text, **zeros))
    verdict = verify(path, path, level="quick")
    assert verdict.status == "not-exercised", verdict.summary()
    assert "all zeros" in verdict.check("sensitivity").detail
    assert product.split("(")[0].split("<")[0] in verdict.check("sensitivity").detail
    rng = np.random.default_rng(1)
    path = write(text, **chosen(text, **{name: rng.standard_normal(v.shape) for name, v in zeros.items()}))
    assert verify(path, path, level="quick").status == "pass"


def test_a_turned_weight_of_zeros_is_one(write: Write):
    text = HEAD.replace("MATMUL", "MatMul(h, w)").replace("h = ", "w = Transpose<perm=[1,0]>(turned) h = ")
    path = write(text, **chosen(text, turned=np.zeros((3, 8))))
    assert "all zeros" in verify(path, path, level="quick").check("sensitivity").detail


def test_only_the_branch_behind_zeros_is_not_exercised(write: Write):
    text = BRANCH.replace("KEPT", "x")
    path = write(text, **chosen(text, gamma=np.zeros(8)))
    verdict = verify(path, path, level="quick")
    assert verdict.status == "not-exercised", verdict.summary()
    assert [site.exercised for site in verdict.sites if site.kind == "LayerNormalization"] == [False, True]
    assert "Mul" in verdict.check("sensitivity").detail


def test_a_norm_that_reaches_the_output_beside_the_zeros_is_exercised(write: Write):
    text = BRANCH.replace("KEPT", "h")
    path = write(text, **chosen(text, gamma=np.zeros(8)))
    verdict = verify(path, path, level="quick")
    norms = [site for site in verdict.sites if site.kind == "LayerNormalization"]
    assert all(site.exercised for site in norms), verdict.summary()
