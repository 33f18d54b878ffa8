"""Names of dimensions that are no expressions, as other tools write them."""

from __future__ import annotations

from pathlib import Path

import external_models
import onnx
import pytest
from test_broken_onnx import whole

import normdeploy as nd
from normdeploy.graph import load_graph


@pytest.mark.parametrize("name", ["batch size", "batch#1", "Batch:0", "N?", "\x1b[2J", "größe", "3x", "a b*2"])
def test_a_dimension_may_be_called_anything(name: str, tmp_path: Path) -> None:
    model: onnx.ModelProto = whole()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = name
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    result = nd.fold(tmp_path / "net.onnx", tmp_path / "out.onnx", verify="quick")
    assert result.verdict is not None
    assert result.verdict.status not in ("fail", "error")
    assert "BatchNormalization" not in {node.op_type for node in load_graph(tmp_path / "out.onnx").graph}
    x = external_models.SCALE[None]
    assert abs(nd.load(tmp_path / "out.onnx")(x) - external_models.expected(x)).max() < 1e-4
