"""The search over maps: a mark returned to is a fresh search; equations stay short; costs fall where they arise."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite
from normdeploy.rewrite.affine import bytes_moved
from normdeploy.rewrite.affine.affine_node import is_affine
from normdeploy.rewrite.gauge.conflicts.reasons import Reason
from normdeploy.rewrite.gauge.removal_plan import Plan, Search
from normdeploy.rewrite.gauge.stated_ties import build
from normdeploy.rewrite.pipeline import RecogniseAffine, understand
from normdeploy.rewrite.rewrite_context import RewriteContext

settings.load_profile("affine")
SEED = st.integers(0, 2**32 - 1)


def canonical(g) -> ir.Graph:
    """Return a built graph as the engine meets it."""
    context = RewriteContext()
    model = ir.from_proto(g.proto())
    for step in (*understand(context), RecogniseAffine(context)):
        step(model)
    return model.graph


def stream(g, rng, blocks: int, *, layer_scale: bool) -> None:
    """A residual stream as transformers have it: a norm, two products, and a scale of the branch."""
    x = g.input("x", ["N", 5, 4])
    for _ in range(blocks):
        y = g.op("LayerNormalization", x, rng.uniform(0.5, 2, 4), rng.normal(size=4))
        y = g.op("Gelu", g.op("Add", g.op("MatMul", y, rng.normal(size=(4, 4))), rng.normal(size=4)))
        y = g.op("Add", g.op("MatMul", y, rng.normal(size=(4, 4))), rng.normal(size=4))
        y = g.op("Mul", y, rng.uniform(0.5, 2, 4)) if layer_scale else y
        x = g.op("Add", x, y)
    g.output(x)


@pytest.mark.parametrize("layer_scale", [False, True])
def test_equations_stay_short_however_deep_a_stream_is(graph, layer_scale):
    """What a stream carries behind k blocks is one unknown, not the sum of k branches: work grows with depth alone."""
    longest = []
    for blocks in (4, 16):
        g = graph(opset=20)
        stream(g, np.random.default_rng(0), blocks, layer_scale=layer_scale)
        ties = build(canonical(g))
        systems = (ties.scales, ties.shifts)
        longest.append([max(held.rows.unknowns.shape[1] for held in system.held) for system in systems])
    assert longest[0] == longest[1]


def outcome(plan: Plan) -> tuple[object, ...]:
    kept = {node.name: str(reason) for node, reason in plan.stays.items()}
    gauges = [plan.solution.scale(g).tolist() + plan.solution.shift(g).tolist() for g in plan.solution.ties.of.values()]
    return [node.name for node in plan.gone], {n.name: half for n, half in plan.halves.items()}, kept, gauges


@given(SEED)
def test_returning_to_a_mark_is_asking_anew(graph, seed):
    """Whatever maps have to stay in the second turn: the plan is that of a search that knew it from the start."""
    rng = np.random.default_rng(seed)
    g = graph(opset=20)
    x = g.input("x", ["N", 3, 4, 4])
    for _ in range(4):
        y = g.op(
            str(rng.choice(["Relu", "Sigmoid", "Identity"])), g.batch_norm(x, 3, rng, positive=bool(rng.integers(2)))
        )
        y = g.op("Conv", y, rng.normal(size=(3, 3, 3, 3)), rng.normal(size=3), pads=[int(rng.integers(2))] * 4)
        x = g.batch_norm(y if rng.integers(2) else g.op("Conv", x, rng.normal(size=(3, 3, 1, 1))), 3, rng)
    g.output(x)
    found = canonical(g)
    maps = [node for node in found if is_affine(node)]
    search = Search(found, ())
    search.plan({}, (), {})
    stays: dict[ir.Node, Reason] = {}
    light: dict[ir.Node, Reason] = {}
    whole: set[ir.Node] = set()
    for _ in range(3):
        stays |= {node: Reason("asked to stay") for node in maps if rng.random() < 0.3}
        whole |= {node for node in stays if rng.random() < 0.5}
        light |= {node: Reason("too much to carry") for node in maps if rng.random() < 0.2}
        again = search.plan(stays, whole, light)
        assert outcome(again) == outcome(Search(found, ()).plan(stays, whole, light))


@pytest.mark.parametrize("flat", [True, False])
def test_a_view_of_unknown_size_counts_like_what_it_views(graph, fold, flat):
    """(N, 196, C) -> (N 196, C), a norm, and back: the norm's pass is over all of it, and its fold is worth an Add."""
    rng = np.random.default_rng(0)
    g = graph()
    y = g.op("MatMul", g.input("x", ["N", 196, 3]), rng.normal(size=(3, 4)))
    if flat:
        y = g.op("Reshape", g.batch_norm(g.op("Reshape", y, np.array([-1, 4])), 4, rng), np.array([-1, 196, 4]))
    else:
        y = g.op("Add", g.op("Mul", y, rng.normal(size=4)), rng.normal(size=4))
    g.output(g.op("Sigmoid", y))
    result = fold(g).folded().agree(g.feeds(rng, N=2))
    assert result.ops["BatchNormalization"] == result.ops["Mul"] == 0
    assert result.ops["MatMul"] == result.ops["Add"] == 1


