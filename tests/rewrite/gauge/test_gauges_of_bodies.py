"""Maps behind an If: into both bodies where both take them, against the reference evaluator in float64."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from affine_graphs import GraphBuilder, fold_proto
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from normdeploy.rewrite import rewrite

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)

ENDS = {
    "If": (
        """g (float[n, 3] x, bool c) => (float[n, 3] y) <float[3] s = {2.0, 3.0, 4.0}> {
          [choice] y = If (c) <then_branch = inner () => (float[n, 3] z) { z = Mul (x, s) },
                               else_branch = other () => (float[n, 3] w) { w = Relu (x) }>
        }""",
        "behind it the output 'z' of a body of If 'choice' must stay what it is, and in front of it the graph input 'x'"
        " is given",
    ),
    "Loop": (
        """g (float[n, 3] x, int64 m, bool c) => (float[n, 3] y) <float[3] s = {2.0, 3.0, 4.0}> {
          [turns] y = Loop (m, c, x) <body = inner (int64 i, bool go, float[n, 3] v) => (bool on, float[n, 3] z) {
            on = Identity (go)
            z = Mul (v, s)
          }>
        }""",
        "behind it the output 'z' of a body of Loop 'turns' must stay what it is, and in front of it the input 'v' of "
        "a body of Loop 'turns' is given",
    ),
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_reason_says_of_an_end_whether_it_is_the_graphs_or_a_bodys(kind):
    text, said = ENDS[kind]
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}')
    (row,) = rewrite(ir.from_proto(model)).ledger.kept
    assert said in row.reason


def body(rng, ends, name, shape=("B", 4, "H", "W")):
    """A body that ends in an operator of a name, reading x of the graph around it: 3 channels to 4."""
    weights = {
        "Conv": rng.normal(size=(4, 3, 1, 1)),
        "ConvTranspose": rng.normal(size=(3, 4, 1, 1)),
        "Relu": rng.normal(size=(4, 3, 1, 1)),
        "Sigmoid": rng.normal(size=(4, 3, 1, 1)),
    }
    kind = "ConvTranspose" if ends == "ConvTranspose" else "Conv"
    tensors = [
        numpy_helper.from_array(weights[ends], f"{name}_w"),
        numpy_helper.from_array(rng.normal(size=4), f"{name}_b"),
    ]
    nodes = [helper.make_node(kind, ["x", f"{name}_w", f"{name}_b"], [f"{name}_y"], name=f"{name}_conv")]
    if ends in ("Relu", "Sigmoid"):
        nodes.append(helper.make_node(ends, [f"{name}_y"], [f"{name}_z"], name=f"{name}_act"))
    out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.DOUBLE, list(shape))
    return helper.make_graph(nodes, name, [], [out], tensors)


def choice(rng, then, other, scale, *, read_twice=False):
    g = GraphBuilder()
    g.input("x", ["B", 3, "H", "W"])
    c = g.op("Greater", g.op("ReduceMax", "x", keepdims=0), np.array(0.0))
    y = g.known(g.op("If", c, then_branch=then, else_branch=other, name="choice"), "B", 4, "H", "W")
    z = g.op("BatchNormalization", y, scale, *rng.normal(size=(2, 4)), rng.uniform(0.5, 2, 4), name="norm")
    g.output(g.op("Sigmoid", z))
    if read_twice:
        g.output(g.op("Tanh", y))
    return g


def both_ways(result, rng):
    for sign in (1, -1):
        result.agree({"x": sign * np.abs(rng.normal(size=(2, 3, 4, 5)))})


def bodies_of(model: onnx.ModelProto) -> list[list[str]]:
    """Operators of the bodies of the graph's If: what runs if true, what runs else."""
    found = {a.name: a.g for node in model.graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
    return [[item.op_type for item in found[name].node] for name in ("then_branch", "else_branch")]


@pytest.mark.parametrize("then", ["Conv", "ConvTranspose", "Relu"])
@pytest.mark.parametrize("other", ["Conv", "ConvTranspose", "Relu"])
@given(SEED)
def test_a_norm_behind_an_if_goes_into_both_bodies(then, other, seed):
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.5, 2, 4)
    g = choice(rng, body(rng, then, "then"), body(rng, other, "other"), scale)
    result = fold_proto(g)
    both_ways(result, rng)
    if "Relu" in (then, other):  # its shift cannot pass
        assert result.actions == ["kept"]
        assert "a body of If 'choice' does not take it" in result.reasons
        assert result.ops["BatchNormalization"] == 1
        return
    result.folded()
    assert result.ops == {"ReduceMax": 1, "Greater": 1, "If": 1, "Sigmoid": 1}
    assert bodies_of(result.after) == [[then], [other]]
    assert "then_conv" in result.ledger[0].into
    assert "other_conv" in result.ledger[0].into


