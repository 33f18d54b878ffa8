"""The ORT format and its list of operators: judged before they appear, and nothing beside the model is touched."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.errors import GraphError, OutputExistsError, VerificationError
from normdeploy.ort import ort_format
from normdeploy.ort.ort_format import ORT_FORMAT, Converted, converted
from normdeploy.runtime import package_mobile
from normdeploy.verification.sides import sessions


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    nd.export(model, torch.randn(2, 1, 8, 8), path, verify=False)
    return path


def test_the_file_computes_what_the_model_computes_and_the_list_names_its_operators(net: Path) -> None:
    before = sorted(path.name for path in net.parent.iterdir())
    folder = package_mobile(net)
    assert sorted(path.name for path in net.parent.iterdir()) == sorted([*before, "net-mobile"])
    assert sorted(path.name for path in folder.iterdir()) == ["README.txt", "net.ort", "net.required_operators.config"]
    x = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype(np.float32)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    small = ort.InferenceSession((folder / "net.ort").read_bytes(), options, providers=["CPUExecutionProvider"])
    full = ort.InferenceSession(str(net), providers=["CPUExecutionProvider"])
    name = full.get_inputs()[0].name
    assert np.allclose(small.run(None, {name: x})[0], full.run(None, {name: x})[0], rtol=1e-5, atol=1e-6)
    lines = (folder / "net.required_operators.config").read_text().splitlines()
    listed = {operator for line in lines for operator in line.split(";")[2].split(",")}
    kinds = {node.op_type for node in onnx.load(net).graph.node}
    # what stands in both files is listed; operators that onnxruntime fused have its names
    assert {"Gemm"} & (listed | kinds)
    assert "FusedConv" in listed or "Conv" in listed
    assert all(line.count(";") == 2 for line in lines)
    assert "verdict: pass" in (folder / "README.txt").read_text()
    with pytest.raises(OutputExistsError, match=r"--out.*--overwrite"):
        package_mobile(net)
    assert package_mobile(net, overwrite=True) == folder


def test_the_file_that_is_written_is_the_one_that_was_judged(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers, level = list(logging.root.handlers), logging.root.level
    judged = []

    def noted(model: Any) -> Converted:
        judged.append(converted(model).content)
        return converted(model)

    monkeypatch.setattr(sessions, "converted", noted)
    folder = package_mobile(net, tmp_path / "out")
    assert judged.count((folder / "net.ort").read_bytes()) >= 2  # at each optimization level that is tried
    assert (logging.root.handlers, logging.root.level) == (handlers, level)


def test_a_file_that_computes_something_else_is_not_written(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = onnx.load(net)
    weight = next(tensor for tensor in other.graph.initializer if len(tensor.dims) == 4)
    array = onnx.numpy_helper.to_array(weight) * np.float32(1.01)
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    wrong = converted(other.SerializeToString())
    monkeypatch.setattr(sessions, "converted", lambda _model: wrong)
    with pytest.raises(VerificationError, match=ORT_FORMAT) as caught:
        package_mobile(net, tmp_path / "out")
    assert caught.value.verdict.status == "fail"
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_converted_is_an_error_in_words(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Nonsense", ["x"], ["y"], domain="own")
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([node], "g", info[:1], info[1:])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "odd.onnx")
    with pytest.raises(GraphError, match="Nonsense"):
        package_mobile(tmp_path / "odd.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["odd.onnx"]


def test_weights_beside_the_model_come_inside(net: Path, tmp_path: Path) -> None:
    onnx.save(onnx.load(net), tmp_path / "net.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    found = converted(tmp_path / "net.onnx")
    session = ort.InferenceSession(found.content, providers=["CPUExecutionProvider"])
    x = np.ones((1, 1, 8, 8), np.float32)
    whole = ort.InferenceSession(str(net), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    assert np.allclose(session.run(None, {name: x})[0], whole.run(None, {name: x})[0], rtol=1e-5, atol=1e-6)


def test_the_verdict_names_the_format(net: Path) -> None:
    verdict = nd.verify(net, net, level="quick", runtime="mobile")
    assert verdict.status == "pass", verdict.reasons
    assert verdict.environment["settings"] == [f"{ORT_FORMAT} level=all threads=1"]
    assert isinstance(ort_format.converted(net), Converted)
