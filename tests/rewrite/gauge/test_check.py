"""Folds over many tokens are right, and a wrong one is caught."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.errors import RewriteError
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite
from normdeploy.rewrite.gauge import removal_plan
from normdeploy.rewrite.gauge.operator_edit import Solution
from normdeploy.rewrite.gauge.rules import moves, products

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
agraph (float[n,{tokens},8] x) => (float[n,{tokens},{heads},2] y)
<float[n,{tokens},{width}] p, float[n,{tokens},{heads},2] r, int64[4] target = {{-1, {tokens}, {heads}, 2}}>
{{
    p = MatMul (x, w)
    r = Reshape (p, target)
    y = Mul (r, s)
}}"""


def attention(tokens: int = 50, heads: int = 3) -> ir.Model:
    rng = np.random.default_rng(0)
    model = ir.from_onnx_text(TEXT.format(tokens=tokens, heads=heads, width=2 * heads))
    arrays = {"w": rng.standard_normal((8, 2 * heads)), "s": rng.random((heads, 1)) + 0.5}
    for value in {value for node in model.graph for value in node.inputs if value is not None}:
        if value.name in arrays:
            array = arrays[value.name].astype(np.float32)
            value.const_value, value.shape = ir.tensor(array, name=value.name), ir.Shape(array.shape)
            value.dtype = ir.DataType.FLOAT
            model.graph.register_initializer(value)
    return model


def test_a_fold_over_many_tokens_is_right_and_a_wrong_one_is_still_caught(monkeypatch):
    model = attention()
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 50, 8)).astype(np.float32)}
    expected = Evaluator(model).run(feeds)["y"]
    result = rewrite(model)
    assert [node.op_type for node in result.model.graph] == ["MatMul", "Reshape"]
    got = Evaluator(result.model).run(feeds)["y"]
    assert float((got - expected).abs().max()) <= 1e-12 * float(expected.abs().max())
    right = products.rescale
    monkeypatch.setattr(
        products,
        "rescale",
        lambda edit, at, weight, factor, divisor, **more: right(edit, at, weight, factor * 1.000001, divisor, **more),
    )
    with pytest.raises(RewriteError, match="gauge of MatMul"):
        rewrite(attention())


UNNAMED = {
    "what a Gemm sums over": (
        "float[n,m] x",
        "float[8,6] w, float[6] c",
        "p = Gemm (x, w, c)\n y = Mul (p, s)",
        {"x": (3, 8)},
    ),
    "what is split": (
        "float[n,l,8] x, int64[3] t",
        "float[8,6] w, int64[2] parts = {2, 4}",
        "p = MatMul (x, w)\n q = Reshape (p, t)\n a, b = Split <axis = 2> (q, parts)\n e = Concat <axis = 2> (b, a)\n"
        "y = Mul (e, one)",
        {"x": (2, 5, 8)},
    ),
    "what is repeated, with axes of another name behind it": (
        "float[n,l,6] x, int64[4] t",
        "float[6,6] w, int64[1] at = {1}, float[n2,2,l2,6] e",
        "p = MatMul (x, w)\n q = Unsqueeze (p, at)\n e = Expand (q, t)\n y = Mul (e, s)",
        {"x": (3, 5, 6)},
    ),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_sizes_without_names_are_drawn_as_the_operator_needs_them(name):
    """An operator that cannot be evaluated on what is drawn lets no map pass."""
    inputs, constants, body, shapes = UNNAMED[name]
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
        net ({inputs}) => (float[?,?,?] y)
        <{constants}, float one = {{0.5}}, float[6] s = {{1, 2, 3, 4, 5, 6}}> {{ {body} }}"""
    rng = np.random.default_rng(0)
    rank = 2 if "Gemm" in name else 4 if "int64[4] t" in inputs else 3
    model = ir.from_onnx_text(text.replace("float[?,?,?] y", f"float[{','.join('?' * rank)}] y"))
    for value in {value for node in model.graph for value in node.inputs if value is not None}:
        if value.name in ("w", "c"):
            array = rng.standard_normal(value.shape.numpy()).astype(np.float32)
            value.const_value = ir.tensor(array, name=value.name)
            model.graph.register_initializer(value)
    feeds = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    feeds |= {"t": np.array([2, 5, 6])} if "int64[3] t" in inputs else {}
    feeds |= {"t": np.array([3, 2, 5, 6])} if "int64[4] t" in inputs else {}
    expected = Evaluator(model).run(feeds)["y"]
    result = rewrite(model)
    assert [row.action for row in result.ledger] == ["folded"], [row.reason for row in result.ledger]
    assert "Mul" not in [node.op_type for node in result.model.graph]
    got = Evaluator(result.model).run(feeds)["y"]
    assert float((got - expected).abs().max()) <= 1e-12 * float(expected.abs().max())


BETWEEN = {
    "Gather": "r = Gather <axis = 0> (q, first)",
    "Gather far along": "r = Gather <axis = 0> (q, fourth)",
    "GatherND": "r = GatherND (q, pairs)",
    "Concat": "r = Concat <axis = 0> (q, q)",
    "ScatterND": "f = Gather <axis = 0> (q, first)\n r = ScatterND (q, pairs, f)",
    "MatMul": "r = MatMul (q, w)",
    "product of computed values": "k = Softmax (v)\n r = MatMul (q, k)",
}


@pytest.mark.parametrize("name", BETWEEN)
def test_an_axis_of_unknown_size_is_as_long_as_the_map_along_it(name):
    """One of two maps along it goes into the other, whatever lies between them."""
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["" : 18]>
        net (double[M,T,4] x, double[M,4,K] v) => (double[?,?,?] y)
        <double[5] s = {{1, 2, 3, 4, 5}}, double[5] t = {{2, 3, 1, 4, 3}}, double[5] zero = {{0, 0, 0, 0, 0}},
         double[5] one = {{1, 1, 1, 1, 1}}, int64[1] first = {{0}}, int64[1] fourth = {{3}},
         int64[1,1] pairs = {{0}},
         double[4,3] w = {{1, 2, -1, 3, 1, 0.5, 1, -1, 0.3, 1, 2, 3}}> {{
          q = BatchNormalization <epsilon = 0.0> (x, s, zero, zero, one)
          {BETWEEN[name]}
          y = BatchNormalization <epsilon = 0.0> (r, t, zero, zero, one) }}""")
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((4, 5, 4)), "v": rng.standard_normal((4, 4, 2))}
    expected = Evaluator(model).run(feeds)["y"]
    result = rewrite(model)
    assert sorted(row.action for row in result.ledger) == ["folded", "kept"], [row.reason for row in result.ledger]
    got = Evaluator(result.model).run(feeds)["y"]
    assert float((got - expected).abs().max()) <= 1e-12 * float(expected.abs().max())


