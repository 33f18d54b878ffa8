"""Files that are no models: inspect, fold, verify and run end in errors of ours, whatever is wrong with them."""

from __future__ import annotations

from pathlib import Path

import external_models
import numpy as np
import onnx
import pytest
from external_models import FEATURES, expected, value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import normdeploy as nd
from normdeploy import runtime
from normdeploy.cli.app import app
from normdeploy.errors import GraphError, NormdeployError
from normdeploy.graph import load_graph

X = np.random.default_rng(1).standard_normal((3, FEATURES)).astype(np.float32)


def whole() -> onnx.ModelProto:
    return external_models.initializers(external_models.inside)


def _cut(model: onnx.ModelProto) -> bytes:
    content = model.SerializeToString()
    return content[: len(content) // 2]


def _cycle(model: onnx.ModelProto) -> bytes:
    model.graph.node[0].input[0] = "y"
    return model.SerializeToString()


def _missing_initializer(model: onnx.ModelProto) -> bytes:
    del model.graph.initializer[0]
    return model.SerializeToString()


def _four_inputs(model: onnx.ModelProto) -> bytes:
    del model.graph.node[1].input[4]
    return model.SerializeToString()


def _contradicting_size(model: onnx.ModelProto) -> bytes:
    model.graph.initializer[0].dims[0] = 2 * FEATURES
    return model.SerializeToString()


def _negative_size(model: onnx.ModelProto) -> bytes:
    model.graph.initializer[0].dims[0] = -1
    return model.SerializeToString()


def _terabytes(model: onnx.ModelProto) -> bytes:
    tensor = model.graph.initializer[0]
    tensor.dims[:] = [10**7, 10**7]
    tensor.ClearField("raw_data")
    return model.SerializeToString()


def _terabytes_overflowing(model: onnx.ModelProto) -> bytes:
    model.graph.initializer[0].dims[:] = [2**32, 2**32, 2**10]
    return model.SerializeToString()


def _two_kinds_of_data(model: onnx.ModelProto) -> bytes:
    model.graph.initializer[0].float_data.extend([1.0, 2.0])
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].int32_data.append(1)
    return model.SerializeToString()


def _unknown_type(model: onnx.ModelProto) -> bytes:
    model.graph.initializer[0].data_type = 999
    return model.SerializeToString()


def _unknown_opset(model: onnx.ModelProto) -> bytes:
    model.opset_import[0].version = 999
    return model.SerializeToString()


def _negative_opset(model: onnx.ModelProto) -> bytes:
    model.opset_import[0].version = -3
    return model.SerializeToString()


def _unknown_operator(model: onnx.ModelProto) -> bytes:
    model.graph.node[0].op_type = "NoSuchOperator"
    return model.SerializeToString()


def _wrong_attribute(model: onnx.ModelProto) -> bytes:
    model.graph.node[1].attribute.append(helper.make_attribute("epsilon", "small"))
    return model.SerializeToString()


def _made_twice(model: onnx.ModelProto) -> bytes:
    model.graph.node.append(helper.make_node("Relu", ["x"], ["y"]))
    return model.SerializeToString()


def _output_nobody_makes(model: onnx.ModelProto) -> bytes:
    model.graph.output[0].name = "nobody"
    return model.SerializeToString()


def _no_output(model: onnx.ModelProto) -> bytes:
    del model.graph.output[:]
    return model.SerializeToString()


def _function_calls_itself(_: onnx.ModelProto) -> bytes:
    model = external_models.functions(external_models.inside)
    model.functions[0].node[1].CopyFrom(helper.make_node("Linear", ["a"], ["b"], domain="own"))
    model.functions[0].opset_import.append(helper.make_opsetid("own", 1))
    return model.SerializeToString()


def _sparse_outside_itself(model: onnx.ModelProto) -> bytes:
    return _sparse(model, indices=np.array([0, FEATURES * FEATURES + 5])).SerializeToString()


def _sparse_terabytes(model: onnx.ModelProto) -> bytes:
    model = _sparse(model, indices=np.array([0, 1]))
    model.graph.sparse_initializer[0].dims[:] = [10**7, 10**7]
    return model.SerializeToString()


def _sparse_unpaired(model: onnx.ModelProto) -> bytes:
    return _sparse(model, indices=np.array([0, 1, 2])).SerializeToString()


def _name_that_is_no_text(model: onnx.ModelProto) -> bytes:
    model.graph.node[0].output[0] = "a_name_of_ours"
    model.graph.node[1].input[0] = "a_name_of_ours"
    return model.SerializeToString().replace(b"a_name_of_ours", b"a_name_of\xba\xff\xfers")


def _domain_that_is_no_text(model: onnx.ModelProto) -> bytes:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model.SerializeToString().replace(b"com.microsoft", b"com.mic\xbaosoft")


def _input_without_element_type(model: onnx.ModelProto) -> bytes:
    model.graph.input[0].type.tensor_type.elem_type = 0
    return model.SerializeToString()


def _input_of_unknown_element_type(model: onnx.ModelProto) -> bytes:
    model.graph.input[0].type.tensor_type.elem_type = 99
    return model.SerializeToString()