def test_sizes_of_views():
    whole, rows = (
        ir.Value(name="whole", shape=ir.Shape(["N", 196, 4])),
        ir.Value(name="rows", shape=ir.Shape([None, 4])),
    )
    ir.Node("", "Reshape", [whole, ir.Value(name="target")], outputs=[rows])
    assert bytes_moved.elements(rows) == bytes_moved.elements(whole) == bytes_moved.ASSUMED_DIM * 196 * 4
    cut = ir.Value(name="cut", shape=ir.Shape([None, 2]))
    ir.Node("", "Slice", [rows], outputs=[cut])
    assert bytes_moved.elements(cut) == bytes_moved.ASSUMED_DIM * 2


def test_one_map_too_dear_keeps_no_other(graph, fold):
    """On one stream: a norm in front of a large weight that another reader keeps stays, the others leave."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Conv", g.input("x", ["N", 3, 4]), rng.normal(size=(3, 3, 1)), rng.normal(size=3))
    shared = g.constant(rng.normal(size=(400, 3, 1)), "shared")
    g.output(g.op("Sigmoid", g.op("Conv", g.op("Mul", x, rng.uniform(0.5, 2, (3, 1)), name="dear"), shared)))
    g.output(g.op("Conv", g.op("Sigmoid", x), shared))
    for at in range(3):
        y = g.op("Mul", x, rng.uniform(0.5, 2, (3, 1)), name=f"cheap{at}")
        g.output(g.op("Sigmoid", g.op("Conv", y, rng.normal(size=(3, 3, 1)))))
    result = fold(g).agree(g.feeds(rng, N=2))
    assert {row.where: row.action for row in result.ledger} == {
        "dear": "kept", "cheap0": "folded", "cheap1": "folded", "cheap2": "folded"
    }  # fmt: skip
    assert result.ledger.kept[0].reason == (
        "absorbing it would copy or compute more than the pass over its tensor that it saves"
    )


def test_a_map_that_makes_a_stream_carry_much_leaves_behind_it(graph, fold):
    """Two heads, each with a norm of its own with a large shift, on one pooled value: both go into their products."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("Conv", g.input("x", ["N", 3, 6, 6]), rng.normal(size=(4, 3, 3, 3)), rng.normal(size=4))
    x = g.op("ReduceMean", x, np.array([2, 3]), keepdims=0)
    for at in range(2):
        y = g.op("Mul", x, rng.uniform(0.5, 1, 4), name=f"norm{at}")
        y = g.op("Add", y, np.array([2.5, -2.4, 2.6, 2.2]) * (1 - 2 * at))
        g.output(g.op("Sigmoid", g.op("MatMul", y, rng.normal(size=(4, 3)))))
    result = fold(g).folded(2).agree(g.feeds(rng, N=2))
    assert result.ops == {"Conv": 1, "ReduceMean": 1, "MatMul": 2, "Add": 2, "Sigmoid": 2}


@pytest.mark.parametrize(("front", "asked"), [("LayerNormalization", False), ("LayerNormalization over rows", True),
                                              ("Relu", True)])  # fmt: skip
