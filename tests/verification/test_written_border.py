"""A border that is written around a 1x1 convolution is confirmed for every input as one padded convolution (DBB)."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from normdeploy.graph.derivation import Derivation, Hint
from normdeploy.verification.derivation.checker import check_derivation

HEAD = '<ir_version: 10, opset_import: ["": 20]> g (float[n,2,6] x, int64[k,1] fed) => (float[n,4,6] y) '
ALL = "h = Shape(d) c = Gather(h, zero) r = Range(zero, c, one) all = Unsqueeze(r, behind) "
WRITTEN = "a = Conv(x, point, bias) d = Pad(a, ends) " + ALL
WRITTEN += "t = Transpose<perm=[2,1,0]>(d) z = Transpose<perm=[2,1,0]>(e) s = ScatterND(t, {}, z) "
WRITTEN += "u = Transpose<perm=[2,1,0]>(s) b = ScatterND(d, all, u) y = Conv(b, kernel)"
BORDER = "e0 = Shape<end=1>(x) e1 = Concat<axis=0>(e0, rest) e = Expand({}, e1) "
PADDED = "y = Conv<pads=[1,1]>(x, {}, {})"
SIZES = [{"x": (2, 2, 6), "fed": (2, 1)}, {"x": (3, 2, 6), "fed": (2, 1)}]

RNG = np.random.default_rng(0)
POINT, KERNEL = RNG.integers(1, 9, (3, 2, 1)), RNG.integers(-9, 9, (4, 3, 3))  # their products are stored exactly
BIAS = np.array([3.0, -2.0, 5.0])
CONSTANTS = {
    "point": POINT.astype(np.float32),
    "kernel": KERNEL.astype(np.float32),
    "bias": BIAS.astype(np.float32),
    "number": BIAS.astype(np.float32).reshape(1, 3, 1),
    "other": (BIAS * (1 + 1e-4)).astype(np.float32).reshape(1, 3, 1),
    "ends": np.array([0, 0, 1, 0, 0, 1]),
    "rest": np.array([3, 2]),
    "zero": np.int64(0),
    "one": np.int64(1),
    "behind": np.array([1]),
    "both": np.array([[0], [7]]),
    "twice": np.array([[0], [0]]),
    "inside": np.array([[0], [6]]),
}
# the 1x1 and the kernel as one: W = K P, b = sum_k K c, where x is padded with zeros
ONE = np.einsum("okt,ki->oit", CONSTANTS["kernel"].astype(np.float64), CONSTANTS["point"][..., 0].astype(np.float64))
SUM = CONSTANTS["kernel"].astype(np.float64).sum(2) @ CONSTANTS["bias"].astype(np.float64)
CONSTANTS |= {"one_kernel": ONE.astype(np.float32), "one_bias": SUM.astype(np.float32)}
CONSTANTS["off_bias"] = (SUM * (1 + 1e-5)).astype(np.float32)


def graph(body: str) -> ir.Model:
    proto = onnx.parser.parse_model(HEAD + "{" + body + "}")
    named = [name for name in CONSTANTS if any(name in node.input for node in proto.graph.node)]
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(CONSTANTS[name]), name) for name in named)
    return ir.from_proto(proto)


@pytest.mark.parametrize(
    ("border", "places", "bias", "holds"),
    [
        ("number", "both", "one_bias", True),
        ("other", "both", "one_bias", False),  # another number around it
        ("number", "inside", "one_bias", False),  # one of them beside the border
        ("number", "twice", "one_bias", False),  # a place that is written twice: which is the last is nowhere said
        ("number", "fed", "one_bias", False),  # wherever is asked
        ("number", "both", "off_bias", False),
    ],
)
def test_a_border_written_around_a_convolution(border, places, bias, holds):
    source = graph(BORDER.format(border) + WRITTEN.format(places))
    file = graph(PADDED.format("one_kernel", bias))
    found = check_derivation(source, file, Derivation((Hint("y", "y"),)), SIZES)
    assert found.confirmed == holds


@pytest.mark.parametrize(
    ("times", "bias", "holds"), [(60, "one_bias", True), (60, "off_bias", False), (600, "one_bias", False)]
)
def test_a_border_written_by_many_operators(times, bias, holds):
    """What only moves elements is counted apart from what computes: ECBSR writes borders around four branches."""
    first, last = WRITTEN.format("both").split("s = ")
    again = "".join(
        f"t{n} = Transpose<perm=[1,0,2]>(u{n}) u{n + 1} = Transpose<perm=[1,0,2]>(t{n}) " for n in range(times)
    )
    written = last.replace("u = Transpose", "u0 = Transpose").replace("(d, all, u)", f"(d, all, u{times})")
    written, behind = written.split("b = ")
    source = graph(BORDER.format("number") + f"{first} s = {written} {again} b = {behind}")
    found = check_derivation(source, graph(PADDED.format("one_kernel", bias)), Derivation((Hint("y", "y"),)), SIZES)
    assert found.confirmed == holds
