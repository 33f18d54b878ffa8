"""Reading, writing and naming."""

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest
from onnxruntime_outputs import run_onnxruntime

from normdeploy.errors import GraphError, OutputExistsError, UsageError
from normdeploy.graph import Evaluator, load_graph, module_path, onnx_files, save_graph
from normdeploy.graph.walk import HOLDING

TEXT = (
    '<ir_version: 10, opset_import: ["" : 20]> g (float[N, 4] x) => (float[N, 4] y)'
    " <float[4] w = {1, 2, 3, 4}> { y = Mul(x, w) }"
)


def test_a_graph_comes_back_as_it_was_written(tmp_path):
    save_graph(ir.from_onnx_text(TEXT), tmp_path / "a.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["a.onnx"]
    again = load_graph(tmp_path / "a.onnx")
    assert again.graph.initializers["w"].const_value.numpy().tolist() == [1, 2, 3, 4]


def test_the_weights_of_a_file_are_arrays_which_are_not_copied_each_time_they_are_read(tmp_path):
    save_graph(ir.from_onnx_text(TEXT), tmp_path / "a.onnx")
    tensor = load_graph(tmp_path / "a.onnx").graph.initializers["w"].const_value
    assert tensor.name == "w"
    assert np.shares_memory(tensor.numpy(), tensor.numpy())


def test_all_standard_operators_that_hold_graphs_are_walked_into():
    kinds = (onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS)
    schemas = [schema for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain]
    found = {schema.name for schema in schemas if any(own.type in kinds for own in schema.attributes.values())}
    assert found == HOLDING


def test_nothing_is_overwritten_unasked(tmp_path):
    target = tmp_path / "a.onnx"
    target.write_bytes(b"mine")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        save_graph(ir.from_onnx_text(TEXT), target)
    assert target.read_bytes() == b"mine"
    save_graph(ir.from_onnx_text(TEXT), target, overwrite=True)
    assert load_graph(target).graph.outputs[0].name == "y"


def test_an_invalid_graph_leaves_no_file(tmp_path):
    model = ir.from_onnx_text(TEXT)
    model.graph[0].op_type = "NoSuchOperator"
    with pytest.raises(GraphError, match="not valid ONNX"):
        save_graph(model, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_weights_above_the_limit_go_to_a_file_beside(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_files, "ONE_FILE_LIMIT", 8)
    big = ir.Tensor(np.arange(4096 * 4, dtype=np.float32).reshape(4096, 4), name="w")
    model = ir.from_onnx_text(TEXT)
    model.graph.initializers["w"].const_value = big
    model.graph.initializers["w"].shape = ir.Shape([4096, 4])
    save_graph(model, tmp_path / "a.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "a.onnx.data"]
    loaded = onnx.load(tmp_path / "a.onnx")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(loaded.graph.initializer[0]), big.numpy())


INNER = """<ir_version: 10, opset_import: ["" : 20]>
g (float[N, 4] x, bool c) => (float[N, 4] y) <float[N, 4] a> {
    a = Relu(x)
    y = If (c) <
        then_branch = t () => (float[N, 4] r) <float[N, 4] b> { b = Neg(a) r = Abs(b) },
        else_branch = e () => (float[N, 4] s) { s = Identity(a) }
    >
}"""


@pytest.mark.parametrize("limit", [onnx_files.ONE_FILE_LIMIT, -1])
def test_shapes_of_values_inside_are_left_out(tmp_path, limit, monkeypatch):
    monkeypatch.setattr(onnx_files, "ONE_FILE_LIMIT", limit)
    model = ir.from_onnx_text(INNER)
    before = ir.to_proto(model).graph
    bodies = {attribute.name: attribute.g for attribute in before.node[-1].attribute}
    assert [value.name for value in before.value_info] == ["a"]
    assert [value.name for value in bodies["then_branch"].value_info] == ["b"]
    save_graph(model, tmp_path / "a.onnx")
    after = onnx.load(tmp_path / "a.onnx").graph
    bodies = {attribute.name: attribute.g for attribute in after.node[-1].attribute}
    assert not after.value_info
    assert not bodies["then_branch"].value_info
    assert list(after.input) == list(before.input)
    assert list(after.output) == list(before.output)


@pytest.mark.parametrize("content", [None, b"not protobuf at all", b""])
def test_an_unreadable_file_is_one_clear_error(tmp_path, content):
    path = tmp_path / "a.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(GraphError, match=r"a\.onnx"):
        load_graph(path)


def test_a_missing_folder_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        save_graph(ir.from_onnx_text(TEXT), tmp_path / "no" / "a.onnx")


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        ("['', 'layer1', 'layer1.0', 'conv2d']", "layer1.0"),
        ("['', 'add']", "the_node"),
        (None, "the_node"),
        ("['', '_empty_nn_module_stack_from_metadata_hook', 'clone']", "the_node"),
    ],
)
def test_module_path_is_the_innermost_module(scopes, expected):
    node = ir.Node("", "Relu", [None], name="the_node")
    if scopes:
        node.metadata_props["pkg.torch.onnx.name_scopes"] = scopes
    assert module_path(node) == expected
    node.metadata_props["normdeploy.where"] = "mine"
    assert module_path(node) == "mine"