def test_what_lies_in_front_of_a_product_is_asked_if_it_may_take_what_varies_along_rows(graph, front, asked):
    """A scale of each row, as one frequency of a rotary table is: a norm of rows takes none, and need not be asked."""
    rng = np.random.default_rng(0)
    g = graph()
    x = g.op("MatMul", g.op("Sigmoid", g.input("x", [2, 3, 4])), rng.normal(size=(4, 4)))
    if front == "Relu":
        x = g.op("Relu", x)
    else:
        axis = -2 if "rows" in front else -1
        x = g.op("LayerNormalization", x, rng.uniform(0.5, 2, (3, 4)[axis + 2 :]), axis=axis)
    y = g.op("Mul", g.op("MatMul", x, rng.normal(size=(4, 2))), rng.uniform(0.5, 2, (3, 1)))
    g.output(g.op("Sigmoid", y))
    inner = canonical(g)
    search = Search(inner, ())
    search.plan({}, (), {})
    (made,) = [node for node in inner if node.op_type == front.split()[0]]
    assert (made in search.ties.nodes) is asked


GATE = "a = Abs (x) b = Add (a, c) d = Div (x, b) e = Mul (d, s) f = Abs (e) g = Add (f, h) y = Div (a, g)"
SHOWN = "p = MatMul (x, w) z = Add (p, c) v = Mul (p, s)"


@pytest.mark.parametrize("beside", ["", SHOWN], ids=["alone", "beside one that has to take a shift"])
def test_what_a_map_that_leaves_leaves_behind_makes_no_other_map_larger(beside):
    """A scale that leaves makes one of two additions that stay a map with a scale, not both."""
    outputs = "double[n,3,4] y" + (", double[n,3,4] z, double[n,3,4] v" if beside else "")
    source = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 18]> net (double[n,3,4] x) => ({outputs})
        <double c = {{1}}, double[4] s = {{1e-05, 1.2e-05, 7e-06, 8e-06}}, double h = {{1}},
         double[4,4] w = {{1, 2, -1, 0.5, 1, 1, 2, 1, 3, 0.1, 2, 1, -1, 2, 1, 1}}> {{ {GATE} {beside} }}"""
    )
    found = rewrite(source).model
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    for name, expected in Evaluator(source).run({"x": x}).items():
        np.testing.assert_allclose(Evaluator(found).run({"x": x})[name].numpy(), expected.numpy(), rtol=1e-12)
    gate, reached = set[ir.Node](), [value for value in found.graph.outputs if value.name == "y"]
    while reached:
        producer = reached.pop().producer()
        if producer is not None and producer not in gate:
            gate.add(producer)
            reached += [value for value in producer.inputs if value is not None]
    assert sorted(node.op_type for node in gate) == ["Abs", "Abs", "Add", "Add", "Div", "Div", "Mul"]


@pytest.mark.parametrize(
    "body",
    [SHOWN, "e = Sin (x) b = Add (e, r) z = Mul (b, s) v = Mul (b, t)"],
    ids=["what one output adds the other takes off", "a map along one axis between maps along another"],
)
def test_no_map_leaves_by_making_others_larger_than_it_was(body):
    """A scale that comes to have a shift, too, is one operator more."""
    source = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 18]> net (double[n,3,4] x) => (double[n,3,4] z, double[n,3,4] v)
        <double[4] c = {{1, 2, 3, 4}}, double[4] s = {{2, 3, 0.5, 1.5}}, double[4] t = {{1, 3, 2, 0.1}},
         double[3,1] r = {{1, 2, 3}}, double[4,4] w = {{1, 2, -1, 0.5, 1, 1, 2, 1, 3, 0.1, 2, 1, -1, 2, 1, 1}}>
        {{ {body} }}"""
    )
    found = rewrite(source).model
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    for name, expected in Evaluator(source).run({"x": x}).items():
        np.testing.assert_allclose(Evaluator(found).run({"x": x})[name].numpy(), expected.numpy(), rtol=1e-12)
    assert len(found.graph) <= len(source.graph)
