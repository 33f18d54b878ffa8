"""Files whose outputs are maps, as scikit-learn's converters write classifiers by default, are refused by name."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, TypeProto, helper

from normdeploy.errors import GraphError
from normdeploy.graph import load_graph


def maps() -> TypeProto:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    return helper.make_map_type_proto(TensorProto.INT64, tensor)


@pytest.mark.parametrize("kind", ["map", "sequence"])
def test_a_map_is_named_with_the_remedy(kind: str, tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    made = maps() if kind == "map" else helper.make_sequence_type_proto(maps())
    result = helper.make_value_info("probabilities", made)
    node = helper.make_node("ZipMap", ["x"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    graph = helper.make_graph([node], "classifier", [x], [result])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "net.onnx")
    with pytest.raises(GraphError, match=r"'probabilities' of .*net.onnx is a map.*'zipmap': False"):
        load_graph(tmp_path / "net.onnx")
