"""Row-wise and pointwise operators of com.microsoft against the kernels, or their documentation where none is there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from contrib_kernels import agree, model, ours
from hypothesis import given, settings
from hypothesis import strategies as st


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def positive(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(0.5, 2, shape).astype(np.float32)


RNG = np.random.default_rng(0)
X, Z, B = floats(RNG, 2, 3, 8), floats(RNG, 2, 3, 8), floats(RNG, 8)


@pytest.mark.parametrize(
    ("op", "feeds", "attributes"),
    [
        ("Gelu", {"x": X}, {}),
        ("BiasGelu", {"x": X, "b": B}, {}),
        ("FastGelu", {"x": X}, {}),
        ("FastGelu", {"x": X, "b": B}, {}),
        ("QuickGelu", {"x": X}, {}),
        ("QuickGelu", {"x": X}, {"alpha": 0.7}),
        ("ScaledSiLU", {"x": X}, {"alpha": 0.6}),
        ("ScaledSiLU", {"x": X, "s": np.array(1.7, np.float32)}, {"alpha": 0.6}),
        ("GatedAdd", {"x": X, "y": Z, "gate": floats(RNG, 2, 3, 1)}, {}),
        ("GatedRMSNorm", {"x": X, "scale": B[:4], "gate": Z}, {"epsilon": 0.1}),
        ("GatedRMSNorm", {"x": X, "scale": B, "gate": Z}, {"activation": "sigmoid"}),
    ],
)
def test_pointwise(op, feeds, attributes):
    agree(op, feeds, **attributes)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(2, 5, 7), (1, 5, 7), (5, 7)]),
    st.sampled_from([1e-12, 1e-5, 0.3]),
)
@settings(deadline=None, max_examples=40)
def test_skips(seed, op, bias, beta, skip, epsilon):
    rng = np.random.default_rng(seed)
    feeds = {"x": floats(rng, 2, 5, 7), "skip": floats(rng, *skip), "gamma": positive(rng, 7)}
    if op == "SkipLayerNormalization":
        feeds["beta"] = floats(rng, 7) if beta else None
    feeds["bias"] = floats(rng, 7) if bias else None
    _, _, _, total = agree(op, feeds, compared=1, outputs=4, epsilon=epsilon)
    expected = feeds["x"].astype(np.float64) + feeds["skip"] + (feeds["bias"] if bias else 0)
    np.testing.assert_allclose(total, expected, rtol=1e-12)


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("mask", [None, "right", "scattered"])
@pytest.mark.parametrize("places", [None, (2, 4), (1, 4)])
def test_embeddings(segments, mask, places):
    rng = np.random.default_rng(1)
    masks = {"right": [[1, 1, 1, 0], [1, 0, 0, 0]], "scattered": [[0, 1, 0, 1], [1, 1, 1, 1]]}
    feeds = {
        "ids": rng.integers(0, 10, (2, 4)).astype(np.int32),
        "segments": rng.integers(0, 2, (2, 4)).astype(np.int32) if segments else None,
        "words": floats(rng, 10, 6),
        "positions": floats(rng, 9, 6),
        "kinds": floats(rng, 2, 6) if segments else None,
        "gamma": positive(rng, 6),
        "beta": floats(rng, 6),
        "mask": None if mask is None else np.array(masks[mask], np.int32),
        "places": None if places is None else rng.integers(0, 9, places).astype(np.int32),
    }
    agree("EmbedLayerNormalization", feeds, outputs=3, epsilon=1e-3)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def documented(op: str, feeds: dict[str, np.ndarray], **attributes) -> list[np.ndarray]:
    outputs = attributes.pop("outputs", 1)
    return ours(model(op, feeds, outputs=outputs, **attributes), feeds)


def test_bias_add_and_split_gelu():
    x, b = X.astype(np.float64), B.astype(np.float64)
    np.testing.assert_allclose(documented("BiasAdd", {"x": X, "b": B, "skip": Z})[0], x + b + Z, rtol=1e-13)
    left, right = np.split(x + b, 2, axis=-1)
    np.testing.assert_allclose(documented("BiasSplitGelu", {"x": X, "b": B})[0], left * gelu(right), rtol=1e-12)


def test_bias_dropout_drops_nothing():
    y, mask = documented("BiasDropout", {"x": X, "b": B, "residual": Z}, outputs=2)
    np.testing.assert_allclose(y, X.astype(np.float64) + B + Z, rtol=1e-13)
    assert mask.dtype == bool
    assert mask.all()


@pytest.mark.parametrize(
    ("inner", "shape"), [(0, (1, 1, 5, 6)), (0, (1, 4, 5, 6)), (1, (2, 1, 1, 6)), (1, (2, 4, 1, 6))]
)
def test_bias_softmax(inner, shape):
    rng = np.random.default_rng(2)
    x, bias = floats(rng, 2, 4, 5, 6), floats(rng, *shape)
    scores = x.astype(np.float64) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True)
    got = documented("BiasSoftmax", {"x": x, "bias": bias}, axis=3, is_inner_broadcast=inner)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def group_norm(x, gamma, beta, groups, epsilon, silu):
    """GroupNorm of [n, h, w, c]."""
    n, h, w, c = x.shape
    parts = x.reshape(n, h * w, groups, c // groups)
    mean, variance = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    y = ((parts - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * gamma + beta
    return y / (1 + np.exp(-y)) if silu else y


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize("skip", [None, "full", "channels", "matrix"])
def test_group_norms(channels_last, silu, skip):
    rng = np.random.default_rng(3)
    x, gamma, beta, bias = floats(rng, 2, 3, 4, 6), positive(rng, 6), floats(rng, 6), floats(rng, 6)
    attributes = {"channels_last": channels_last, "activation": silu, "groups": 3, "epsilon": 0.05}
    feeds = {"x": x, "gamma": gamma, "beta": beta}
    total = x.astype(np.float64)
    if skip is not None:
        shape = {"full": (2, 3, 4, 6), "channels": (2, 1, 1, 6), "matrix": (2, 6)}[skip]
        feeds |= {"skip": floats(rng, *shape), "bias": bias}
        total = total + (feeds["skip"].reshape(2, 1, 1, 6) if skip == "matrix" else feeds["skip"]) + bias
    expected = [group_norm(total, gamma.astype(np.float64), beta, 3, np.float32(0.05), silu), total]
    if not channels_last:
        feeds = {k: np.moveaxis(v, -1, 1) if v.ndim == 4 else v for k, v in feeds.items()}
        expected = [np.moveaxis(item, -1, 1) for item in expected]
    got = documented(
        "GroupNorm" if skip is None else "SkipGroupNorm", feeds, outputs=1 if skip is None else 2, **attributes
    )
    for mine, right in zip(got, expected, strict=False):
        np.testing.assert_allclose(mine, right, rtol=1e-10, atol=1e-12)
