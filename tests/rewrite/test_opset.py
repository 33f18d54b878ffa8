"""Graphs of old operator sets compute the same after they are raised; names, metadata and foreign operators survive."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from onnxruntime_outputs import run_onnxruntime

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator
from normdeploy.rewrite.opset import RULES_OPSET, RaiseOpset, changed_form, raise_opset

NODES = {
    "Softmax": (7, "y = Softmax <axis = 1> (x)"),
    "LogSoftmax": (11, "y = LogSoftmax (x)"),
    "Squeeze": (7, "p = GlobalAveragePool (x)\n y = Squeeze <axes = [2, 3]> (p)"),
    "Unsqueeze": (8, "y = Unsqueeze <axes = [0, 3]> (x)"),
    "Clip": (7, "y = Clip <min = -0.5, max = 0.5> (x)"),
    "Dropout": (7, "y = Dropout <ratio = 0.3> (x)"),
    "Pad": (7, 'y = Pad <mode = "reflect", pads = [0, 0, 1, 2, 0, 0, 0, 1]> (x)'),
    "Pad constant": (9, "y = Pad <pads = [0, 0, 1, 2, 0, 0, 0, 1], value = 2.5> (x)"),
    "Slice": (9, "y = Slice <axes = [1, 3], starts = [1, 0], ends = [3, -1]> (x)"),
    "Split": (11, "y, rest = Split <axis = 1, split = [1, 3]> (x)"),
    "ReduceMean": (7, "y = ReduceMean <axes = [1, 3], keepdims = 0> (x)"),
    "ReduceSum": (12, "y = ReduceSum <axes = [1], keepdims = 1> (x)"),
    "ReduceL2": (13, "y = ReduceL2 <axes = [-1]> (x)"),
    "TopK": (9, "y, i = TopK <axis = 3, k = 2> (x)"),
    "Upsample nearest": (7, 'y = Upsample <mode = "nearest", scales = [1.0, 1.0, 2.0, 3.0]> (x)'),
    "Upsample linear": (7, 'y = Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 2.0]> (x)'),
    "Upsample 9": (
        9,
        's = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> ()\n y = Upsample <mode = "linear"> (x, s)',
    ),
    "Resize 10": (10, 's = Constant <value = float[4] {1.0, 1.0, 1.7, 1.7}> ()\n y = Resize <mode = "linear"> (x, s)'),
    "Resize 10 nearest": (10, "s = Constant <value = float[4] {1.0, 1.0, 1.7, 1.7}> ()\n y = Resize (x, s)"),
    "Resize 10 smaller": (10, "s = Constant <value = float[4] {1.0, 1.0, 0.6, 0.6}> ()\n y = Resize (x, s)"),
    "AveragePool": (7, "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (x)"),
    "MaxPool": (8, "y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)"),
    "Flatten": (7, "y = Flatten (x)"),
    "LeakyRelu": (7, "y = LeakyRelu <alpha = 0.2> (x)"),
    "Cast": (7, "c = Cast <to = 11> (x)\n y = Cast <to = 1> (c)"),
}


@pytest.mark.parametrize("case", NODES)
def test_an_operator_of_an_old_version_computes_the_same(case):
    version, body = NODES[case]
    text = f"""<ir_version: 4, opset_import: ["" : {version}]>
    agraph (float[2,4,5,6] x) => (float y) {{ {body} }}"""
    proto = parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = ir.from_proto(proto)
    RaiseOpset()(model)
    assert model.opset_imports[""] == RULES_OPSET
    raised = ir.to_proto(model)
    onnx.checker.check_model(raised)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 5, 6)).astype(np.float32)}
    expected = run_onnxruntime(proto, feeds, plainly=True)[0]
    np.testing.assert_array_equal(run_onnxruntime(raised, feeds, plainly=True)[0], expected)
    # the float64 evaluator, the verifier's reference, knows both spellings
    for graph in (ir.from_proto(proto), model):
        got = next(iter(Evaluator(graph).run(feeds).values())).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "dtype"), [("float16", np.float16), ("double", np.float64)])
def test_numbers_that_were_attributes_have_the_type_of_what_they_bound(kind, dtype):
    text = f"""<ir_version: 4, opset_import: ["" : 9]> g ({kind}[2,5] x) => ({kind}[2,8] y) {{
        r = Relu (x) c = Clip <min = 0.1, max = 0.7> (r) y = Pad <pads = [0, 1, 0, 2], value = 2.3> (c) }}"""
    model = ir.from_proto(parser.parse_model(text))
    RaiseOpset()(model)
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(dtype)
    low, high, edge = (np.float32(number).astype(dtype) for number in (0.1, 0.7, 2.3))
    expected = np.pad(np.clip(x, low, high), [(0, 0), (1, 2)], constant_values=edge)
    got = run_onnxruntime(ir.to_proto(model), {"x": x}, plainly=True)[0]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, expected)


def test_operators_side_by_side_become_what_each_becomes_alone():
    """onnx converts all of a graph's in one call: values, constants and nodes of one stay apart from another's."""
    for version in (7, 10):
        bodies = [body for first, body in NODES.values() if first == version] * 2
        mine = [re.sub(r"\b(y|p|rest|i|s|c)\b", rf"\1_{at}", body) for at, body in enumerate(bodies)]
        names = [re.findall(r"\by_\d+\b", body)[0] for body in mine]
        text = f"""<ir_version: 4, opset_import: ["" : {version}]>
        agraph (float[2,4,5,6] x) => ({", ".join(f"float {name}" for name in names)}) {{ {" ".join(mine)} }}"""
        proto = parser.parse_model(text)
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")
        model = ir.from_proto(proto)
        RaiseOpset()(model)
        feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 5, 6)).astype(np.float32)}
        for name, expected, found in zip(
            names,
            run_onnxruntime(proto, feeds, plainly=True),
            run_onnxruntime(ir.to_proto(model), feeds, plainly=True),
            strict=True,
        ):
            np.testing.assert_array_equal(found, expected, err_msg=name)


def test_the_one_of_many_that_cannot_be_raised_is_named():
    proto = parser.parse_model("""<ir_version: 4, opset_import: ["" : 9]>
    agraph (float[2,4] x, float[2] s) => (float y, float z) {
      [first] y = Softmax (x)
      [second] z = Upsample (x, s)
    }""")
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(GraphError, match=r"second.* computes its scales"):
        RaiseOpset()(ir.from_proto(proto))


def test_a_whole_network_of_opset_7_keeps_names_metadata_and_dynamic_dimensions():
    rng = np.random.default_rng(0)
    proto = parser.parse_model("""<ir_version: 3, opset_import: ["" : 7]>
    agraph (float[batch,3,h,8] x, float[4,3,3,3] w, float[4] g, float[4] b, float[4] m, float[4] v)
    => (float[batch,4] y) {
        [first] c = Conv <pads = [1, 1, 1, 1]> (x, w)
        [norm] n = BatchNormalization (c, g, b, m, v)
        [drop] d = Dropout (n)
        [six] r = Clip <min = 0.0, max = 6.0> (d)
        [zero] r2 = Clip <min = 0.5, max = 6.0> (r)
        p = GlobalAveragePool (r2)
        [flat] s = Squeeze <axes = [2, 3]> (p)
        y = Softmax (s)
    }""")
    for name, shape in {"w": (4, 3, 3, 3), "g": (4,), "b": (4,), "m": (4,), "v": (4,)}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.random(shape).astype(np.float32), name))
    proto.metadata_props.add(key="author", value="me")
    proto.graph.node[3].metadata_props.add(key="note", value="clip")
    model = ir.from_proto(proto)
    RaiseOpset()(model)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert str(model.graph.inputs[0].shape) == "[batch,3,h,8]"
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert str(model.graph.outputs[0].shape) == "[batch,4]"
    assert model.metadata_props["author"] == "me"
    kept = [node for node in model.graph if node.op_type not in ("Constant",)]
    assert [node.outputs[0].name for node in kept] == ["c", "n", "d", "r", "r2", "p", "s", "y"]
    assert [node.name for node in kept[:5]] == ["first", "norm", "drop", "six", "zero"]
    assert kept[3].metadata_props["note"] == "clip"
    names = [output.name for node in model.graph for output in node.outputs]
    assert len(names) == len(set(names))
    raised = ir.to_proto(model)
    onnx.checker.check_model(raised, full_check=True)
    feeds = {"x": rng.standard_normal((2, 3, 5, 8)).astype(np.float32)}
    np.testing.assert_array_equal(
        run_onnxruntime(raised, feeds, plainly=True)[0], run_onnxruntime(proto, feeds, plainly=True)[0]
    )


def test_operators_outside_the_standard_keep_their_domain():
    model = ir.from_onnx_text("""<ir_version: 7, opset_import: ["" : 11, "com.microsoft" : 1]>
    agraph (float[n,4] x) => (float[n] y) {
        g = com.microsoft.Gelu (x)
        y = ReduceMean <axes = [1], keepdims = 0> (g)
    }""")
    RaiseOpset()(model)
    assert model.graph.node(0).domain == "com.microsoft"
    assert model.opset_imports["com.microsoft"] == 1


def test_a_recent_graph_is_left_as_it_is():
    text = """<ir_version: 10, opset_import: ["" : 20]>
    agraph (float[n,4] x) => (float[n,4] y) { y = Softmax (x) }"""
    model = ir.from_onnx_text(text)
    assert not RaiseOpset()(model).modified
    assert model.opset_imports[""] == 20


def test_an_overridable_initializer_of_a_recent_format_stays_an_input():
    model = ir.from_onnx_text("""<ir_version: 7, opset_import: ["" : 13]>
    agraph (float[n,2] x, float[2] a) => (float[n,2] y) <float[2] a = {1, 2}> { y = Mul (x, a) }""")
    RaiseOpset()(model)
    assert [value.name for value in model.graph.inputs] == ["x", "a"]


def test_control_flow_is_raised_inside_its_branches():
    model = ir.from_onnx_text("""<ir_version: 7, opset_import: ["" : 11]>
    agraph (float[2,3] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) { a = ReduceMean <axes = [1], keepdims = 0> (x) },
                    else_branch = e () => (float[2] b) { b = ReduceMax <axes = [1], keepdims = 0> (x) }>
    }""")
    before = ir.to_proto(model)
    RaiseOpset()(model)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    for condition in (True, False):
        feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "c": np.array(condition)}
        np.testing.assert_array_equal(
            run_onnxruntime(after, feeds, plainly=True)[0], run_onnxruntime(before, feeds, plainly=True)[0]
        )


@pytest.mark.parametrize("version", [6, 9999])
def test_versions_nobody_knows_are_refused_with_a_remedy(version):
    model = ir.from_onnx_text("""<ir_version: 7, opset_import: ["" : 11]>
    agraph (float[n] x) => (float[n] y) { y = Relu (x) }""")
    model.opset_imports[""] = version
    with pytest.raises(GraphError, match=rf"opset {version}; expected"):
        RaiseOpset()(model)


def test_a_node_that_cannot_be_raised_is_named():
    model = ir.from_onnx_text("""<ir_version: 4, opset_import: ["" : 9]>
    agraph (float[n,2,3,3] x, float[4] s) => (float[n,2,h,w] y) {
        [larger] y = Upsample (x, s)
    }""")
    with pytest.raises(GraphError, match="larger"):
        RaiseOpset()(model)


def test_raising_further_converts_only_what_changed():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[n,4] x) => (float[n,4] y) { r = Relu (x)  y = Softmax (r) }""")
    nodes = list(model.graph)
    raise_opset(model, 23)
    assert model.opset_imports[""] == 23
    assert list(model.graph) == nodes
    assert not changed_form("Relu", 7, 23)
    assert changed_form("Softmax", 11, 13)