@given(SEED)
def test_a_body_that_cannot_take_it_keeps_it_behind(seed):
    rng = np.random.default_rng(seed)
    g = choice(rng, body(rng, "Conv", "then"), body(rng, "Sigmoid", "other"), rng.uniform(0.5, 2, 4))
    result = fold_proto(g).kept("a body of If 'choice' does not take it", "Sigmoid")
    both_ways(result, rng)
    assert bodies_of(result.after) == [["Conv"], ["Conv", "Sigmoid"]]


def test_what_another_reads_too_stays():
    rng = np.random.default_rng(0)
    g = choice(rng, body(rng, "Conv", "then"), body(rng, "Conv", "other"), rng.uniform(0.5, 2, 4), read_twice=True)
    result = fold_proto(g)
    both_ways(result, rng)
    assert result.actions == ["kept"]
    assert bodies_of(result.after) == [["Conv"], ["Conv"]]


@given(SEED)
def test_through_an_if_at_the_end_of_a_body(seed):
    rng = np.random.default_rng(seed)
    inner = helper.make_node(
        "If",
        ["flag"],
        ["inner_y"],
        then_branch=body(rng, "Conv", "a"),
        else_branch=body(rng, "Conv", "b"),
        name="inner",
    )
    half = numpy_helper.from_array(np.array(0.5), "half")
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "half"], ["flag"]),
        inner,
    ]
    out = helper.make_tensor_value_info("inner_y", TensorProto.DOUBLE, ["B", 4, "H", "W"])
    then = helper.make_graph(nodes, "then", [], [out], [half])
    result = fold_proto(choice(rng, then, body(rng, "Conv", "other"), rng.uniform(0.5, 2, 4))).folded()
    for factor in (1.0, 0.1, -1.0):
        result.agree({"x": factor * rng.uniform(0.1, 1, size=(2, 3, 4, 5))})


def test_a_body_whose_result_is_widened_behind_it_keeps_the_map_there():
    """One channel in a body, four in the map: the map makes four channels of it."""
    rng = np.random.default_rng(0)
    narrow = [helper.make_node("Conv", ["x", f"w{n}"], [f"y{n}"], name=f"conv{n}") for n in range(2)]
    bodies = [
        helper.make_graph(
            [node],
            f"g{n}",
            [],
            [helper.make_tensor_value_info(f"y{n}", TensorProto.DOUBLE, ["B", 1, "H", "W"])],
            [numpy_helper.from_array(rng.normal(size=(1, 3, 1, 1)), f"w{n}")],
        )
        for n, node in enumerate(narrow)
    ]
    g = GraphBuilder()
    c = g.op("Greater", g.op("ReduceMax", g.input("x", ["B", 3, "H", "W"]), keepdims=0), np.array(0.0))
    y = g.known(g.op("If", c, then_branch=bodies[0], else_branch=bodies[1], name="choice"), "B", 1, "H", "W")
    g.output(g.op("Sigmoid", g.op("Mul", y, rng.uniform(0.5, 2, (4, 1, 1)))))
    both_ways(fold_proto(g), rng)


@pytest.mark.parametrize("ends", ["Conv", "Sigmoid", "constant"])
def test_a_body_that_ends_in_a_constant(ends):
    """The constant is mapped where the other body takes the map; where it does not, the reason speaks of that one."""
    rng = np.random.default_rng(0)
    value = numpy_helper.from_array(rng.normal(size=(1, 4, 1, 1)), "fixed")
    shown = helper.make_tensor_value_info("fixed_out", TensorProto.DOUBLE, [1, 4, 1, 1])
    fixed = helper.make_graph([helper.make_node("Constant", [], ["fixed_out"], value=value)], "fixed", [], [shown])
    other = fixed if ends == "constant" else body(rng, ends, "then")
    g = choice(rng, other, fixed, rng.normal(size=4))
    result = fold_proto(g)
    both_ways(result, rng)
    if ends == "Sigmoid":
        result.kept("a body of If 'choice' does not take it", "in front of it Sigmoid 'then_act' has no weights")
    else:
        assert [row.into for row in result.folded().ledger] == ["then_conv" if ends == "Conv" else "choice"]


