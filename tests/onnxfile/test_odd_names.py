"""Files whose names are no text: bytes that are not UTF-8, which Python keeps as lone surrogates."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from normdeploy.errors import GraphError
from normdeploy.ort.settings import Settings
from normdeploy.runtime.backend import open_backend

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="file systems elsewhere take no such names")
NAME = os.fsdecode(b"w\xff.onnx")
NETWORK = '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 2048] x) => (float[n, 2048] y) { y = Mul (x, w) }'


def network() -> onnx.ModelProto:
    model = parser.parse_model(NETWORK)
    model.graph.initializer.append(numpy_helper.from_array(np.full(2048, 3, np.float32), "w"))
    return model


def test_a_file_of_any_name_is_run(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(network().SerializeToString())
    (y,) = open_backend(tmp_path / NAME, Settings()).run({"x": np.ones((1, 2048), np.float32)})
    np.testing.assert_array_equal(y, np.full((1, 2048), 3))


def test_data_in_a_folder_whose_name_is_no_text_is_an_error_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"f\xff")
    folder.mkdir()
    model = network()
    (weight,) = model.graph.initializer
    (folder / "data").write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.extend([onnx.StringStringEntryProto(key="location", value="data")])
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(GraphError, match="is no name in UTF-8; expected one"):
        open_backend(folder / "net.onnx", Settings())
