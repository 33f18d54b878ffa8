"""How two files differ: operators, weights in units of the last place, outputs on the same inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import normdeploy as nd
from normdeploy.errors import GraphError, InputError, UsageError

W = np.arange(6, dtype=np.float32).reshape(2, 3) + 1


def write(
    path: Path,
    weight: np.ndarray,
    *,
    name: str = "w",
    extra: bool = False,
    x: str = "x",
    y: str = "y",
    sizes: str = "n",
) -> Path:
    nodes = [helper.make_node("MatMul", [x, name], ["h" if extra else y])]
    if extra:
        nodes.append(helper.make_node("Relu", ["h"], [y]))
    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(x, kind, ["n", weight.shape[0]])],
        [helper.make_tensor_value_info(y, kind, ["n", weight.shape[1]])],
        [numpy_helper.from_array(weight, name)],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_a_file_and_its_copy(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.onnx", W), write(tmp_path / "b.onnx", W)
    found = nd.diff(one, two)
    assert found.same
    assert (found.nodes, found.same_weights, found.operators) == ((1, 1), 1, {})
    (output,) = found.outputs
    assert (output.largest, output.rms, output.ulps, output.decisions) == (0, 0, 0, 1)
    assert found.inputs == ["x float32[4, 2]"]
    assert found.to_dict()["same"] is True


def test_weights_and_operators_that_differ(tmp_path: Path) -> None:
    other = W.copy()
    other[1, 2] = np.nextafter(np.nextafter(other[1, 2], np.float32(9)), np.float32(9))
    one, two = write(tmp_path / "a.onnx", W), write(tmp_path / "b.onnx", other, extra=True)
    x = np.array([[1, -1], [-2, 3]], np.float32)
    found = nd.diff(one, two, inputs=x)
    assert not found.same
    assert found.operators == {"Relu": (0, 1)}
    (row,) = found.weights
    assert (row.name, row.changed, row.count, row.ulps) == ("w", 1, 6, 2)
    assert row.largest == float(other[1, 2]) - 6
    truth = [x.astype(float) @ W, np.maximum(x.astype(float) @ other, 0)]
    (output,) = found.outputs
    assert output.largest == pytest.approx(np.abs(truth[0] - truth[1]).max(), rel=1e-6)
    rms = np.sqrt(np.mean((truth[0] - truth[1]) ** 2) / np.mean(truth[0] ** 2))
    assert output.rms == pytest.approx(rms, rel=1e-6)
    assert output.decisions == np.mean(truth[0].argmax(-1) == truth[1].argmax(-1))


def test_names_may_differ(tmp_path: Path) -> None:
    one = write(tmp_path / "a.onnx", W)
    two = write(tmp_path / "b.onnx", W, name="kernel", x="pixels", y="scores")
    found = nd.diff(one, two)
    assert (found.weights, found.only_first, found.only_second, found.same_weights) == ([], [], [], 1)
    assert [(row.name, row.other, row.largest) for row in found.outputs] == [("y", "scores", 0)]


def test_shapes_and_types_that_differ(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.onnx", W), write(tmp_path / "b.onnx", np.ones((2, 4), np.float32))
    (row,) = nd.diff(one, two).weights
    assert (row.shape, row.other_shape) == ([2, 3], [2, 4])
    half = write(tmp_path / "c.onnx", (W + 2.0**-10).astype(np.float16))
    (row,) = nd.diff(one, half, run=False).weights
    assert (row.dtype, row.other_dtype, row.ulps) == ("float32", "float16", 1)
    strange = write(tmp_path / "d.onnx", np.array([[np.nan, 1, 2], [4, 5, 6]], np.float32))
    (row,) = nd.diff(one, strange, run=False).weights
    assert row.ulps == float("inf")
    assert nd.diff(one, strange, run=False).to_dict()["weights"][0]["ulps"] == "inf"


def test_a_weight_of_one_side_alone(tmp_path: Path) -> None:
    found = nd.diff(write(tmp_path / "a.onnx", W), write(tmp_path / "b.onnx", W + 1, name="v"), run=False)
    assert (found.only_first, found.only_second) == (["w float32[2, 3]"], ["v float32[2, 3]"])
    assert found.not_run


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    one = write(tmp_path / "a.onnx", W)
    with pytest.raises(GraphError, match=r"none\.onnx does not exist"):
        nd.diff(one, tmp_path / "none.onnx")
    with pytest.raises(InputError, match="expected"):
        nd.diff(one, one, inputs=np.zeros((2, 5), np.float32))
    fixed = onnx.load(one)
    for size in (fixed.graph.input[0], fixed.graph.output[0]):
        size.type.tensor_type.shape.dim[0].dim_value = 7
    onnx.save(fixed, tmp_path / "fixed.onnx")
    with pytest.raises(UsageError, match=r"takes x.*'?n'?, 2\].*takes x.*\[7, 2\].*both take.*--no-run"):
        nd.diff(one, tmp_path / "fixed.onnx")  # nobody gave an input that could be resized
    two = onnx.load(one)
    two.graph.input.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["n", 2]))
    two.graph.node[0].input[0] = "s"
    two.graph.node.insert(0, helper.make_node("Add", ["x", "z"], ["s"]))
    onnx.save(two, tmp_path / "two.onnx")
    with pytest.raises(UsageError, match=r"as many inputs of both.*--no-run"):
        nd.diff(one, tmp_path / "two.onnx")
    assert nd.diff(one, tmp_path / "two.onnx", run=False).operators == {"Add": (0, 1)}