def reading(rng, name, *, ends="Conv", reads=1, holds=None):
    """A body that reads the norm of the graph around it, or holds an If of such bodies."""
    tensors, nodes, last = [], [], ""
    for at in range(reads):
        tensors += [numpy_helper.from_array(rng.normal(size=(4, 4, 1, 1)), f"{name}_w{at}")]
        nodes += [helper.make_node("Conv", ["norm_out", f"{name}_w{at}"], [f"{name}_y{at}"], name=f"{name}_conv{at}")]
        last = f"{name}_y{at}"
    if reads > 1:
        nodes += [helper.make_node("Sum", [f"{name}_y{at}" for at in range(reads)], [f"{name}_sum"])]
        last = f"{name}_sum"
    if ends != "Conv":
        nodes, last = [helper.make_node(ends, ["norm_out"], [f"{name}_z"], name=f"{name}_end")], f"{name}_z"
    if holds is not None:
        tensors = [numpy_helper.from_array(np.array(0.5), f"{name}_half")]
        nodes = [
            helper.make_node("ReduceMax", ["x"], [f"{name}_top"], keepdims=0),
            helper.make_node("Greater", [f"{name}_top", f"{name}_half"], [f"{name}_flag"]),
            helper.make_node("If", [f"{name}_flag"], [f"{name}_in"], then_branch=holds[0], else_branch=holds[1]),
        ]
        last = f"{name}_in"
    out = helper.make_tensor_value_info(last, TensorProto.DOUBLE, ["B", 4, "H", "W"])
    return helper.make_graph(nodes, name, [], [out], tensors)


def captured(rng, then, other, *, read_beside=False):
    g = GraphBuilder()
    x = g.input("x", ["B", 4, "H", "W"])
    parameters = *rng.normal(size=(3, 4)), rng.uniform(0.5, 2, 4)
    h = g.op("BatchNormalization", x, *parameters, name="norm")
    c = g.op("Greater", g.op("ReduceMax", "x", keepdims=0), np.array(0.0))
    g.output(g.known(g.op("If", c, then_branch=then, else_branch=other, name="choice"), "B", 4, "H", "W"))
    if read_beside:
        g.output(g.op("Tanh", h))
    return g


def agree_either_way(result, rng):
    for factor in (1.0, 0.1, -1.0):
        result.agree({"x": factor * rng.uniform(0.1, 1, size=(2, 4, 3, 5))})


@given(SEED)
def test_a_norm_that_bodies_alone_read_goes_into_each(seed):
    rng = np.random.default_rng(seed)
    nested = reading(rng, "deep", holds=(reading(rng, "a"), reading(rng, "b", reads=2)))
    for then in (reading(rng, "then"), reading(rng, "twice", reads=2), nested):
        result = fold_proto(captured(rng, then, reading(rng, "other"))).folded()
        agree_either_way(result, rng)
        assert "BatchNormalization" not in result.ops
        assert "other_conv0" in result.ledger[0].into


@given(SEED)
def test_a_norm_stays_in_front_of_a_body_that_does_not_take_it(seed):
    rng = np.random.default_rng(seed)
    g = captured(rng, reading(rng, "then"), reading(rng, "other", ends="Sigmoid"))
    result = fold_proto(g).kept("a body of If 'choice' that reads it does not take it", "Sigmoid 'other_end'")
    agree_either_way(result, rng)
    assert bodies_of(result.after) == [["Conv"], ["Sigmoid"]]


def test_a_norm_that_is_read_beside_the_bodies_too_stays():
    rng = np.random.default_rng(0)
    result = fold_proto(captured(rng, reading(rng, "then"), reading(rng, "other"), read_beside=True))
    agree_either_way(result.kept(), rng)
    assert result.ops["BatchNormalization"] == 1


def test_a_norm_in_front_of_a_loop_stays():
    """The loop's body runs more often than the norm."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
    g (float[n, 3] x, int64 m, bool c) => (float[n, 3] y)
      <float[3] s = {2.0, 3.0, 4.0}, float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 10}> {
        h = Mul (x, s)
        y = Loop (m, c, x) <body = inner (int64 i, bool go, float[n, 3] v) => (bool on, float[n, 3] z) {
          on = Identity (go)
          k = MatMul (h, w)
          z = Add (k, v)
        }>
    }""")
    (row,) = rewrite(ir.from_proto(model)).ledger.kept
    assert "reads it inside a control-flow body" in row.reason
