"""Each finding that a graph alone can give, and its absence next to it."""

import json
from dataclasses import replace

import graph_builder as build
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from normdeploy.errors import GraphError, ModelError
from normdeploy.graph import save_graph
from normdeploy.inspection import inspect
from normdeploy.inspection.graph_sites import stored_norms
from normdeploy.inspection.site import StoredNorm
from normdeploy.inspection.stored_statistics import check_statistics


def kinds(model):
    return {(row.severity, row.kind) for row in inspect(model)}


def one(model, kind):
    rows = inspect(model).of_kind(kind)
    assert len(rows) == 1, rows
    return rows[0]


def test_a_sound_batchnorm_has_no_findings():
    assert len(inspect(build.linear_batchnorm())) == 0


def with_value(index, value, base=1.0, size=6):
    array = np.full(size, base)
    array[index] = value
    return array


@pytest.mark.parametrize(("value", "words"), [(-0.25, "negative"), (np.nan, "NaN"), (np.inf, "infinite")])
def test_an_impossible_variance_is_an_error_with_its_channel(value, words):
    row = one(build.linear_batchnorm(variance=with_value(2, value)), "variance")
    assert row.severity == "error"
    assert row.where == "norm"
    assert words in row.what
    assert row.detail["channels"] == [2]


def test_a_zero_variance_is_a_warning_and_an_error_where_epsilon_vanishes():
    row = one(build.linear_batchnorm(variance=with_value(3, 0.0)), "variance")
    assert row.severity == "warning"
    assert row.detail["factor"] == pytest.approx(1e-5**-0.5, rel=1e-6)
    halves = inspect(build.linear_batchnorm(variance=with_value(3, 0.0), epsilon=1e-8, half=True))
    assert [item.severity for item in halves.of_kind("variance")].count("error") == 1
    assert halves.of_kind("epsilon-underflow")[0].severity == "warning"


def test_an_epsilon_that_only_float16_would_lose_is_a_note():
    assert one(build.linear_batchnorm(epsilon=1e-12), "epsilon-underflow").severity == "note"
    assert not inspect(build.linear_batchnorm(epsilon=1e-7)).of_kind("epsilon-underflow")


def test_statistics_never_updated():
    row = one(build.linear_batchnorm(mean=np.zeros(6), variance=np.ones(6)), "never-updated")
    assert row.severity == "warning"
    assert not inspect(build.linear_batchnorm(mean=np.zeros(6))).of_kind("never-updated")
    assert not inspect(build.linear_batchnorm(variance=np.ones(6))).of_kind("never-updated")


def test_dead_channels():
    row = one(build.linear_batchnorm(scale=with_value(4, 0.0)), "dead-channels")
    assert row.detail["channels"] == [4]
    assert "1 of 6 channels (4)" in row.what


def test_amplified_rounding_is_measured():
    mean, variance = with_value(1, 500.0), with_value(1, 1e-6)
    model = build.linear_batchnorm(mean=mean, variance=variance, scale=np.ones(6), epsilon=1e-9)
    row = one(model, "amplified-rounding")
    assert row.detail["channels"] == [1]
    # what rounding the channel's input to float32 does: at most half a unit in the last place of 500
    expected = 2.0**-24 * 500 / np.sqrt(1e-6 + 1e-9)
    assert row.detail["lost"] == pytest.approx(expected, rel=1e-3)
    assert not inspect(build.linear_batchnorm(mean=mean)).of_kind("amplified-rounding")


def test_a_bias_in_front_is_redundant_unless_it_is_zero_or_read_elsewhere():
    row = one(build.linear_batchnorm(bias=np.ones(6)), "redundant-bias")
    assert (row.severity, row.where, row.detail["norm"]) == ("note", "linear", "norm")
    assert not inspect(build.linear_batchnorm(bias=np.zeros(6))).of_kind("redundant-bias")
    model = build.linear_batchnorm(bias=np.ones(6))
    model.graph.outputs.append(model.graph.node(0).outputs[0])
    assert not inspect(model).of_kind("redundant-bias")


def test_a_fold_that_widens_the_weight_range_is_measured_in_bits():
    weight, variance = np.ones((4, 6)), with_value(5, 1e-4)
    row = one(build.linear_batchnorm(weight=weight, variance=variance, scale=np.ones(6), epsilon=0.0), "wider-weights")
    assert row.where == "linear"
    assert row.detail["bits"] == pytest.approx(np.log2(100.0), rel=1e-4)
    assert row.detail["channel"] == 5


