"""Fused products, and convolutions with channels last, against the kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contrib_kernels import agree, model, ours
from hypothesis import given, settings
from hypothesis import strategies as st

RNG = np.random.default_rng(0)
ACTIVATIONS = [
    ("Relu", []),
    ("Tanh", []),
    ("Sigmoid", []),
    ("LeakyRelu", [0.2]),
    ("Clip", [-0.5, 0.7]),
    ("HardSigmoid", [0.3, 0.4]),
    ("HardSwish", []),
]


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("activation", "parameters"), ACTIVATIONS)
@pytest.mark.parametrize("summed", [False, True])
def test_fused_convolutions(activation, parameters, summed):
    feeds = {"x": floats(2, 4, 7, 6), "w": floats(6, 2, 3, 2), "b": floats(6)}
    if summed:
        if activation != "Relu":
            pytest.skip("the kernel adds z only in front of a Relu")
        feeds["z"] = floats(2, 6, 4, 3)
    attributes = {"activation": activation, "group": 2, "strides": [2, 2], "pads": [1, 0, 1, 1], "dilations": [1, 1]}
    if parameters:
        attributes["activation_params"] = parameters
    agree("FusedConv", feeds, **attributes)


@pytest.mark.parametrize("z", [False, True])
def test_convolutions_with_channels_last(z):
    x, w, b = floats(2, 5, 6, 4), floats(6, 2, 3, 3), floats(6)
    feeds = {"x": x, "w": w, "b": b} | ({"z": floats(2, 5, 6, 6)} if z else {})
    proto = model("NhwcFusedConv", feeds, activation="Relu", group=2, pads=[1, 1, 1, 1])
    first = [torch.from_numpy(item).double() for item in (x.transpose(0, 3, 1, 2), w, b)]
    expected = torch.nn.functional.conv2d(*first, padding=1, groups=2).movedim(1, -1)
    expected = torch.relu(expected + torch.from_numpy(feeds["z"]) if z else expected)
    np.testing.assert_allclose(ours(proto, feeds)[0], expected.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(
    "attributes", [{}, {"strides": [2, 1], "pads": [1, 0, 0, 1]}, {"ceil_mode": 1, "strides": [2, 2]}]
)
def test_pools_with_channels_last(dtype, attributes):
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max, (2, 6, 5, 3), endpoint=True).astype(dtype)
    agree("NhwcMaxPool", {"x": x}, kernel_shape=[3, 2], **attributes)


@pytest.mark.parametrize(("activation", "parameters"), [*ACTIVATIONS[:4], ACTIVATIONS[5]])
def test_fused_gemms(activation, parameters):
    attributes = dict(zip(("activation_alpha", "activation_beta"), parameters, strict=False))
    feeds = {"a": floats(5, 3), "b": floats(4, 5), "c": floats(4)}
    agree("FusedGemm", feeds, activation=activation, transA=1, transB=1, alpha=0.7, beta=1.3, **attributes)


@given(st.sampled_from(["FusedMatMul", "TransposeMatMul"]), st.booleans(), st.booleans(), st.sampled_from([2, 3, 4]))
@settings(deadline=None, max_examples=20)
def test_fused_products(op, flip_a, flip_b, rank):
    batch = (2, 3)[: rank - 2]
    a, b = floats(*batch, 4, 5), floats(*batch, 5, 6)
    feeds = {"a": a.swapaxes(-1, -2).copy() if flip_a else a, "b": b.swapaxes(-1, -2).copy() if flip_b else b}
    got = agree(op, feeds, transA=int(flip_a), transB=int(flip_b), alpha=-0.4)
    np.testing.assert_allclose(
        got[0], np.float64(np.float32(-0.4)) * (a.astype(np.float64) @ b), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("flips", [{}, {"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1}])
@pytest.mark.parametrize("batches", [{"transBatchA": 1}, {"transBatchB": 1}, {"transBatchA": 1, "transBatchB": 1}])
def test_products_whose_first_axis_is_no_batch(flips, batches):
    def laid(x: np.ndarray, side: str) -> np.ndarray:
        x = x.swapaxes(-1, -2) if flips.get(f"trans{side}") else x
        return np.ascontiguousarray(np.moveaxis(x, -2, 0) if batches.get(f"transBatch{side}") else x)

    a, b = floats(2, 3, 4, 5), floats(2, 3, 5, 6)
    got = agree("FusedMatMul", {"a": laid(a, "A"), "b": laid(b, "B")}, **flips, **batches)
    np.testing.assert_allclose(got[0], a.astype(np.float64) @ b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_transposed_convolutions_whose_pads_are_an_input(bias):
    feeds = {"x": floats(2, 4, 5, 6), "w": floats(4, 3, 3, 3), "pads": np.array([1, 0, 2, 1])}
    feeds |= {"b": floats(3)} if bias else {}
    agree("ConvTransposeWithDynamicPads", feeds, strides=[2, 1])


def test_products_in_front_of_a_gelu():
    x, w, b = floats(3, 4), floats(4, 5), floats(5)
    y = x.astype(np.float64) @ w + b
    expected = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    feeds = {"x": x, "w": w, "b": b}
    np.testing.assert_allclose(ours(model("GemmFastGelu", feeds), feeds)[0], expected, rtol=1e-9, atol=1e-12)


def test_inverses_and_distances():
    agree("Inverse", {"x": floats(2, 4, 4) + 4 * np.eye(4, dtype=np.float32)})
    for metric in ("euclidean", "sqeuclidean"):
        agree("CDist", {"a": floats(5, 3), "b": floats(4, 3)}, metric=metric)
