"""Gauges under which storing a number loses it: a derivation may ask for them, and confirms nothing by them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from normdeploy.graph.derivation import Derivation, Exact, Hint
from normdeploy.verification.derivation.checker import check_derivation

W = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
B = np.random.default_rng(1).normal(size=6).astype(np.float32)

TAILS = {
    "places": [helper.make_node("ArgMax", ["v"], ["y"], axis=-1, keepdims=0)],
    "places of several": [helper.make_node("TopK", ["v", "k"], ["", "y"])],
    "norm": [helper.make_node("LayerNormalization", ["v", "g"], ["y"], epsilon=0.0)],
    "quotient": [helper.make_node("ReduceL2", ["v", "a"], ["m"]), helper.make_node("Div", ["v", "m"], ["y"])],
    "sum": [helper.make_node("Add", ["v", "d"], ["y"])],
    "region": [helper.make_node("LpNormalization", ["v"], ["y"], axis=-1, p=2)],
}
SCALED, SHIFTED = tuple(name for name in TAILS if name != "sum"), ("places", "places of several", "norm")


def made(w: np.ndarray, b: np.ndarray, tail: str, d: float = 0.0) -> ModelProto:
    """Return a product with weights, and what takes no notice of its scale or its shift."""
    places = tail.startswith("places")
    constants = {
        "W": w,
        "b": b,
        "g": np.ones(6, np.float32),
        "k": np.array([2]),
        "a": np.array([-1]),
        "d": np.full(6, d, np.float32),
    }
    shape = ["N", 2] if tail == "places of several" else ["N"] if places else ["N", 6]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "W", "b"], ["v"]), *TAILS[tail]],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.INT64 if places else TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def confirmed(tail: str, scale: float, shift: float, *constants: Exact) -> bool:
    """Tell whether a file that is right up to a gauge, each number rounded once, is confirmed by that gauge."""
    stored = (((a.astype(np.float64) - t) / scale).astype(np.float32) for a, t in ((W, 0.0), (B, shift)))
    gauge = {"scale": np.array(scale), "shift": np.array(shift)}
    hints = () if constants else (Hint("v", "v", **gauge), Hint("m", "m", scale=np.array(scale)))
    derivation = Derivation((*hints, Hint("y", "y")), constants)
    source, file = (ir.from_proto(made(*numbers, tail)) for numbers in ((W, B), tuple(stored)))
    return check_derivation(source, file, derivation, [{"x": (2, 4)}, {"x": (3, 4)}]).confirmed


@pytest.mark.parametrize("tail", SCALED)
def test_a_scale_that_leaves_the_digits_is_a_gauge(tail: str) -> None:
    assert confirmed(tail, 2.0**20, 0.0)
    assert confirmed(tail, 2.0**-20, 0.0)


@pytest.mark.parametrize("power", [140, 160, 400, 1000])
@pytest.mark.parametrize("tail", SCALED)
def test_a_scale_by_which_weights_are_lost_confirms_nothing(tail: str, power: int) -> None:
    """At 2^140 weights keep 9 bits and fewer; at 2^160 all are stored as 0, and each place told is the first."""
    assert not confirmed(tail, 2.0**power, 0.0)


@pytest.mark.parametrize("tail", SHIFTED)
def test_a_shift_that_leaves_the_digits_is_a_gauge(tail: str) -> None:
    assert confirmed(tail, 1.0, 4.0)


@pytest.mark.parametrize("power", [14, 20, 40])
@pytest.mark.parametrize("tail", SHIFTED)
def test_a_shift_by_which_a_bias_is_lost_confirms_nothing(tail: str, power: int) -> None:
    assert not confirmed(tail, 1.0, 2.0**power)


@pytest.mark.parametrize("power", [12, 16])
def test_constants_said_to_be_unrounded_confirm_nothing_that_rounding_loses(power: int) -> None:
    """The region of product and norm is the source's by them, and by what is stored it is not."""
    unrounded = B.astype(np.float64) - 2.0**power
    epsilon = TAILS["norm"][0].attribute[0]
    epsilon.f = 1e-2  # one that counts beside such numbers
    try:
        assert confirmed("norm", 1.0, 1.0, Exact("v", "", "2", lambda: B.astype(np.float64) - 1.0))
        assert not confirmed("norm", 1.0, 2.0**power, Exact("v", "", "2", lambda: unrounded))
    finally:
        epsilon.f = 0.0


@pytest.mark.parametrize("power", [2, 14, 40])
def test_a_shift_that_is_taken_off_behind_confirms_no_bias_that_it_lost(power: int) -> None:
    """In float64 the file is b's upper bits beside 2^power, and then b's upper bits."""
    large = 2.0**power
    source, file = made(W, B, "sum"), made(W, (B - large).astype(np.float32), "sum", large)
    for hints in ((Hint("y", "y"),), (Hint("v", "v", shift=np.array(large)), Hint("y", "y"))):
        graphs = (ir.from_proto(graph) for graph in (source, file))
        report = check_derivation(*graphs, Derivation(hints), [{"x": (2, 4)}, {"x": (3, 4)}])
        assert report.confirmed == (power == 2), [(row.name, row.reason) for row in report.open]
