"""The whole rewriting: input untouched, names kept, every map accounted for, bodies of control flow, size and time."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import parser

from normdeploy.errors import RewriteError
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'


def load(text: str) -> ir.Model:
    model = parser.parse_model(HEADER + text)
    onnx.checker.check_model(model)
    return ir.from_proto(model)


PRE_ACTIVATION = """
agraph (float[N, 2, 4, 4] x) => (float[N, 3, 4, 4] y)
<float[3, 2, 1, 1] w1 = {1, 2, 3, 4, 5, 6}, float[3, 3, 1, 1] w2 = {1, 0, 2, 0, 1, 0, 3, 0, 1},
 float[3] g = {1, 2, 3}, float[3] h = {1, -2, 3}, float[3] b = {0.5, -1, 2}, float[3] m = {0.1, 0.2, 0.3},
 float[3] v = {1, 2, 3}>
{
    a = Conv(x, w1)
    n1 = BatchNormalization(a, g, b, m, v)
    r1 = Relu(n1)
    c = Conv(r1, w2)
    q = Sigmoid(r1)
    s = Add(c, q)
    n2 = BatchNormalization(s, h, b, m, v)
    r2 = Relu(n2)
    y = Conv(r2, w2)
}
"""


def test_rows_are_in_graph_order_and_complete():
    result = rewrite(load(PRE_ACTIVATION))
    assert [(row.site, row.action) for row in result.ledger] == [(("n1",), "folded"), (("n2",), "kept")]
    assert result.ledger[0].into == "a"
    assert "Relu 'r2' needs a scale above 0" in result.ledger[1].reason
    assert result.ledger.counts() == {"folded": 1, "fused": 0, "merged": 0, "kept": 1}


def test_the_input_model_is_untouched():
    model = load(PRE_ACTIVATION)
    before = ir.to_proto(model).SerializeToString()
    result = rewrite(model)
    assert ir.to_proto(model).SerializeToString() == before
    assert result.model is not model


def test_a_norm_that_stays_is_written_as_it_was():
    model = load(PRE_ACTIVATION)
    result = rewrite(model)
    (norm,) = [node for node in result.model.graph if node.op_type == "BatchNormalization"]
    assert [value.name for value in norm.inputs[1:]] == ["h", "b", "m", "v"]
    assert norm.outputs[0].name == "n2"


def test_values_of_equal_meaning_keep_their_names_and_others_lose_them():
    """The value behind a fold has the name of the norm's result; the name of the raw convolution is gone."""
    result = rewrite(load(PRE_ACTIVATION))
    names = {output.name for node in result.model.graph for output in node.outputs}
    assert {"n1", "r1", "s", "n2", "y"} <= names
    assert "a" not in names
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 2, 4, 4))}
    fetch = ["n1", "s", "n2", "y"]
    old, new = (Evaluator(model).run(feeds, fetch=fetch) for model in (load(PRE_ACTIVATION), result.model))
    for name in fetch:
        np.testing.assert_allclose(new[name], old[name], rtol=1e-6, atol=1e-6)  # weights are float32


def test_metadata_and_dynamic_dimensions_are_kept():
    model = load(PRE_ACTIVATION)
    model.metadata_props["author"] = "someone"
    result = rewrite(model)
    assert result.model.metadata_props["author"] == "someone"
    assert [dim if isinstance(dim, int) else dim.value for dim in result.model.graph.inputs[0].shape] == ["N", 2, 4, 4]


def test_the_canonical_model_names_each_norm_and_folds_nothing():
    result = rewrite(load(PRE_ACTIVATION))
    norms = [node for node in result.canonical.graph if node.op_type == "BatchNormalization"]
    assert len(norms) == 2
    assert [node.metadata_props["normdeploy.where"] for node in norms] == [row.where for row in result.ledger]


def test_nothing_internal_is_left():
    result = rewrite(load(PRE_ACTIVATION))
    assert {node.domain for node in result.model.graph} == {""}
    assert "normdeploy" not in result.model.opset_imports
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)


def test_bodies_of_control_flow_are_rewritten_where_they_stand():
    model = load("""
agraph (bool flag, float[N, 2, 4] x) => (float[N, 3, 4] y)
<float[3, 2, 1] w = {1, 2, 3, 4, 5, 6}, float[3] g = {1, 2, 3}, float[3] b = {0.5, -1, 2}, float[3] m = {0.1, 0.2, 0.3},
 float[3] v = {1, 2, 3}>
{
    y = If (flag) <
        then_branch = one () => (float[N, 3, 4] y1) { a1 = Conv(x, w)  y1 = BatchNormalization(a1, g, b, m, v) },
        else_branch = two () => (float[N, 3, 4] y2) { y2 = Conv(x, w) }
    >
}
""")
    result = rewrite(model)
    assert result.ledger.counts()["folded"] == 1
    proto = ir.to_proto(result.model)
    onnx.checker.check_model(proto, full_check=True)
    names = [item.name for item in proto.graph.initializer]
    for attribute in proto.graph.node[0].attribute:
        names += [item.name for item in attribute.g.initializer]
        assert [node.op_type for node in attribute.g.node] == ["Conv"]
    assert not [name for name, count in Counter(names).items() if count > 1], "a name may not repeat an outer one"
    x = np.random.default_rng(0).normal(size=(2, 2, 4))
    for flag in (True, False):
        feeds = {"flag": np.array(flag), "x": x}
        old, new = Evaluator(model).run(feeds)["y"], Evaluator(result.model).run(feeds)["y"]
        np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-6)


