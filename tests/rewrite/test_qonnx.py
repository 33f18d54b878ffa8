"""QONNX's quantizers: their meaning against the definition written out in NumPy, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_kinds import kinds
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_outputs import run_onnxruntime

import normdeploy as nd
from normdeploy.graph import Evaluator
from normdeploy.graph.operators.qonnx import DOMAINS, QONNX
from normdeploy.rewrite.qonnx_to_standard import LowerQonnx

ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ROUND": np.round,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "UP": lambda v: np.copysign(np.ceil(np.abs(v)), v),
    "DOWN": np.fix,
    "ROUND_TO_ZERO": np.fix,
}


def defined(x: np.ndarray, scale: Any, zero: Any, bits: int, *, signed: int, narrow: int, mode: str) -> np.ndarray:
    """Quant as QONNX's page defines it."""
    steps = x / scale + zero
    if bits == 1 and signed:
        return (np.where(steps >= 0, 1.0, -1.0) - zero) * scale
    if signed:
        low, high = -(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1
    else:
        low, high = 0, 2**bits - 1 - narrow
    return (ROUND[mode](np.clip(steps, low, high)) - zero) * scale


def model(
    scale: Any,
    zero: Any,
    bits: float,
    *,
    rank: int = 2,
    op: str = "Quant",
    domain: str = DOMAINS[0],
    **attributes: Any,
) -> onnx.ModelProto:
    operands = {"scale": np.float32(scale), "zero": np.float32(zero), "bits": np.float32(bits)}
    names = list(operands) if op != "BipolarQuant" else ["scale"]
    node = helper.make_node(op, ["x", *names], ["y"], domain=domain, **attributes)
    shape = ["n", 3, 5, 4][:rank]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(operands[name]), name) for name in names],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def on_ties(seed: int, scale: float, shape: tuple[int, ...]) -> np.ndarray:
    """Return multiples of half a step, of which every other lies on a tie, and some values beside them."""
    rng = np.random.default_rng(seed)
    halves = rng.integers(-40, 41, shape) * (scale / 2)
    return np.where(rng.random(shape) < 0.7, halves, rng.normal(size=shape) * 8 * scale).astype(np.float32)


def lowered(proto: onnx.ModelProto) -> ir.Model:
    graph = ir.from_proto(proto)
    LowerQonnx()(graph)
    return graph


quantizers = st.fixed_dictionaries(
    {
        "bits": st.sampled_from([1, 2, 3, 4, 7, 8, 9, 16]),
        "signed": st.integers(0, 1),
        "narrow": st.integers(0, 1),
        "mode": st.sampled_from(sorted(ROUND)),
        "zero": st.sampled_from([0, 0, 0, 1, 2, 3, -4, 200]),
        "power": st.integers(-6, 2),
        "seed": st.integers(0, 2**16),
        "domain": st.sampled_from(DOMAINS),
        "op": st.sampled_from(["Quant", "IntQuant"]),
    }
)


@given(quantizers)
@settings(deadline=None, max_examples=120)
def test_the_meaning_is_the_definition_and_what_it_becomes_is_the_same_on_every_tie(case: dict[str, Any]) -> None:
    scale = 2.0 ** case["power"]  # a power of two: ties are ties in every precision
    x = on_ties(case["seed"], scale, (7, 3))
    attributes = {"signed": case["signed"], "narrow": case["narrow"], "rounding_mode": case["mode"]}
    proto = model(scale, case["zero"], case["bits"], op=case["op"], domain=case["domain"], **attributes)
    wanted = defined(
        x.astype(np.float64),
        scale,
        case["zero"],
        case["bits"],
        signed=case["signed"],
        narrow=case["narrow"],
        mode=case["mode"],
    )
    found = Evaluator(ir.from_proto(proto)).run({"x": x})["y"].numpy()
    np.testing.assert_array_equal(found, wanted)
    graph = lowered(proto)
    assert not set(kinds(graph)) & {"Quant", "IntQuant"}
    assert list(graph.opset_imports) == [""]
    np.testing.assert_array_equal(run_onnxruntime(graph, {"x": x})[0].astype(np.float64), wanted)


