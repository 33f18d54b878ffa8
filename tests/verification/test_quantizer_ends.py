"""A quantizer that cuts elsewhere than the reference's is no pass where no sample reached both of its ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper, parser

import normdeploy as nd
from normdeploy.verification.sides.quantizer_ends import own_ends
from normdeploy.verification.sides.watch import Watch

TEXT = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[n,3,6,6] x) => (float[n,5] y) <int64[2] flat = {-1, 36}> {
    q = QuantizeLinear(x, sx, zx)
    c = QLinearConv<pads = [1,1,1,1]>(q, sx, zx, k, sk, zk, sc, zc, bk)
    m = MaxPool<kernel_shape = [2,2], strides = [2,2]>(c)
    f = Reshape(m, flat)
    r = com.microsoft.QGemm<transB = 1>(f, sc, zc, w, sw, zw, b, sy, zy)
    y = DequantizeLinear(r, sy, zy) }"""


def written(path: Path, *, zero: int = 120) -> Path:
    """Write two quantized layers; the results of the last stay far from the ends of its integers."""
    rng = np.random.default_rng(0)
    constants = {
        "sx": np.float32(0.03), "zx": np.uint8(128), "k": rng.integers(0, 255, (4, 3, 3, 3)).astype(np.uint8),
        "sk": np.float32(0.0015), "zk": np.uint8(128), "sc": np.float32(0.019), "zc": np.uint8(0),
        "bk": rng.integers(-1000, 1000, 4).astype(np.int32), "w": rng.integers(100, 150, (5, 36)).astype(np.uint8),
        "sw": np.float32(0.002), "zw": np.uint8(128), "b": rng.integers(-3000, 3000, 5).astype(np.int32),
        "sy": np.float32(0.05), "zy": np.uint8(zero),
    }  # fmt: skip
    proto = parser.parse_model(TEXT)
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("moved", [1, -1, 40])
def test_a_zero_point_that_is_off_in_both_places_is_no_pass(tmp_path: Path, moved: int) -> None:
    right = written(tmp_path / "right.onnx")
    verdict = nd.verify(right, written(tmp_path / "wrong.onnx", zero=120 + moved), level="quick")
    assert verdict.status != "pass", verdict.summary()


def test_the_same_ends_need_not_be_seen(tmp_path: Path) -> None:
    right = written(tmp_path / "right.onnx")
    assert nd.verify(right, right, level="quick").status == "pass"


QUANTIZED = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[n,2] x) => (uint8[n,2] y) <float[{count}] s = {{{steps}}}, uint8[{count}] z = {{{zeros}}},
    float o = {{0.5}}, uint8 n = {{3}}> {{ q = QuantizeLinear(x, o, n) {last} }}"""
LAST = {
    "QuantizeLinear": "y = QuantizeLinear(x, s, z)",
    "of com.microsoft": "y = com.microsoft.QuantizeLinear(x, s, z)",
    "QLinearSigmoid": "y = com.microsoft.QLinearSigmoid(q, o, n, s, z)",
}


def nodes(last: str, steps: str = "0.1", zeros: str = "7") -> ir.Graph:
    text = QUANTIZED.format(last=LAST[last], steps=steps, zeros=zeros, count=steps.count(",") + 1)
    return ir.from_onnx_text(text).graph


@pytest.mark.parametrize("last", LAST)
def test_which_ends_are_a_files_own(last: str) -> None:
    source = nodes(last)
    assert own_ends(nodes(last), source) == {}
    assert own_ends(nodes(last, zeros="8"), source) == {"y": (0, 255)}
    assert own_ends(nodes(last, steps="0.11"), source) == {"y": (0, 255)}
    assert own_ends(nodes(last), ()) == {"q": (0, 255), "y": (0, 255)}
    assert own_ends(nodes(last), nodes("QuantizeLinear")) == {}  # whatever makes the integers


def test_ends_of_each_channel() -> None:
    source = nodes("QuantizeLinear", "0.1, 0.2", "7, 9")
    assert own_ends(nodes("QuantizeLinear", "0.1, 0.2", "7, 9"), source) == {}
    assert own_ends(nodes("QuantizeLinear", "0.1, 0.2", "7, 8"), source) == {"y": (0, 255)}


def test_it_is_idle_until_both_ends_were_reached() -> None:
    (*_, node) = nodes("QuantizeLinear")
    watch = Watch(frozenset({"y"}), {"y": (0, 255)})
    for integers, idle in (((3, 4), True), ((0, 9), True), ((254, 9), True), ((255, 4), False)):
        watch.begin({"x": np.zeros((1, 2), np.float32)})
        watch(node, [torch.tensor([integers], dtype=torch.uint8)])
        assert bool(watch.idle) is idle


@pytest.mark.parametrize(("low", "alike"), [(-11, True), (-12, False)])
def test_one_grid_in_integers_with_a_sign_and_without(low: int, alike: bool) -> None:
    """As onnxruntime's optimizers turn signed quantizers into unsigned ones, 128 further up: the ends are the same."""
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (T[n] y) { y = QuantizeLinear(x, s, z) }'
    graphs = []
    for kind, zero in (("int8", np.int8(low)), ("uint8", np.uint8(117))):
        proto = parser.parse_model(text.replace("T[n]", f"{kind}[n]"))
        proto.graph.initializer.extend([numpy_helper.from_array(np.asarray(np.float32(0.006)), "s"),
                                        numpy_helper.from_array(np.asarray(zero), "z")])  # fmt: skip
        graphs.append(ir.serde.deserialize_model(proto).graph)
    signed, unsigned = graphs
    assert (own_ends(unsigned, signed) == {}) == alike
    assert (own_ends(signed, unsigned) == {}) == alike
