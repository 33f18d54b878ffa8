"""Conv and ConvTranspose take affine maps over: all ranks, groups, strides, dilations, pads, biases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

settings.load_profile("affine")

SEED = st.integers(0, 2**32 - 1)
DTYPES = st.sampled_from([np.float64, np.float32, np.float16])


@st.composite
def convolutions(draw):
    """Rank, groups, sizes and attributes of a convolution."""
    spatial = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 4))
    per_in, per_out = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(spatial)]
    pads = {"pads": [draw(st.integers(0, 2)) for _ in range(2 * spatial)]}
    automatic = [{"auto_pad": mode} for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")]
    return {
        "spatial": spatial,
        "groups": groups,
        "cin": groups * per_in,
        "cout": groups * per_out,
        "kernel": kernel,
        "strides": [draw(st.integers(1, 2)) for _ in kernel],
        "dilations": [draw(st.integers(1, 2)) for _ in kernel],
        "padding": draw(st.sampled_from([pads, pads, *automatic])),
        "bias": draw(st.sampled_from(["given", "absent", "empty name"])),
        "dtype": draw(DTYPES),
        "rng": np.random.default_rng(draw(SEED)),
    }


@st.composite
def transposed_convolutions(draw):
    """The same with padding that leaves every output a tap, and output padding."""
    case = draw(convolutions())
    ends = [draw(st.integers(0, size - 1)) for size in case["kernel"] * 2]
    extra = [draw(st.integers(0, step - 1)) for step in case["strides"]]
    return case | {"padding": {"pads": ends, "output_padding": extra}}


def conv(g, x, case, *, transposed=False, unpadded=False):
    rng = case["rng"]
    first, second = (case["cin"], case["cout"]) if transposed else (case["cout"], case["cin"])
    weight = rng.normal(size=(first, second // case["groups"], *case["kernel"]))
    operands = [weight]
    if case["bias"] == "given":
        operands.append(rng.normal(size=case["cout"]))
    elif case["bias"] == "empty name":
        operands.append(None)
    return g.op(
        "ConvTranspose" if transposed else "Conv", x, *operands, group=case["groups"], strides=case["strides"],
        dilations=case["dilations"], **({} if unpadded else case["padding"]),
    )  # fmt: skip


def input_of(g, case):
    return g.input("x", ["N", case["cin"], *[9] * case["spatial"]])


@given(convolutions())
def test_behind_a_conv(graph, fold, case):
    g = graph(dtype=case["dtype"])
    g.output(g.batch_norm(conv(g, input_of(g, case), case), case["cout"], case["rng"]))
    result = fold(g).folded().agree_exactly(g.feeds(case["rng"], N=2))
    assert result.ops == {"Conv": 1}


@given(transposed_convolutions())
def test_behind_a_transposed_conv(graph, fold, case):
    g = graph(dtype=case["dtype"])
    g.output(g.batch_norm(conv(g, input_of(g, case), case, transposed=True), case["cout"], case["rng"]))
    result = fold(g).folded().agree_exactly(g.feeds(case["rng"], N=2))
    assert result.ops == {"ConvTranspose": 1}


@given(convolutions())
def test_in_front_of_a_conv_without_padding(graph, fold, case):
    g = graph(dtype=case["dtype"])
    x = g.batch_norm(input_of(g, case), case["cin"], case["rng"])
    g.output(conv(g, x, case, unpadded=True))
    result = fold(g).folded().agree_exactly(g.feeds(case["rng"], N=2))
    assert result.ops == {"Conv": 1}


@given(convolutions())
def test_a_scale_in_front_of_a_padded_conv(graph, fold, case):
    g = graph(dtype=case["dtype"])
    scale = case["rng"].normal(size=(case["cin"], *(1,) * case["spatial"]))
    g.output(conv(g, g.op("Mul", input_of(g, case), scale), case))
    result = fold(g).folded().agree_exactly(g.feeds(case["rng"], N=2))
    assert result.ops == {"Conv": 1}


@given(transposed_convolutions())
def test_a_scale_in_front_of_a_transposed_conv(graph, fold, case):
    g = graph(dtype=case["dtype"])
    scale = case["rng"].normal(size=(1, case["cin"], *(1,) * case["spatial"]))
    g.output(conv(g, g.op("Mul", input_of(g, case), scale), case, transposed=True))
    result = fold(g).folded().agree_exactly(g.feeds(case["rng"], N=2))
    assert result.ops == {"ConvTranspose": 1}


@given(convolutions())
def test_a_shift_in_front_of_a_one_tap_transposed_conv(graph, fold, case):
    g = graph(dtype=case["dtype"])
    ones = [1] * case["spatial"]
    x = g.batch_norm(input_of(g, case), case["cin"], case["rng"])
    g.output(conv(g, x, case | {"kernel": ones, "strides": ones}, transposed=True, unpadded=True))
    result = fold(g).folded().agree_exactly(g.feeds(case["rng"], N=2))
    assert result.ops == {"ConvTranspose": 1}


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2]), st.booleans())
def test_around_a_deformable_conv(graph, fold, seed, groups, masked):
    """Its offsets and its mask stay what they are; outside its input it reads zeros."""
    rng = np.random.default_rng(seed)
    g = graph(opset=19)
    # small: onnx's reference reads point by point, 0.8 ms for each weight, place and row
    x = g.op("Mul", g.input("x", ["N", 4, 3, 3]), rng.normal(size=(4, 1, 1)))
    read = g.input("offsets", ["N", 8, 2, 2])
    mask = [g.input("mask", ["N", 4, 2, 2])] if masked else []
    weight, bias = rng.normal(size=(4, 4 // groups, 2, 2)), rng.normal(size=4)
    g.output(g.batch_norm(g.op("DeformConv", x, weight, read, bias, *mask, group=groups), 4, rng))
    assert fold(g).folded(2).agree(g.feeds(rng, N=2)).ops == {"DeformConv": 1}


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("automatic", ["VALID", "SAME_UPPER", "SAME_LOWER"])
def test_automatic_padding(graph, fold, automatic, kernel):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Add", g.input("x", [1, 3, 6, 6]), rng.normal(size=(3, 1, 1)), name="shift")
    g.output(g.op("Conv", x, rng.normal(size=(2, 3, kernel, kernel)), auto_pad=automatic, name="conv"))
    result = fold(g)
    if automatic != "VALID" and kernel == 3:
        # a border map may still take the place of the fold; the values must agree either way
        assert result.ops["Conv"] == 1
    else:
        assert result.folded().ops == {"Conv": 1}
    result.agree(g.feeds(rng))


def test_a_shift_in_front_of_a_padded_conv_of_dynamic_size_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.batch_norm(g.input("x", ["N", 3, "H", "W"]), 3, rng, name="norm")
    g.output(g.op("Conv", x, rng.normal(size=(2, 3, 3, 3)), pads=[1, 1, 1, 1], name="conv"))
    fold(g).kept(
        "behind it Conv 'conv' pads with zeros, which a shift would change", "the graph input 'x' is given"
    ).agree(g.feeds(rng, N=1, H=5, W=6))


def test_a_shift_in_front_of_a_transposed_conv_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    x = g.batch_norm(g.input("x", ["N", 3, "H", "W"]), 3, rng)
    g.output(g.op("ConvTranspose", x, rng.normal(size=(3, 2, 2, 2)), name="up"))
    fold(g).kept("ConvTranspose 'up' reaches its positions by different taps").agree(g.feeds(rng, N=1, H=5, W=6))


def test_a_weight_computed_at_run_time_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    weight = g.input("w", [2, 3, 1, 1])
    g.output(g.batch_norm(g.op("Conv", g.input("x", ["N", 3, 4, 4]), weight, name="conv"), 2, rng))
    fold(g).kept("in front of it Conv 'conv' has a weight that is computed at run time").agree(g.feeds(rng, N=1))


def test_a_weight_that_a_caller_may_override_is_no_constant(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    g.constant(rng.normal(size=(2, 3, 1, 1)), name="w")
    g.input("w", [2, 3, 1, 1])
    g.output(g.batch_norm(g.op("Conv", g.input("x", ["N", 3, 4, 4]), "w", name="conv"), 2, rng))
    feeds = g.feeds(rng, N=1)
    fold(g).kept("in front of it Conv 'conv' has a weight that is computed at run time").agree(feeds)


def test_statistics_that_a_caller_may_override_are_no_constants(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    g.constant(np.ones(2), name="var")
    g.input("var", [2])
    y = g.op("Conv", g.input("x", ["N", 3, 4, 4]), rng.normal(size=(2, 3, 1, 1)))
    g.output(g.op("BatchNormalization", y, np.ones(2), np.zeros(2), np.zeros(2), "var"))
    fold(g).kept("its variance is not a constant")


def test_a_bias_computed_at_run_time_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    bias = g.input("b", [2])
    g.output(g.batch_norm(g.op("Conv", g.input("x", ["N", 3, 4, 4]), rng.normal(size=(2, 3, 1, 1)), bias), 2, rng))
    fold(g).kept("in front of it Conv 'conv_0' has a bias that is computed at run time").agree(g.feeds(rng, N=1))


def test_a_map_along_the_width_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("Conv", g.input("x", ["N", 3, 4, 4]), rng.normal(size=(4, 3, 1, 1)))
    g.output(g.op("Mul", y, rng.normal(size=4)))
    fold(g).kept("in front of it Conv 'conv_0' has no weights along an axis where it varies").agree(g.feeds(rng, N=1))


def test_against_torch(graph, fold):
    """The whole path once more against torch in float64, which shares nothing with the graphs."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(4, 6, 3, 2, 1, groups=2, bias=False), torch.nn.BatchNorm2d(6),
        torch.nn.ConvTranspose2d(6, 6, 3, 2, 1, 1, groups=3), torch.nn.BatchNorm2d(6),
    ).double().eval()  # fmt: skip
    for layer in net:
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.weight.data.normal_()
            layer.bias.data.normal_()
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.2, 2)
    g = graph()
    x = g.input("x", ["N", 4, 7, 8])
    state = {name: value.numpy() for name, value in net.state_dict().items()}
    x = g.op("Conv", x, state["0.weight"], strides=[2, 2], pads=[1] * 4, group=2)
    x = g.op("BatchNormalization", x, *(state[f"1.{n}"] for n in ("weight", "bias", "running_mean", "running_var")))
    x = g.op(
        "ConvTranspose", x, state["2.weight"], state["2.bias"],
        strides=[2, 2], pads=[1] * 4, output_padding=[1, 1], group=3,
    )  # fmt: skip
    x = g.op("BatchNormalization", x, *(state[f"3.{n}"] for n in ("weight", "bias", "running_mean", "running_var")))
    g.output(x)
    result = fold(g).folded(2)
    feeds = g.feeds(np.random.default_rng(0), N=3)
    got = result.run(feeds)[0]
    with torch.no_grad():
        expected = net(torch.from_numpy(feeds["x"])).numpy()
    # epsilon is stored as float32: 1e-5 differs from the double in the ninth digit
    np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_are_rounded_once(graph, fold, dtype):
    """Each stored weight is the rounding of the float64 value, through three maps in a row."""
    rng = np.random.default_rng(3)
    g = graph(dtype=dtype)
    weight = rng.normal(size=(4, 3, 3, 3)).astype(dtype)
    g.constant(weight, name="w")
    y = g.op("Conv", g.input("x", ["N", 3, 6, 6]), "w")
    factors = [rng.uniform(0.5, 2, (4, 1, 1)).astype(dtype) for _ in range(3)]
    for factor in factors:
        y = g.op("Mul", y, factor)
    g.output(y)
    result = fold(g).folded(1)
    exact = weight.astype(np.float64)
    for factor in factors:
        exact = exact * factor.astype(np.float64)[:, None]
    np.testing.assert_array_equal(result.weight("w"), exact.astype(dtype))


def test_float16_overflow_is_refused(graph, fold):
    rng = np.random.default_rng(0)
    g = graph(dtype=np.float16)
    y = g.op("Conv", g.input("x", ["N", 3, 4, 4]), 1000 * np.ones((2, 3, 1, 1)), name="conv")
    g.output(g.op("Mul", y, 100.0 * np.ones((2, 1, 1))))
    fold(g).kept("the weights of Conv 'conv' would overflow float16")
    del rng