@pytest.mark.parametrize(
    ("layer", "shape", "axis"),
    [
        ("Conv<group=2>", (6, 2, 1, 1), 0),
        ("ConvTranspose", (4, 6, 1, 1), 1),
        ("ConvTranspose<group=2>", (4, 3, 1, 1), 1),
        ("MatMul", (4, 6), 1),
    ],
)
def test_weights_of_any_linear_operator_are_measured_by_its_output_channels(layer, shape, axis):
    """The middle channel of the first group is ten times as wide, and its variance 1e-4."""
    weight = np.ones(shape, np.float32)
    np.moveaxis(weight, axis, 0)[1] *= 10
    if layer.endswith("group=2>") and axis == 1:
        weight[2:] = 1.0  # rows of the second group write the channels 3 to 5
    rank = len(shape)
    size, out = ("2,4,3,3", "a,6,b,c") if rank == 4 else ("2,4", "a,6")
    model = ir.from_onnx_text(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[{size}] x) => (float[{out}] y)'
        f" {{ h = {layer} (x, w) y = BatchNormalization <epsilon = 0.0> (h, scale, shift, mean, variance) }}"
    )
    arrays = {
        "w": weight,
        "scale": np.ones(6),
        "shift": np.zeros(6),
        "mean": np.zeros(6),
        "variance": with_value(1, 1e-4),
    }
    for name, array in arrays.items():
        old = next(v for node in model.graph for v in node.inputs if v is not None and v.name == name)
        new = ir.Value(name=name, const_value=ir.tensor(np.asarray(array, np.float32), name=name))
        old.replace_all_uses_with(new)
        model.graph.register_initializer(new)
    row = one(model, "wider-weights")
    assert row.detail["channel"] == 1
    assert row.detail["before"] == pytest.approx(10.0)
    assert row.detail["after"] == pytest.approx(1000.0, rel=1e-4)


@pytest.mark.parametrize("root", ["Sqrt", "Pow"])
@pytest.mark.parametrize("order", ["div", "first", "reciprocal", "combined"])
@pytest.mark.parametrize("outside", [False, True])
def test_handwritten_spellings_are_read_as_what_they_store(root, order, outside):
    rng = np.random.default_rng(3)
    mean, scale, shift = (rng.standard_normal(6).astype(np.float32) for _ in range(3))
    variance = rng.uniform(0.5, 2, 6).astype(np.float32)
    model = build.handwritten(
        mean=mean, variance=variance, scale=scale, shift=shift, epsilon=1e-3, root=root, order=order, outside=outside
    )
    (site,) = stored_norms(model)
    np.testing.assert_array_equal(site.variance, variance)
    np.testing.assert_array_equal(site.mean, mean)
    assert site.epsilon == pytest.approx(1e-3, rel=1e-6)
    assert site.outside is outside
    assert site.axis == 1
    assert site.where == "norm"
    if order != "combined":  # there the scale is part of a constant expression
        np.testing.assert_array_equal(site.scale, scale)
    assert [row.kind for row in inspect(model)] == (["outside-root"] if outside else [])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5), st.sampled_from(["div", "first", "reciprocal", "combined"]))
def test_handwritten_statistics_are_checked_as_the_operators_are(channel, order):
    variance = with_value(channel, -2.0)
    model = build.handwritten(mean=np.ones(6), variance=variance, scale=np.ones(6), shift=np.ones(6), order=order)
    row = one(model, "variance")
    assert row.severity == "error"
    assert row.detail["channels"] == [channel]


def test_running_layernorm_statistics_are_an_error():
    """Statistics per row of a (5, 6) batch, scale per feature."""
    rng = np.random.default_rng(0)
    row = one(
        build.handwritten(
            mean=rng.standard_normal((5, 1)),
            variance=rng.uniform(0.5, 2, (5, 1)),
            scale=np.ones(6),
            shift=np.zeros(6),
            x_shape=(5, 6),
        ),
        "running-layernorm",
    )
    assert row.severity == "error"
    assert row.detail["shape"] == [5, 1]


def test_channels_first_statistics_are_no_running_layernorm():
    rng = np.random.default_rng(0)
    model = build.handwritten(
        mean=rng.standard_normal((6, 1)),
        variance=rng.uniform(0.5, 2, (6, 1)),
        scale=rng.uniform(0.5, 2, (6, 1)),
        shift=np.ones((6, 1)),
        x_shape=("batch", 6, 5),
    )
    assert len(inspect(model)) == 0