BROKEN = {
    function.__name__: function
    for function in (
        _cut, _cycle, _missing_initializer, _four_inputs, _contradicting_size, _negative_size, _terabytes,
        _terabytes_overflowing, _two_kinds_of_data, _unknown_type, _unknown_opset, _negative_opset, _unknown_operator,
        _wrong_attribute, _made_twice, _output_nobody_makes, _no_output, _function_calls_itself,
        _sparse_outside_itself, _sparse_terabytes, _sparse_unpaired,
        _input_without_element_type, _input_of_unknown_element_type,
    )
}  # fmt: skip
CONTENTS = {
    "empty": b"",
    "text": b"this is no model",
    "random": np.random.default_rng(3).bytes(4096),
    "zeros": bytes(4096),
    "a zip": b"PK\x03\x04" + bytes(100),
}


def _sparse(model: onnx.ModelProto, indices: np.ndarray) -> onnx.ModelProto:
    """Exchange the weight for a sparse tensor of two values."""
    tensor = model.graph.initializer[0]
    values = numpy_helper.from_array(np.array([2.0, -3.0], np.float32), tensor.name)
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(indices.astype(np.int64), "i"), list(tensor.dims))
    )
    del model.graph.initializer[0]
    return model


def every_call(path: Path, tmp_path: Path):
    reference = external_models.write_whole(tmp_path / "reference.onnx")
    out = tmp_path / "out.onnx"
    return {
        "load_graph": lambda: load_graph(path),
        "inspect": lambda: list(nd.inspect(path)),
        "fold": lambda: nd.fold(path, out, verify="quick"),
        "fold unverified": lambda: nd.fold(path, out, verify=False),
        "verify": lambda: nd.verify(reference, path, level="quick"),
        "reference": lambda: nd.verify(path, reference, level="quick"),
        "run": lambda: nd.load(path)(X),
        "diff": lambda: nd.diff(reference, path),
        "package": lambda: runtime.package_triton(path, tmp_path / "repository"),
    }


def all_refuse(path: Path, tmp_path: Path) -> None:
    for name, call in every_call(path, tmp_path).items():
        with pytest.raises(NormdeployError) as error:
            call()
        assert "expected" in str(error.value) or name in ("run", "diff", "package"), (name, str(error.value))
    assert not (tmp_path / "out.onnx").exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_model_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(BROKEN[what](whole()))
    all_refuse(path, tmp_path)


@pytest.mark.parametrize("broken", [_name_that_is_no_text, _domain_that_is_no_text])
def test_names_that_are_no_text_are_refused(broken, tmp_path: Path) -> None:
    """onnxruntime runs such a file; everything that shows or writes names would stumble over them."""
    path = tmp_path / "net.onnx"
    path.write_bytes(broken(whole()))
    for name, call in every_call(path, tmp_path).items():
        if name not in ("run", "package"):
            with pytest.raises(NormdeployError, match="expected names in UTF-8"):
                call()


@pytest.mark.parametrize("kind", [TensorProto.UNDEFINED, TensorProto.DOUBLE])
def test_an_input_that_is_an_output_of_another_type_is_refused(kind: int, tmp_path: Path) -> None:
    """onnxruntime runs such a file; the graph would hold the value once, with the output's type."""
    model = whole()
    model.graph.output.append(model.graph.input[0])
    model.graph.output[-1].type.tensor_type.elem_type = kind
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    for name, call in every_call(path, tmp_path).items():
        if name not in ("run", "package"):
            with pytest.raises(GraphError, match=f"is an input of element type 1 and an output of {kind};"):
                call()


def test_constants_of_two_types_are_refused(tmp_path: Path) -> None:
    """No operator adds integers and floats: what the first operand says of the sum's type is wrong."""
    whole, floats = np.array([1, 2, 0]), np.array([0, 1, -1], np.float32)
    nodes = [helper.make_node("Add", ["k", "b"], ["z"]), helper.make_node("MatMul", ["x", "z"], ["y"])]
    constants = [numpy_helper.from_array(whole, "k"), numpy_helper.from_array(floats, "b")]
    graph = helper.make_graph(nodes, "g", [value("x", ["n", 3])], [value("y", ["n"])], constants)
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    for call in (lambda: nd.inspect(path), lambda: nd.fold(path, tmp_path / "out.onnx", verify=False)):
        with pytest.raises(GraphError, match="operands of one type"):
            call()


@pytest.mark.parametrize("what", CONTENTS)
def test_another_kind_of_file_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(CONTENTS[what])
    all_refuse(path, tmp_path)


