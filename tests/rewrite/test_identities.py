"""Identity, Dropout in evaluation and what keeps each size leave the graph; Dropout in training stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from node_kinds import kinds

from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

HEAD = (
    '<ir_version: 8, opset_import: ["" : {opset}]> g (float[n,4] x) => (float[n,{columns}] y{more}) {constants}'
    " {{ {body} }}"
)


def rewritten(body: str, *, opset: int = 18, more: str = "", constants: str = "", columns: str = "4") -> ir.Model:
    model = ir.from_onnx_text(HEAD.format(opset=opset, columns=columns, more=more, constants=constants, body=body))
    result = rewrite(model).model
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    assert [value.name for value in result.graph.outputs] == [value.name for value in model.graph.outputs]
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    expected, got = (Evaluator(graph).run(feeds) for graph in (model, result))
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name].numpy(), value.numpy())
    return result


@pytest.mark.parametrize(
    ("body", "options", "left"),
    [
        ("d = Dropout (x) y = Relu (d)", {}, ["Relu"]),
        ("d = Dropout <ratio = 0.3> (x) y = Relu (d)", {"opset": 11}, ["Relu"]),
        ("d, m = Dropout <ratio = 0.3> (x) y = Relu (d)", {"opset": 7}, ["Relu"]),
        ("d = Dropout (x, r, t) y = Relu (d)", {"constants": "<float r = {0.5}, bool t = {0}>"}, ["Relu"]),
        ("d = Dropout (x, r) e = Dropout (d) y = Relu (e)", {"constants": "<float r = {0.5}>"}, ["Relu"]),
        ("d = Relu (x) y = Dropout (d)", {}, ["Relu"]),
        ("d = Relu (x) z = Dropout (d) y = Sigmoid (d)", {"more": ", float[n,4] z"}, ["Relu", "Sigmoid"]),
        ("y = Dropout (x)", {}, ["Identity"]),
        ("d = Identity (x) y = Relu (d)", {}, ["Relu"]),
        ("a = Concat <axis = 1> (x) b = Sum (a) c = Mean (b) d = Max (c) e = Min (d) y = Relu (e)", {}, ["Relu"]),
        ("d = Relu (x) y = Identity (d)", {}, ["Relu"]),
        ("d = Relu (x) z = Identity (d) y = Sigmoid (d)", {"more": ", float[n,4] z"}, ["Relu", "Sigmoid"]),
        ("y = Identity (x)", {}, ["Identity"]),
        ("a = Relu (x) b = Exp (x) y = Where (c, a, b)", {"constants": "<bool c = {1}>"}, ["Relu"]),
        ("a = Relu (x) b = Exp (x) y = Where (c, a, b)", {"constants": "<bool[4] c = {0, 0, 0, 0}>"}, ["Exp"]),
        (
            "a = Relu (x) b = Exp (x) y = Where (c, a, b)",
            {"constants": "<bool[4] c = {1, 1, 0, 1}>"},
            ["Relu", "Exp", "Where"],
        ),
        (
            "a = Relu (x) b = Exp (x) w = Where (c, a, b) y = Sigmoid (w)",
            {"constants": "<bool c = {0}>"},
            ["Exp", "Sigmoid"],
        ),
        ("b = Exp (x) y = Where (c, k, b)", {"constants": "<bool c = {1}, float k = {2}>"}, ["Exp", "Where"]),
        ("b = Exp (x) y = Where (c, x, b)", {"constants": "<bool c = {1}>"}, ["Identity"]),
        ("z = Relu (x) y = Identity (z)", {"more": ", float[n,4] z"}, ["Relu", "Identity"]),
        ("z = Relu (x) y = Dropout (z)", {"more": ", float[n,4] z"}, ["Relu", "Identity"]),
    ],
)
def test_an_inactive_one_leaves(body, options, left):
    assert kinds(rewritten(body, **options)) == left


CUT = "a = Relu (x) b = Slice (x, s, e, d) "
CUTS = "int64[1] s = {4}, int64[1] e = {9223372036854775807}, int64[1] d = {1}"


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (CUT + "c = Concat <axis = 1> (a, b) y = Exp (c)", ["Relu", "Exp"]),
        (CUT + "c = Concat <axis = -1> (b, a, b) y = Exp (c)", ["Relu", "Exp"]),
        (
            CUT + "c = Concat <axis = 1> (a, b, x) f = Exp (c) y = Slice (f, d, s, d)",
            ["Relu", "Concat", "Exp", "Slice"],
        ),
        (CUT + "c = Concat <axis = 1> (b, b) y = Concat <axis = 1> (c, a)", ["Relu"]),
        (CUT + "c = Concat <axis = 1> (b, b) f = Exp (c) y = Concat <axis = 1> (f, a)", ["Relu"]),
    ],
)
def test_parts_without_an_element_are_not_joined(body, left):
    assert kinds(rewritten(body, constants=f"<{CUTS}>", columns="m")) == left


ALL = "<int64[1] o = {{0}}, int64[1] e = {{{end}}}, int64[1] d = {{{axis}}}, int64[1] f = {{{step}}}>"


@pytest.mark.parametrize(
    ("end", "axis", "step", "left"),
    [
        (9223372036854775807, 0, 1, ["Relu"]),
        (2147483647, 0, 1, ["Relu"]),
        (4, 1, 1, ["Relu"]),
        (5, -1, 1, ["Relu"]),
        (3, 1, 1, ["Slice", "Relu"]),
        (-1, 1, 1, ["Slice", "Relu"]),
        (1000, 0, 1, ["Slice", "Relu"]),  # the size is not known
        (2147483647, 1, 2, ["Slice", "Relu"]),
    ],
)
def test_a_slice_of_all_there_is_leaves(end, axis, step, left):
    columns = {3: "3", -1: "3"}.get(end, "2" if step == 2 else "4")
    constants = ALL.format(end=end, axis=axis, step=step)
    assert kinds(rewritten("a = Slice (x, o, e, d, f) y = Relu (a)", constants=constants, columns=columns)) == left


def test_a_slice_of_all_without_axes_or_by_computed_bounds():
    constants = "<int64[2] o = {0, 0}, int64[2] e = {9223372036854775807, 4}>"
    assert kinds(rewritten("a = Slice (x, o, e) y = Relu (a)", constants=constants)) == ["Relu"]
    body = "e = Shape (x) a = Slice (x, o, e) y = Relu (a)"
    assert kinds(rewritten(body, constants="<int64[2] o = {0, 0}>"))[-2:] == ["Slice", "Relu"]


def test_sizes_of_a_reshape_are_told_by_its_target():
    """torch writes var(keepdim=True) as Reshape and Expand to the shape that the Reshape has already."""
    body = (
        "b = Shape <start = 0, end = 1> (x) t = Concat <axis = 0> (b, two, two) r = Reshape (x, t) "
        "a = Relu (r) f = Expand (a, t) y = Flatten (f)"
    )
    left = kinds(rewritten(body, constants="<int64[1] two = {2}>"))
    assert left == ["Reshape", "Relu", "Flatten"]


SHAPE = "s = Shape (x) "


@pytest.mark.parametrize(
    ("body", "constants", "left"),
    [
        ("d = Reshape (x, t) y = Relu (d)", "<int64[2] t = {-1, 4}>", ["Relu"]),
        ("d = Reshape (x, t) y = Relu (d)", "<int64[2] t = {0, 4}>", ["Relu"]),
        (SHAPE + "d = Reshape <allowzero = 1> (x, s) y = Relu (d)", "", ["Relu"]),
        (SHAPE + "d = Expand (x, s) y = Relu (d)", "", ["Relu"]),
        ("d = Expand (x, t) y = Relu (d)", "<int64[2] t = {1, 4}>", ["Relu"]),
        ("d = Expand (x, t) y = Relu (d)", "<int64[2] t = {1, 1}>", ["Relu"]),
        ("b = Shape <end = 1> (x) t = Concat <axis = 0> (b, f) d = Reshape (x, t) y = Relu (d)",
         "<int64[1] f = {-1}>", ["Relu"]),
        # other sizes, or a number that may be the size of a dimension and need not
        ("d = Reshape (x, t) e = Relu (d) y = Reshape (e, u)", "<int64[2] t = {4, -1}, int64[2] u = {-1, 4}>",
         ["Reshape", "Relu", "Reshape"]),
        ("d = Expand (x, t) y = Relu (d)", "<int64[2] t = {3, 4}>", ["Expand", "Relu"]),
        ("d = Expand (x, t) y = ReduceSum <keepdims = 0> (d, a)", "<int64[3] t = {1, 1, 1}, int64[1] a = {0}>",
         ["Expand", "ReduceSum"]),
    ],
)  # fmt: skip
def test_what_keeps_each_size_leaves(body, constants, left):
    assert kinds(rewritten(body, constants=constants)) == left


ROWS = "b = Shape <start = 0, end = 1> (x) n = Squeeze (b) "


@pytest.mark.parametrize(
    ("split", "size", "at", "left"),
    [
        (" <axis = 0>", "n", "0", ["Relu"]),
        (" <axis = -2, keepdims = 0>", "n", "-1", ["Relu"]),  # keepdims is not read where sizes are given
        ("", "b", "0", ["Relu"]),
        (" <axis = 1>", "n", "0", ["SplitToSequence", "SequenceAt", "Relu"]),  # another axis' size
        ("", "k", "0", ["SplitToSequence", "SequenceAt", "Relu"]),  # three rows, as many as are fed here
    ],
)
def test_the_only_part_of_a_sequence_is_what_was_split(split, size, at, left):
    body = ROWS + f"q = SplitToSequence{split} (x, {size}) a = SequenceAt (q, i) y = Relu (a)"
    found = kinds(rewritten(body, constants=f"<int64 i = {{{at}}}, int64 k = {{3}}>", columns="m"))
    assert [kind for kind in found if kind not in ("Shape", "Squeeze")] == left


def test_parts_of_half_of_the_rows_stay():
    body = ROWS + "h = Div (n, k) q = SplitToSequence (x, h) a = SequenceAt (q, i) y = Relu (a)"
    text = HEAD.format(opset=18, columns="4", more="", constants="<int64 i = {0}, int64 k = {2}>", body=body)
    result = rewrite(ir.from_onnx_text(text)).model
    feeds = {"x": np.arange(16.0).reshape(4, 4)}
    np.testing.assert_array_equal(Evaluator(result).run(feeds)["y"].numpy(), feeds["x"][:2])


def test_a_target_that_other_operators_read_stays():
    body = "s = Shape (x) d = Reshape (x, s) y = Relu (d) z = Add (s, s)"
    assert kinds(rewritten(body, more=", int64[2] z")) == ["Shape", "Relu", "Add"]


def test_a_mask_and_a_result_that_are_outputs():
    model = rewritten("d = Relu (x) y, m = Dropout (d)", more=", bool[n,4] m")
    assert sorted(kinds(model)) == ["Dropout", "Relu"]
    assert model.graph.outputs[0].producer().op_type == "Relu"


def test_a_mask_that_is_read_is_still_made():
    model = rewritten("d, m = Dropout (x) y = Relu (d)", more=", bool[n,4] m")
    assert sorted(kinds(model)) == ["Dropout", "Relu"]
    relu = next(node for node in model.graph if node.op_type == "Relu")
    assert relu.inputs[0].name == "x"


@pytest.mark.parametrize("flag", ["<float r = {0.5}, bool t = {1}>", None])
def test_one_in_training_stays(flag):
    if flag is None:
        text = '<ir_version: 8, opset_import: ["" : 18]> g (float[n,4] x, bool t) => (float[n,4] y) {{ {body} }}'
        model = ir.from_onnx_text(text.format(body="d = Dropout (x, , t) y = Relu (d)"))
    else:
        model = ir.from_onnx_text(
            HEAD.format(opset=18, columns="4", more="", constants=flag, body="d = Dropout (x, r, t) y = Relu (d)")
        )
    assert kinds(rewrite(model).model) == ["Dropout", "Relu"]