TRAINING = """
<ir_version: 10, opset_import: ["": 20]>
g (float[batch, 3] x) => (float[batch, 3] y)
<float[3] scale = {1, 2, 3}, float[3] shift = {0, 1, 0}, float[3] mean = {1, 2, 1}, float[3] variance = {1, 2, 2}>
{
  [norm] y, nm, nv = BatchNormalization <training_mode: int = 1> (x, scale, shift, mean, variance)
}
"""
BY_HAND = """
<ir_version: 10, opset_import: ["": 20]>
g (float[batch, 3] x) => (float[batch, 3] y)
<int64[1] axes = {0}, float e = {0.00001}>
{
  [mean] m = ReduceMean <keepdims: int = 1> (x, axes)
  c = Sub(x, m)
  s = Mul(c, c)
  v = ReduceMean <keepdims: int = 1> (s, axes)
  ve = Add(v, e)
  r = Sqrt(ve)
  y = Div(c, r)
}
"""
CENTRED = """
<ir_version: 10, opset_import: ["": 20]>
g (float[batch, 3] x) => (float[batch, 3] y)
<int64[1] axes = {0}>
{
  a = Exp(x)
  [mean] m = ReduceMean <keepdims: int = 1> (a, axes)
  y = Sub(a, m)
}
"""


@pytest.mark.parametrize("text", [TRAINING, BY_HAND, CENTRED], ids=["operator", "by hand", "only centred"])
def test_batch_statistics_are_an_error_with_a_demonstration(text):
    row = one(ir.from_onnx_text(text), "batch-statistics")
    assert row.severity == "error"
    assert "the same sample gives y = [" in row.what
    assert row.detail["largest"] > 0.01
    assert row.where in ("norm", "mean")


def test_the_same_normalization_over_features_is_none():
    per_row = BY_HAND.replace("axes = {0}", "axes = {1}")
    assert not inspect(ir.from_onnx_text(per_row)).errors


def test_another_mixture_of_samples_is_a_warning():
    row = one(
        ir.from_onnx_text(
            """
            <ir_version: 10, opset_import: ["": 20]>
            g (float[batch, 3] x) => (float[batch, 3] y) { [soft] y = Softmax <axis: int = 0> (x) }
            """
        ),
        "batch-dependence",
    )
    assert (row.severity, row.where) == ("warning", "soft")


def test_a_dropout_in_training_mode_is_an_error_and_in_evaluation_nothing():
    text = """
    <ir_version: 10, opset_import: ["": 20]>
    g (float[batch, 3] x) => (float[batch, 3] y)
    <float p = {0.5}, bool on = {1}> { [drop] y = Dropout(x, p, on) }
    """
    row = one(ir.from_onnx_text(text), "random")
    assert (row.severity, row.where) == ("error", "drop")
    assert len(inspect(ir.from_onnx_text(text.replace("{1}", "{0}")))) == 0


def layernorm(*, correction=0, epsilon=1e-5, outside=False, single_pass=False, width=8) -> ir.Model:
    node = helper.make_node
    nodes = [node("ReduceMean", ["x", "axes"], ["m"], keepdims=1), node("Sub", ["x", "m"], ["c"])]
    if single_pass:
        nodes += [
            node("Mul", ["x", "x"], ["xx"]),
            node("ReduceMean", ["xx", "axes"], ["mxx"], keepdims=1),
            node("Mul", ["m", "m"], ["mm"]),
            node("Sub", ["mxx", "mm"], ["v0"]),
        ]
    else:
        nodes += [node("Mul", ["c", "c"], ["s"]), node("ReduceMean", ["s", "axes"], ["v0"], keepdims=1)]
    nodes.append(node("Mul", ["v0", "ratio"], ["v"]))
    if outside:
        nodes += [node("Sqrt", ["v"], ["d"]), node("Add", ["d", "e"], ["r"])]
    else:
        nodes += [node("Add", ["v", "e"], ["ve"]), node("Sqrt", ["ve"], ["r"])]
    nodes.append(node("Div", ["c", "r"], ["y"], name="norm"))
    shape = ["batch", width]
    arrays = {
        "axes": np.array([1]),
        "e": np.float32(epsilon),
        "ratio": np.float32(width / (width - correction)),
    }
    return build.model_of(nodes, [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)], arrays)


def test_stock_layernorm_convention_has_no_note():
    assert kinds(layernorm()) == set()


# widths at which epsilon (n - 1) / n looks round too are among them
@pytest.mark.parametrize("width", [4, 8, 10, 100])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_an_unbiased_variance_is_noted_with_its_size(epsilon, width):
    row = one(layernorm(correction=1, epsilon=epsilon, width=width), "unbiased-variance")
    assert row.detail["count"] == width
    assert f"{1 - np.sqrt((width - 1) / width):.2%}" in row.what
    assert not inspect(layernorm(epsilon=epsilon, width=width)).of_kind("unbiased-variance")