def test_traces_do_not_ship(tmp_path):
    model = ir.from_onnx_text(TEXT)
    model.graph[0].metadata_props.update(
        {"pkg.torch.onnx.stack_trace": "/home/me/secret.py", "pkg.torch.onnx.name_scopes": "['', 'a', 'mul']"}
    )
    save_graph(model, tmp_path / "a.onnx")
    assert b"secret" not in (tmp_path / "a.onnx").read_bytes()
    assert module_path(load_graph(tmp_path / "a.onnx").graph[0]) == "a"


LONG = """<ir_version: 8, opset_import: ["ai.onnx" : 11]> g (float[2,3,4] x, bool c) => (float[2,3,4] y) {
    t = Add (x, x)
    y = If (c) <then_branch = a () => (float[2,3,4] p) { p = ai.onnx.Hardmax<axis=1> (t) },
                else_branch = b () => (float[2,3,4] q) { q = ai.onnx.Identity (t) }> }"""
OWN = """<ir_version: 8, opset_import: ["ai.onnx" : 11, "own" : 1]> g (float[2,3,4] x) => (float[2,3,4] y) {
    y = own.most (x) }
<domain: "own", opset_import: ["ai.onnx" : 11]> most (v) => (w) { w = ai.onnx.Hardmax<axis=1> (v) }"""


def test_the_long_spelling_of_the_standard_domain_is_the_short_one(tmp_path):
    """Hardmax of version 11 flattens: of a version that is not read, it would look at one axis."""
    path = tmp_path / "long.onnx"
    proto = onnx.parser.parse_model(LONG)
    onnx.save(proto, path)
    model = load_graph(path)
    assert model.opset_imports == {"": 11}
    assert {node.domain for node in model.graph.all_nodes()} == {""}
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32), "c": np.array(True)}
    short = onnx.parser.parse_model(LONG.replace("ai.onnx.", "").replace('"ai.onnx"', '""')).SerializeToString()
    (expected,) = run_onnxruntime(short, feeds)
    found = Evaluator(model).run(feeds)["y"].numpy()
    np.testing.assert_array_equal(found, expected)
    assert expected.sum() == 2
    assert onnx.load(path) == proto
    onnx.save(onnx.parser.parse_model(OWN), path)
    model = load_graph(path)
    common_passes.InlinePass()(model)
    assert model.opset_imports[""] == 11
    np.testing.assert_array_equal(Evaluator(model).run({"x": feeds["x"]})["y"].numpy(), expected)


def test_two_versions_of_the_standard_operators_are_refused(tmp_path):
    path = tmp_path / "two.onnx"
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
    )
    proto.opset_import.add(domain="ai.onnx", version=17)
    onnx.save(proto, path)
    assert load_graph(path).opset_imports == {"": 17}
    proto.opset_import[-1].version = 11
    onnx.save(proto, path)
    with pytest.raises(GraphError, match=r"two\.onnx .*versions 11, 17; expected one"):
        load_graph(path)
