"""What a comparison refuses before it begins: data, examples and settings that fit no input or no runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from safetensors.torch import save_file
from torch import nn

from normdeploy.errors import InputError, NormdeployError, UsageError, WeightsError
from normdeploy.nn.weight_files import read_weights
from normdeploy.verification import Setting, verify

ONE = '<ir_version: 9, opset_import: ["": 20]> g (float[n, 3] x) => (float[n, 3] y) { y = Relu (x) }'
TWO = """<ir_version: 9, opset_import: ["": 20]> g (float[n, 3] x, int64[n] i) => (float[n, 3] y, int64[n] j) {
    y = Relu (x)
    j = Neg (i)
}"""
X = np.ones((2, 3), np.float32)


def written(path: Path, text: str) -> Path:
    onnx.save(parser.parse_model(text), path)
    return path


@pytest.mark.parametrize(
    ("text", "given", "error", "said"),
    [
        (TWO, {"data": X}, InputError, r"data is one array but the model has 2 inputs; expected a mapping"),
        (TWO, {"data": {"x": X}}, InputError, r"data has no input 'i'; it has \['x'\]"),
        (TWO, {"data": {"x": X, "i": X[:, 0]}}, InputError, r"data for 'i' has dtype float32; expected int64"),
        (ONE, {"data": X[:, :2]}, InputError, r"data for 'x' has shape \(2, 2\); expected"),
        (TWO, {"args": {"x": X}}, InputError, r"no example for input 'i'; expected one for each graph input"),
        (ONE, {"args": {"x": X.astype(np.float64)}}, InputError, r"input 'x' has dtype float64; expected float32"),
        (ONE, {"args": {"x": X[0]}}, InputError, r"input 'x' has rank 1; expected 2: reshape the example"),
        (ONE, {"settings": [Setting("most")]}, UsageError, r"optimization level 'most' is unknown; expected one of"),
        (
            ONE,
            {"settings": [Setting(provider="NoneExecutionProvider")]},
            UsageError,
            r"execution provider 'NoneExecutionProvider' is not available; expected one of",
        ),
    ],
)
def test_it_is_named_with_what_was_expected(
    text: str, given: dict[str, Any], error: type[NormdeployError], said: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "net.onnx", text)
    with pytest.raises(error, match=said):
        verify(path, path, level="quick", **given)


def test_a_check_that_was_not_made_is_named_with_those_that_were(tmp_path: Path) -> None:
    path = written(tmp_path / "net.onnx", ONE)
    with pytest.raises(KeyError, match=r"no check 'nothing'; made: \[.*logic"):
        verify(path, path, level="quick").check("nothing")


def test_a_file_of_one_set_of_weights_takes_no_key(tmp_path: Path) -> None:
    save_file(dict(nn.Linear(2, 2).state_dict()), tmp_path / "net.safetensors")
    with pytest.raises(WeightsError, match="holds one set of tensors; expected no key, and 'ema' was asked for"):
        read_weights(tmp_path / "net.safetensors", key="ema")