@pytest.mark.parametrize(
    ("bits", "zero", "mode", "pair"),
    [
        (8, 0, "ROUND", True),
        (4, 0, "round", True),
        (4, 2, "ROUND", True),
        (4, 3, "ROUND", False),  # at a tie the even integer is another one on the other side of an odd zero point
        (4, 200, "ROUND", False),
        (4, 0.5, "ROUND", False),
        (9, 0, "ROUND", False),
        (4, 0, "FLOOR", False),
    ],
)
def test_it_is_a_pair_of_quantizers_where_these_are_the_same(bits: int, zero: float, mode: str, pair: bool) -> None:
    found = kinds(lowered(model(0.25, zero, bits, signed=1, narrow=0, rounding_mode=mode)))
    assert ("QuantizeLinear" in found) == pair, found
    assert ("Clip" in found) == (not pair or bits < 8)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_a_scale_per_channel_has_its_axis(rank: int) -> None:
    shape = (1, 3, *[1] * (rank - 2))
    steps = np.array([0.25, 0.5, 2.0]).reshape(shape)
    proto = model(steps, 0, 4, rank=rank, signed=1, narrow=1)
    graph = lowered(proto)
    assert kinds(graph) == ["QuantizeLinear", "Clip", "DequantizeLinear"]
    x = on_ties(0, 0.25, (2, 3, 5, 4)[:rank])
    wanted = defined(x.astype(np.float64), steps, 0, 4, signed=1, narrow=1, mode="ROUND")
    np.testing.assert_array_equal(run_onnxruntime(graph, {"x": x})[0], wanted)


@pytest.mark.parametrize("op", ["BipolarQuant", "Quant"])
def test_one_bit_is_a_sign(op: str) -> None:
    x = np.array([[-0.5, 0.0, 2.0]], np.float32)
    proto = model(0.25, 0, 1, op=op) if op == "BipolarQuant" else model(0.25, 0, 1, signed=1, narrow=0)
    wanted = [[-0.25, 0.25, 0.25]]
    np.testing.assert_array_equal(Evaluator(ir.from_proto(proto)).run({"x": x})["y"].numpy(), wanted)
    np.testing.assert_array_equal(run_onnxruntime(lowered(proto), {"x": x})[0], wanted)


def test_what_is_not_known_stays() -> None:
    proto = model(0.25, 0, 4, signed=1, narrow=0, rounding_mode="HALF_UP")
    assert kinds(lowered(proto)) == ["Quant"]
    assert kinds(lowered(model(0.25, 0, 3.5, signed=1, narrow=0))) == ["Quant"]
    assert ("qonnx.custom_op.general", "Trunc") not in QONNX


def test_a_network_is_folded_into_its_weights_integers_and_passes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    quant = {"domain": DOMAINS[0], "rounding_mode": "ROUND"}
    weight = rng.normal(size=(6, 3, 3, 3)).astype(np.float32)
    values = {
        "w": weight,
        "sw": (np.abs(weight).max(axis=(1, 2, 3), keepdims=True) / 7).astype(np.float32),
        "sx": np.float32(0.11),
        "sy": np.float32(0.2),
        "zero": np.float32(0),
        "bits": np.float32(4),
        "g": np.array([1, -2, 0.5, 1.5, -0.3, 0.9], np.float32),
        "b": rng.normal(size=6).astype(np.float32),
        "m": rng.normal(size=6).astype(np.float32),
        "v": rng.uniform(0.5, 2, 6).astype(np.float32),
    }
    make = helper.make_node
    nodes = [
        make("Quant", ["x", "sx", "zero", "bits"], ["xq"], signed=1, narrow=0, **quant),
        make("Quant", ["w", "sw", "zero", "bits"], ["wq"], signed=1, narrow=1, **quant),
        make("Conv", ["xq", "wq"], ["c"]),
        make("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"]),
        make("Relu", ["n"], ["r"]),
        make("Quant", ["r", "sy", "zero", "bits"], ["y"], signed=0, narrow=0, **quant),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6, 4, 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAINS[0], 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "q.onnx")
    result = nd.fold(tmp_path / "q.onnx", tmp_path / "out.onnx")
    assert result.verdict is not None
    assert result.verdict.status == "pass", result.verdict.summary()
    assert [row.action for row in result.ledger] == ["folded"]
    saved = onnx.load(tmp_path / "out.onnx")
    assert {node.domain for node in saved.graph.node} == {""}
    [integers] = [numpy_helper.to_array(t) for t in saved.graph.initializer if list(t.dims) == [6, 3, 3, 3]]
    wanted = np.round(weight / values["sw"]) * np.sign(values["g"]).reshape(-1, 1, 1, 1)
    np.testing.assert_array_equal(integers, wanted)
