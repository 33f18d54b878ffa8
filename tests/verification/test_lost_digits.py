"""Gauges under which storing a number loses it: a derivation may ask for them, and confirms nothing by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

from normdeploy.array_types import Shape
from normdeploy.exporting.trace import trace
from normdeploy.graph.derivation import Derivation, Exact, Hint
from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation

W = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
B = np.random.default_rng(1).normal(size=6).astype(np.float32)
GEMM = helper.make_node("Gemm", ["x", "W", "b"], ["v"])

TAILS = {
    "places": [helper.make_node("ArgMax", ["v"], ["y"], axis=-1, keepdims=0)],
    "places of several": [helper.make_node("TopK", ["v", "k"], ["", "y"])],
    "norm": [helper.make_node("LayerNormalization", ["v", "g"], ["y"], epsilon=0.0)],
    "quotient": [helper.make_node("ReduceL2", ["v", "a"], ["m"]), helper.make_node("Div", ["v", "m"], ["y"])],
    "sum": [helper.make_node("Add", ["v", "d"], ["y"])],
    "region": [helper.make_node("LpNormalization", ["v"], ["y"], axis=-1, p=2)],
}
SCALED, SHIFTED = tuple(name for name in TAILS if name != "sum"), ("places", "places of several", "norm")


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Shape],
    told: tuple[int, Shape],
    constants: Mapping[str, np.ndarray],
) -> ModelProto:
    """Return a graph of nodes whose result is y, of a type and shape; constants in float64 are stored in float32."""
    kept = {name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in constants.items()}
    dtype = TensorProto.FLOAT16 if any(array.dtype == np.float16 for array in kept.values()) else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, dtype, ["N", *shape]) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", told[0], ["N", *told[1]])],
        [numpy_helper.from_array(array, name) for name, array in kept.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


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
    shape = (2,) if tail == "places of several" else () if places else (6,)
    told = (TensorProto.INT64 if places else TensorProto.FLOAT, shape)
    return model_of([GEMM, *TAILS[tail]], {"x": (4,)}, told, constants)


def in_halves(scale: float, pruned: int = 0) -> bool:
    """Tell whether a product in float16 in front of an ArgMax is confirmed by a scale; some of its rows may be 0."""
    w = (W * (np.arange(6) >= pruned)).astype(np.float16)
    nodes = [helper.make_node("MatMul", ["x", "W"], ["v"]), *TAILS["places"]]
    graphs = [
        ir.from_proto(model_of(nodes, {"x": (4,)}, (TensorProto.INT64, ()), {"W": array}))
        for array in (w, (w.astype(np.float64) / scale).astype(np.float16))
    ]
    hints = (Hint("v", "v", scale=np.array(scale)), Hint("y", "y"))
    return check_derivation(*graphs, Derivation(hints), [{"x": (2, 4)}, {"x": (3, 4)}]).confirmed


def test_float16_loses_digits_at_smaller_scales() -> None:
    assert in_halves(2.0**4)
    assert not in_halves(2.0**22)


def test_rows_of_zeros_have_no_digits_to_lose() -> None:
    assert in_halves(2.0**4, pruned=2)


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


def forged(nodes: list[NodeProto], given: str, large: float, *hints: Hint, **numbers: np.ndarray) -> bool:
    """Tell whether a file whose bias lost its digits beside a shift is confirmed, what is told of it being places."""
    graphs = []
    for bias in (B, (B.astype(np.float64) - large).astype(np.float32)):
        whole = [GEMM, *nodes, helper.make_node("ArgMax", [given], ["y"], axis=-1)]
        constants = {"W": W, "b": bias, "g": np.ones(6), **numbers}
        graphs.append(ir.from_proto(model_of(whole, {"x": (4,), "z": (6,)}, (TensorProto.INT64, (1,)), constants)))
    told = (Hint("v", "v", shift=np.array(large)), *hints, Hint("y", "y"))
    sizes = [{"x": (n, 4), "z": (n, 6)} for n in (2, 3)]
    return check_derivation(*graphs, Derivation(told), sizes).confirmed


@pytest.mark.parametrize("power", [4, 14, 20, 40])
def test_a_sum_with_another_value_leaves_lost_what_was(power: int) -> None:
    """The sum carries the shift on; the places of the largest take no notice of it, nor of what is gone beside it."""
    hint = Hint("s", "s", shift=np.array(2.0**power))
    nodes = [helper.make_node("Add", ["v", "z"], ["s"])]
    assert forged(nodes, "s", 2.0**power, hint) == (power == 4)


@pytest.mark.parametrize("power", [4, 14, 20, 40])
@pytest.mark.parametrize("between", ["Transpose", "Concat", "GlobalMaxPool"])
def test_what_moves_leaves_lost_what_was(between: str, power: int) -> None:
    first = np.array([0])
    ends = {
        "Transpose": [
            helper.make_node("Transpose", ["v"], ["t"], perm=[1, 0]),
            helper.make_node("Transpose", ["t"], ["s"], perm=[1, 0]),
        ],
        "Concat": [helper.make_node("Concat", ["v", "v"], ["s"], axis=1)],
        "GlobalMaxPool": [
            helper.make_node("Unsqueeze", ["v", "last"], ["u"]),
            helper.make_node("GlobalMaxPool", ["u"], ["m"]),
            helper.make_node("Squeeze", ["m", "last"], ["s"]),
        ],
    }[between]
    hints = [Hint(name, name, shift=np.array(2.0**power)) for name in ("t", "u", "m", "s")]
    assert forged(ends, "s", 2.0**power, *hints, last=first + 2) == (power == 4)


BETWEEN = {
    "nothing": ([], "v"),
    "moves": (
        [helper.make_node("Transpose", ["v"], ["t"]), helper.make_node("Transpose", ["t"], ["u"])],
        "u",
    ),
    "a sum": ([helper.make_node("Add", ["v", "z"], ["u"])], "u"),
}


@pytest.mark.parametrize("channel", [0, 1])
@pytest.mark.parametrize("between", BETWEEN)
def test_each_channel_makes_up_for_what_it_lost_itself(between: str, channel: int) -> None:
    """Channel 0 is scaled by 2^-20 behind, in the source as well; of channel 1 digits are gone."""
    shift = np.ones(6)
    shift[channel] = 2.0**16
    scale = np.where(np.arange(6) == 0, 2.0**-20, 1.0)
    nodes, given = BETWEEN[between]
    graphs = []
    for t in (np.zeros(6), shift):
        constants = {"W": W, "b": B - t, "g": scale, "d": 1 + scale * t}
        behind = [helper.make_node("Mul", [given, "g"], ["m"]), helper.make_node("Add", ["m", "d"], ["y"])]
        told, inputs = (TensorProto.FLOAT, (6,)), {"x": (4,), "z": (6,)}
        graphs.append(ir.from_proto(model_of([GEMM, *nodes, *behind], inputs, told, constants)))
    hints = (Hint("v", "v", shift=shift), Hint("t", "t", shift=shift[:, None]), Hint("u", "u", shift=shift))
    sizes = [{"x": (n, 4), "z": (n, 6)} for n in (2, 3)]
    report = check_derivation(*graphs, Derivation((*hints, Hint("y", "y"))), sizes)
    assert report.confirmed == (channel == 0), [(row.name, row.reason) for row in report.open]


@pytest.mark.parametrize("channel", [0, 1])
def test_a_region_makes_up_channel_by_channel_for_what_it_lost(channel: int) -> None:
    """A layer over tokens whose channels are shifted: its bias becomes one for each channel and token."""
    shift = np.where(np.arange(6) == channel, 2.0**16, 1.0)
    scale = np.where(np.arange(6) == 0, 2.0**-20, 1.0)
    mix, own = np.random.default_rng(2).normal(size=(5, 5)), B[:5].astype(np.float64)
    biases, graphs = (own, own - shift[:, None]), []
    for bias, t in zip(biases, (np.zeros(6), shift), strict=True):
        constants = {"M": mix, "b": bias, "g": scale, "d": 1 + scale * t}
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["t", "M"], ["p"]),
            helper.make_node("Add", ["p", "b"], ["v"]),
            helper.make_node("Transpose", ["v"], ["u"], perm=[0, 2, 1]),
            helper.make_node("Mul", ["u", "g"], ["m"]),
            helper.make_node("Add", ["m", "d"], ["y"]),
        ]
        graphs.append(ir.from_proto(model_of(nodes, {"x": (5, 6)}, (TensorProto.FLOAT, (5, 6)), constants)))
    hints = (Hint("v", "v", shift=shift[:, None]), Hint("u", "u", shift=shift), Hint("y", "y"))
    exact = (Exact("v", "", "1", lambda: biases[1]),)
    report = check_derivation(*graphs, Derivation(hints, exact), [{"x": (n, 5, 6)} for n in (2, 3)])
    assert report.confirmed == (channel == 0), [(row.name, row.reason) for row in report.open]


@pytest.mark.parametrize("power", [4, 14, 40])
def test_a_region_that_reads_what_lost_its_digits_lost_them_too(power: int) -> None:
    """Behind the sum of a row in which shifts cancel nothing of them is left, but what they lost."""
    large = np.array([1, -1, 0, 0, 0, 0]) * 2.0**power
    graphs = []
    for bias in (B, (B - large).astype(np.float32)):
        nodes = [
            GEMM,
            helper.make_node("Mul", ["v", "one"], ["m"]),
            helper.make_node("ReduceMean", ["m", "last"], ["s"]),
            helper.make_node("Add", ["s", "one"], ["y"]),
        ]
        constants = {"W": W, "b": bias, "one": np.ones(1), "last": np.array([-1])}
        graphs.append(ir.from_proto(model_of(nodes, {"x": (4,)}, (TensorProto.FLOAT, (1,)), constants)))
    hints = (Hint("v", "v", shift=large), Hint("s", "s"), Hint("y", "y"))
    report = check_derivation(*graphs, Derivation(hints), [{"x": (2, 4)}, {"x": (3, 4)}])
    assert report.confirmed == (power == 4), [(row.name, row.reason) for row in report.open]


class TokenMixing(nn.Module):
    """A layer over tokens in a residual branch, behind it a scale of each channel, one of which is almost 0."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix, self.head = nn.Linear(8, 8), nn.Linear(5, 5), nn.Linear(8, 8)
        self.gamma = nn.Parameter(torch.cat([torch.tensor([2e-6]), torch.linspace(0.5, 1.5, 7)]))
        self.first, self.second = nn.LayerNorm(8), nn.Parameter(torch.linspace(0.7, 1.5, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.gamma * self.mix(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.head((x * self.second + self.gamma + 1).relu())


def test_a_channel_that_is_scaled_by_almost_nothing_makes_up_for_what_it_lost() -> None:
    """In front of it stands a shift of 5e5: nothing of that channel is left there, and almost nothing was needed."""
    torch.manual_seed(0)
    model, x = TokenMixing().eval(), torch.randn(2, 5, 8)
    traced = trace(model, (x,))
    result = rewrite(traced.model)
    sizes = [{result.model.graph.inputs[0].name or "": (2, 5, 8)}]
    report = check_derivation(traced.model, result.model, result.derivation, sizes)
    assert report.confirmed, [(row.name, row.reason) for row in report.open]
    assert max(float(np.abs(hint.shift).max()) for hint in result.derivation.hints) > 1e5


Numbers = dict[str, np.ndarray]


def network(numbers: Numbers, tail: str) -> ModelProto:
    """Return two layers with a map between them, and what is told of their result."""
    nodes = [
        GEMM,
        helper.make_node("Relu", ["v"], ["r"]),
        helper.make_node("Mul", ["r", "g"], ["m"]),
        helper.make_node("Add", ["m", "e"], ["a"]),
        helper.make_node("Gemm", ["a", "V", "c"], ["w"]),
        helper.make_node("ArgMax", ["w"], ["y"], axis=-1)
        if tail == "places"
        else helper.make_node("TopK", ["w", "k"], ["", "y"]),
    ]
    told = (TensorProto.INT64, (1 if tail == "places" else 2,))
    return model_of(nodes, {"x": (4,)}, told, {**numbers, "k": np.array([2])})


def decided_on(numbers: Numbers, x: np.ndarray) -> np.ndarray:
    n = {name: array.astype(np.float32).astype(np.float64) for name, array in numbers.items()}
    return (np.maximum(x @ n["W"] + n["b"], 0) * n["g"] + n["e"]) @ n["V"] + n["c"]


@pytest.mark.parametrize("seed", range(3))
def test_what_any_gauge_confirms_is_right_to_rounding(seed: int) -> None:
    """Files made by drawn gauges, rounded once: what they decide on, in float64, tells which may be confirmed."""
    rng = np.random.default_rng(seed)
    confirmed = refused = 0
    for draw in range(40):
        ours = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
        ours = {name: array.astype(np.float32).astype(np.float64) for name, array in ours.items()}
        reach, far = int(rng.choice([3, 20, 60, 100, 126, 140, 160])), int(rng.choice([1, 4, 10, 20, 50]))
        s = np.ldexp(1.0, rng.integers(-reach, reach + 1, size=6)) if draw % 3 else np.ones(6)
        s_w = np.ldexp(1.0, int(rng.integers(-reach, reach + 1))) if draw % 2 else 1.0
        t_w = np.ldexp(rng.normal(), int(rng.integers(0, far))) if draw % 5 else 0.0
        t = np.ldexp(rng.normal(size=6), int(rng.integers(0, far))) if draw % 4 else np.zeros(6)
        theirs = {
            "W": ours["W"] / s, "b": ours["b"] / s, "g": ours["g"], "e": (ours["e"] - t) / s,
            "V": ours["V"] * s[:, None] / s_w, "c": (ours["c"] + t @ ours["V"] - t_w) / s_w,
        }  # fmt: skip
        with np.errstate(over="ignore"):
            if not all(np.isfinite(array.astype(np.float32)).all() for array in theirs.values()):
                continue
        hints = [Hint(name, name, scale=s, shift=t if name == "a" else np.zeros(())) for name in "vrma"]
        hints += [Hint("w", "w", scale=np.array(s_w), shift=np.array(t_w)), Hint("y", "y")]
        tail = ("places", "several")[draw % 2]
        graphs = (ir.from_proto(network(numbers, tail)) for numbers in (ours, theirs))
        x = rng.normal(size=(100, 4))
        want, have = decided_on(ours, x), decided_on(theirs, x) * s_w + t_w
        if check_derivation(*graphs, Derivation(tuple(hints)), [{"x": (2, 4)}, {"x": (3, 4)}]).confirmed:
            confirmed += 1
            assert np.abs(have - want).max() < 2.0**-13 * np.abs(want).max(), (draw, s, s_w, t, t_w)
        else:
            refused += 1
    assert confirmed > 5
    assert refused > 5


SHAPES = {"W": (4, 6), "b": (6,), "g": (6,), "e": (6,), "V": (6, 5), "c": (5,)}