def off(which: str, operators: tuple[str, ...]):
    """Return a choice of gauges in which the results of some operators are 1.5 times off, or shifted by 0.5."""
    choose = removal_plan.choose

    def chosen(ties):
        found = choose(ties)
        scales, shifts = found.scales.copy(), found.shifts.copy()
        for value, gauge in ties.of.items():
            producer = value.producer()
            if producer is not None and producer.op_type in operators:
                scales[gauge.scale_of[gauge.scale_of > 0]] *= 1.5 if which == "scale" else 1
                shifts[gauge.shift_of[gauge.shift_of > 0]] += 0.5 if which == "shift" else 0
        return Solution(ties, scales, shifts)

    return chosen


CONVOLVED = """p = Conv (x, w)
    q = Mul (p, s)
    y = Add (q, t)"""

READ_BY_SIN = """p = Conv (x, w)
    q = Mul (p, s)
    r = Conv (q, w)
    y = Sin (r)"""


def convolved(body: str = CONVOLVED) -> ir.Model:
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["" : 20]>
        net (float[n,3,l] x) => (float[n,3,l] y)
        <float[3,3,1] w, float[3,1] s = {{2, 3, 4}}, float[3,1] t = {{1, 0, 5}}> {{ {body} }}""")
    w = np.random.default_rng(0).standard_normal((3, 3, 1)).astype(np.float32)
    value = next(value for node in model.graph for value in node.inputs if value is not None and value.name == "w")
    value.const_value = ir.tensor(w, name="w")
    model.graph.register_initializer(value)
    return model


@pytest.mark.parametrize("which", ["scale", "shift"])
def test_a_map_is_not_taken_out_by_numbers_that_do_not_fit_it(monkeypatch, which):
    """A convolution writes any gauge rightly, so that only the map that disappears can tell that this one is wrong."""
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 5)).astype(np.float32)}
    expected = Evaluator(convolved()).run(feeds)["y"]
    assert [node.op_type for node in rewrite(convolved()).model.graph] == ["Conv"]
    monkeypatch.setattr(removal_plan, "choose", off(which, ("Conv",)))
    result = rewrite(convolved())
    assert [row.action for row in result.ledger] == ["kept"]
    assert "differs from it by more than 1e-08 of its size" in next(iter(result.ledger)).reason
    got = Evaluator(result.model).run(feeds)["y"]
    assert float((got - expected).abs().max()) <= 1e-12 * float(expected.abs().max())


@pytest.mark.parametrize("which", ["scale", "shift"])
def test_what_has_to_stay_is_asked_for_its_gauge(monkeypatch, which):
    """The identity of a value that an operator without a rule reads is not only stated."""
    model = convolved(READ_BY_SIN)
    read = next(node.inputs[0] for node in model.graph if node.op_type == "Sin")
    free = removal_plan.choose

    def chosen(ties):
        found = free(ties)
        ties.of[read] = ties.fresh((1, 3, 1))
        scale, shift = (1.5, 0.0) if which == "scale" else (1.0, 0.5)
        return Solution(
            ties, np.append(found.scales, np.full(3, scale)), np.append(found.shifts, np.full(3, shift))
        )  # fmt: skip

    monkeypatch.setattr(removal_plan, "choose", chosen)
    with pytest.raises(RewriteError, match="it has to stay what it is"):
        rewrite(model)


MIXED = """q = Mul (x, s)
    r = Add (q, t)
    halves = Constant <value_ints = [1, 2]> ()
    a, b = Split <axis = 1> (r, halves)
    e = Concat <axis = 1> (b, a)
    y = Conv (e, w)"""


def test_a_movement_that_is_tied_to_other_elements_is_caught(monkeypatch):
    """What only moves elements is checked by which element is where, and nothing is drawn for it."""
    model = convolved(MIXED)
    assert [node.op_type for node in rewrite(model).model.graph] == ["Split", "Concat", "Conv"]
    settled = moves.settled

    def turned(node, ties, value, joined, identifiers, acts):
        wrong = identifiers[:, ::-1] if node.op_type == "Concat" else identifiers
        return settled(node, ties, value, joined, wrong, acts)

    monkeypatch.setattr(moves, "settled", turned)
    with pytest.raises(RewriteError, match="expected the gauges of the elements it holds"):
        rewrite(model)
