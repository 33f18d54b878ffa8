"""Operators that make text: refused in words of ours."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator


def test_text_is_refused_by_name() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 2]> g (int64[n] x) => (string[n] y) {
        y = ai.onnx.ml.LabelEncoder<keys_int64s = [1, 2], values_strings = ["a", "b"], default_string = "?">(x) }"""
    )
    with pytest.raises(GraphError, match=r"LabelEncoder \(y\) makes text"):
        Evaluator(ir.serde.deserialize_model(proto)).run({"x": np.array([1, 2, 3])})