def test_an_epsilon_outside_the_root_is_noted_in_the_authors_units():
    row = one(layernorm(correction=1, epsilon=1e-3, outside=True), "outside-root")
    assert row.detail["epsilon"] == pytest.approx(1e-3, rel=1e-3)


def test_a_single_pass_variance_is_noted():
    assert kinds(layernorm(single_pass=True)) == {("note", "single-pass-variance")}


def test_no_epsilon_is_a_warning():
    assert ("warning", "no-epsilon") in kinds(layernorm(epsilon=0.0))


def test_files_and_refusals(tmp_path):
    path = tmp_path / "net.onnx"
    save_graph(build.linear_batchnorm(scale=with_value(0, 0.0)), path)
    findings = inspect(path)
    assert [row.kind for row in findings] == ["dead-channels"]
    data = json.loads(findings.to_json())
    assert data["counts"] == {"error": 0, "warning": 0, "note": 1}
    assert data["findings"][0]["where"] == "norm"
    assert "remedy:" in str(findings)
    with pytest.raises(GraphError):
        inspect(tmp_path / "none.onnx")
    with pytest.raises(ModelError):
        inspect(3)


def test_the_graph_is_left_as_it_is():
    model = build.linear_batchnorm(bias=np.ones(6))
    before = ir.to_proto(model).SerializeToString()
    inspect(model)
    assert ir.to_proto(model).SerializeToString() == before


BODY = """
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[n, 4] x, bool c) => (float[n, 4] y, float[3, n, 4] steps)
    <float[4] m = {1, 2, 3, 4}, float[4] v = {-1, 2, 3, 4}, float e = {0.00001}, int64 count = {3}>
    {
        y = If (c) <
            then_branch = left () => (float[n, 4] a) {
                w = Add (v, e)
                s = Sqrt (w)
                d = Sub (x, m)
                a = Div (d, s)
            },
            else_branch = right () => (float[n, 4] b) { b = Neg (x) }
        >
        last, steps = Loop (count, c, x) <body = step (int64 i, bool going, float[n, 4] h) =>
                (bool go, float[n, 4] next, float[n, 4] seen) {
            go = Identity (going)
            next = Tanh (h)
            seen = Identity (next)
        }>
    }
"""


def test_a_norm_in_a_branch_is_looked_at_and_static_outputs_are_no_batch():
    """Three steps stacked on axis 0 are not three samples, though the demonstration's batch is as long."""
    (row,) = inspect(ir.from_onnx_text(BODY))
    assert (row.severity, row.kind, row.detail["channels"]) == ("error", "variance", [0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("word", ["scale", "shift", "mean"])
def test_numbers_that_are_none_are_errors(word: str, value: float) -> None:
    site = StoredNorm("n", np.ones(3), 1e-5, np.ones(3), np.ones(3), np.ones(3))
    broken = np.array([1.0, value, 1.0])
    (finding,) = [f for f in check_statistics(replace(site, **{word: broken})) if f.severity == "error"]
    assert finding.kind == "not-finite"
    assert word in finding.what
    assert finding.detail["channels"] == [1]


@pytest.mark.parametrize("epsilon", [-1e-5, -np.inf, np.inf, np.nan, -2.0])
def test_an_epsilon_that_is_none_is_an_error(epsilon: float) -> None:
    site = StoredNorm("n", np.ones(3), epsilon, np.ones(3), np.ones(3), np.ones(3))
    found = [f for f in check_statistics(site) if f.kind == "epsilon"]
    assert [f.severity for f in found] == ["error"]
    assert json.dumps(found[0].to_dict(), allow_nan=False)


@pytest.mark.parametrize(("bias", "told"), [([1.0, 0.0, 2.0], True), ([0.0, 0.0, 0.0], False), ([1.0], False)])
def test_a_bias_added_to_a_product_in_front_is_redundant(bias, told):
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[n,4] x) => (float[n,3] y)
        <float[3] s = {1, 2, 3}, float[3] t = {0, 1, 0}, float[3] m = {1, 0, 2}, float[3] v = {1, 4, 2}>
        { p = MatMul(x, w) a = Add(c, p) y = BatchNormalization(a, s, t, m, v) }"""
    proto = onnx.parser.parse_model(text)
    weight = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(bias, np.float32), "c"))
    found = inspect(ir.from_proto(proto)).of_kind("redundant-bias")
    assert bool(found) == told
    assert [row.severity for row in found] == ["note"] * told


def test_findings_are_a_sequence_that_says_when_it_is_empty():
    assert str(inspect(build.linear_batchnorm())) == "nothing wrong or risky found"
    rows = inspect(build.linear_batchnorm(variance=with_value(2, -1.0)))
    assert rows[0] == next(iter(rows))
    assert rows[0].severity == "error"
