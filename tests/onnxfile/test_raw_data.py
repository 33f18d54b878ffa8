"""Numbers that are read where a model's bytes hold them: the same as protobuf says, with no copy."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from normdeploy.graph import load_graph
from normdeploy.onnxfile.model import read_model
from normdeploy.onnxfile.raw_data import raw_places

DTYPES = [np.float32, np.float64, np.float16, np.int64, np.int8, np.bool_]


def model_of(*tensors: TensorProto) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:], list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def drawn(dtype: type, *shape: int) -> np.ndarray:
    return (10 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("odd", range(4))
def test_weights_of_a_file_that_was_read_are_its_own_bytes(tmp_path: Path, odd: int):
    arrays = {f"{'w' * odd}{np.dtype(d).name}": drawn(d, 3, 5) for d in DTYPES}  # names move what is behind them
    listed = helper.make_tensor("listed", TensorProto.FLOAT, [2], [1.5, -2.5])
    model = model_of(*[numpy_helper.from_array(a, name) for name, a in arrays.items()], listed)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    read = read_model(path)
    held = np.frombuffer(read.content, np.uint8)
    found = load_graph(path, read=read).graph.initializers
    for name, want in arrays.items():
        tensor = found[name].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), want, strict=True)
        assert np.shares_memory(tensor.numpy(), held)
        assert tensor.tobytes() == want.tobytes()
    numbers = found["listed"].const_value
    assert numbers is not None
    np.testing.assert_array_equal(numbers.numpy(), [1.5, -2.5])
    assert "listed" not in raw_places(read.content)


def test_of_two_fields_the_last_counts_and_a_name_that_two_have_is_left_out():
    one, other = numpy_helper.from_array(drawn(np.float32, 2), "w"), numpy_helper.from_array(np.zeros(3), "w")
    alone = numpy_helper.from_array(np.arange(4.0), "alone")
    twice = model_of(alone).SerializeToString() + model_of(one, other).SerializeToString()  # protobuf joins the two
    assert [t.name for t in onnx.load_from_string(twice).graph.initializer] == ["alone", "w", "w"]
    (name, (start, length)), *more = raw_places(twice).items()
    assert (name, more) == ("alone", [])
    np.testing.assert_array_equal(np.frombuffer(twice[start : start + length]), np.arange(4.0))

    tensor = TensorProto(raw_data=b"12345678").SerializeToString() + alone.SerializeToString()
    graph = bytes([5 << 3 | 2, len(tensor)]) + tensor  # GraphProto.initializer
    written = bytes([7 << 3 | 2, len(graph)]) + graph  # ModelProto.graph
    assert onnx.load_from_string(written).graph.initializer[0].raw_data == alone.raw_data
    start, length = raw_places(written)["alone"]
    assert written[start : start + length] == alone.raw_data