@pytest.mark.parametrize("command", ["inspect", "fold", "verify", "run"])
@pytest.mark.parametrize("what", ["_cut", "_cycle", "_four_inputs", "_terabytes"])
def test_commands_end_in_a_message(command: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(BROKEN[what](whole()))
    np.save(tmp_path / "x.npy", X)
    external_models.write_whole(tmp_path / "whole.onnx")
    words = {
        "inspect": [path],
        "fold": [path, "-o", tmp_path / "o.onnx"],
        "verify": [tmp_path / "whole.onnx", path],
        "run": [path, "--input", tmp_path / "x.npy"],
    }[command]
    result = CliRunner().invoke(app, [command, *map(str, words)])
    assert result.exit_code == 4, result.output
    assert "error: " in result.output
    assert "This is a bug" not in result.output


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_give_a_model_or_an_error_of_ours(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(whole().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "net.onnx"
    path.write_bytes(bytes(content))
    try:
        load_graph(path)
    except GraphError:
        return


# what is odd, and right ------------------------------------------------------------------------------------------


def test_a_sparse_initializer_is_a_tensor_with_zeros(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(_sparse(whole(), np.array([1, FEATURES + 2])).SerializeToString())
    dense = np.zeros((FEATURES, FEATURES), np.float32)
    dense[0, 1], dense[1, 2] = 2.0, -3.0
    np.testing.assert_array_equal(load_graph(path).graph.initializers["w"].const_value.numpy(), dense)
    result = nd.fold(path, tmp_path / "out.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status not in ("fail", "error")
    np.testing.assert_allclose(nd.load(tmp_path / "out.onnx")(X), nd.load(path)(X), rtol=1e-5, atol=1e-5)


def test_sparse_places_may_be_given_per_axis(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(_sparse(whole(), np.array([[0, 1], [3, 2]])).SerializeToString())
    found = load_graph(path).graph.initializers["w"].const_value.numpy()
    assert (found[0, 1], found[3, 2], np.count_nonzero(found)) == (2.0, -3.0, 2)


def test_a_sparse_constant_is_a_tensor_with_zeros(tmp_path: Path) -> None:
    model = _sparse(whole(), np.array([1, 2]))
    sparse = model.graph.sparse_initializer[0]
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    del model.graph.sparse_initializer[:]
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    result = nd.fold(path, tmp_path / "out.onnx", verify="quick")
    np.testing.assert_allclose(nd.load(result.path)(X), nd.load(path)(X), rtol=1e-5, atol=1e-5)


def test_sparse_data_beside_the_file(tmp_path: Path) -> None:
    model = _sparse(whole(), np.array([1, 2]))
    for tensor in (model.graph.sparse_initializer[0].values, model.graph.sparse_initializer[0].indices):
        external_models.put_outside(tensor, tmp_path, "w.bin")
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    found = load_graph(path).graph.initializers["w"].const_value.numpy()
    assert (found[0, 1], found[0, 2], np.count_nonzero(found)) == (2.0, -3.0, 2)


@pytest.mark.parametrize("lacking", ["graph name", "output shape", "output type", "body types", "listed initializers"])
def test_what_runtimes_infer_may_lack(lacking: str, tmp_path: Path) -> None:
    model = whole()
    if lacking == "body types":
        model = external_models.body_initializers(external_models.inside)
        for attribute in model.graph.node[0].attribute:
            for output in attribute.g.output:
                output.ClearField("type")
    elif lacking == "listed initializers":
        model.ir_version = 3
    elif lacking == "graph name":
        model.graph.name = ""
    elif lacking == "output shape":
        model.graph.output[0].type.tensor_type.ClearField("shape")
    else:
        model.graph.output[0].ClearField("type")
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    assert load_graph(path).graph.outputs[0].name == "y"
    np.testing.assert_allclose(nd.load(path)(X), expected(X), rtol=1e-5, atol=1e-5)


def test_packed_and_typed_fields_are_whole(tmp_path: Path) -> None:
    """Tensors need not be raw bytes: every typed field has its own count of values."""
    kinds = {
        TensorProto.FLOAT16: np.float16, TensorProto.INT8: np.int8, TensorProto.BOOL: np.bool_,
        TensorProto.INT64: np.int64, TensorProto.UINT64: np.uint64, TensorProto.DOUBLE: np.float64,
        TensorProto.COMPLEX64: np.complex64,
    }  # fmt: skip
    model = whole()
    for number, (kind, dtype) in enumerate(kinds.items()):
        values = np.arange(6).reshape(2, 3).astype(dtype)
        made = numpy_helper.from_array(values, f"t{number}")
        if dtype != np.float16:
            made = helper.make_tensor(f"t{number}", kind, [2, 3], values.reshape(-1).tolist())
        model.graph.initializer.append(made)
    model.graph.initializer.append(helper.make_tensor("text", TensorProto.STRING, [2], [b"a", b"b"]))
    model.graph.initializer.append(helper.make_tensor("four", TensorProto.INT4, [3], [1, 2, 3]))
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    assert load_graph(path).graph.initializers["t0"].const_value.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_input_of_terabytes_is_refused_before_it_is_made(tmp_path: Path) -> None:
    huge = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [value("x", [10**6, 10**7])], [value("y", [10**6, 10**7])]
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(huge, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    with pytest.raises(NormdeployError, match="GiB"):
        nd.fold(path, tmp_path / "out.onnx", verify="quick")
    with pytest.raises(NormdeployError, match="GiB"):
        nd.verify(path, path, level="quick")