def test_a_norm_that_reads_a_value_of_the_graph_around_it_stays():
    model = load("""
agraph (bool flag, float[N, 2, 4] x) => (float[N, 3, 4] y)
<float[3, 2, 1] w = {1, 2, 3, 4, 5, 6}, float[3] g = {1, 2, 3}, float[3] b = {0.5, -1, 2}, float[3] m = {0.1, 0.2, 0.3},
 float[3] v = {1, 2, 3}>
{
    a = Conv(x, w)
    y = If (flag) <
        then_branch = one () => (float[N, 3, 4] y1) { y1 = BatchNormalization(a, g, b, m, v) },
        else_branch = two () => (float[N, 3, 4] y2) { y2 = Relu(a) }
    >
}
""")
    (row,) = rewrite(model).ledger
    assert row.action == "kept"
    assert "outside this control-flow body" in row.reason


def test_functions_are_inlined():
    model = parser.parse_model("""
<ir_version: 8, opset_import: ["" : 18, "local" : 1]>
agraph (float[N, 2, 4] x) => (float[N, 3, 4] y)
<float[3, 2, 1] w = {1, 2, 3, 4, 5, 6}, float[3] g = {1, 2, 3}, float[3] b = {0.5, -1, 2}, float[3] m = {0.1, 0.2, 0.3},
 float[3] v = {1, 2, 3}>
{ y = local.block(x, w, g, b, m, v) }
<domain: "local", opset_import: ["" : 18]>
block (x, w, g, b, m, v) => (y) { a = Conv(x, w)  y = BatchNormalization(a, g, b, m, v) }
""")
    result = rewrite(ir.from_proto(model))
    assert [node.op_type for node in result.model.graph] == ["Conv"]
    assert result.ledger.counts()["folded"] == 1


def test_a_wrong_fold_never_ships(monkeypatch):
    """If a rule gets its algebra wrong, the check of the operator names rule and site."""
    from normdeploy.rewrite.gauge.rules import linear

    right = linear.rescale
    monkeypatch.setattr(
        linear,
        "rescale",
        lambda edit, at, weight, factor, divisor, **more: right(edit, at, weight, factor, divisor[::-1], **more),
    )
    with pytest.raises(RewriteError, match="gauge of Conv") as caught:
        rewrite(load(PRE_ACTIVATION))
    assert caught.value.rule == "gauge of Conv"
    assert caught.value.site


def chain(nodes: int) -> ir.Model:
    """Conv (1 x 1) -> BatchNormalization -> Relu, over and over."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    made, initializers, value = [], [], "x"
    for index in range(nodes // 3):
        arrays = {f"w{index}": rng.normal(size=(2, 2, 1))}
        arrays |= {f"{name}{index}": rng.uniform(0.5, 2, 2) for name in "gbmv"}
        initializers += [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
        made.append(helper.make_node("Conv", [value, f"w{index}"], [f"c{index}"]))
        parameters = [f"{name}{index}" for name in "gbmv"]
        made.append(helper.make_node("BatchNormalization", [f"c{index}", *parameters], [f"n{index}"]))
        made.append(helper.make_node("Relu", [f"n{index}"], [f"r{index}"]))
        value = f"r{index}"
    values = [helper.make_tensor_value_info(name, 1, ["N", 2, 3]) for name in ("x", value)]
    graph = helper.make_graph(made, "chain", values[:1], values[1:], initializers)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


@pytest.mark.slow
def test_time_grows_linearly():
    """Four times the nodes take at most seven times the time, up to a chain of 10,000 nodes."""
    seconds = []
    for nodes in (2_500, 10_000):
        model = chain(nodes)
        started = time.perf_counter()
        result = rewrite(model)
        seconds.append(time.perf_counter() - started)
        assert result.ledger.counts()["folded"] == nodes // 3
    assert seconds[1] < 7 * seconds[0], seconds


def test_a_long_chain_of_other_operators_ends_the_search():
    """A map behind more operators than a search visits stays and says so."""
    text = "\n".join(f"t{index + 1} = Transpose<perm = [0, 2, 1]>(t{index})" for index in range(200))
    model = load(f"""
agraph (float[N, 2, 2] x) => (float[N, 2, 2] y)
<float[2, 2, 1] w = {{1, 2, 3, 4}}, float[2, 1] s = {{2, 3}}>
{{ t0 = Conv(x, w) {text} y = Mul(t200, s) }}
""")
    result = rewrite(model)
    # round trips of transposes are removed before the second search, which then finds the convolution
    assert result.ledger.counts()["folded"] + result.ledger.counts()["kept"] == 1
    x = np.random.default_rng(0).normal(size=(2, 2, 2))
    np.testing.assert_allclose(Evaluator(result.model).run({"x": x})["y"], Evaluator(model).run({"x": x})["y"])


def test_torch_keeps_its_number_of_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        rewrite(
            ir.from_onnx_text('<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = Neg(x) }')
        )
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
