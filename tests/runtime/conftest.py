"""Tiny models as ONNX text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

HEADER = '<ir_version: 10, opset_import: ["" : 20]>\n'


@pytest.fixture(autouse=True)
def _quick_searches(short_turns: None) -> None:
    """In this room every search of the tuner takes short turns."""


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes ONNX text, with weights by name, and returns the path."""

    def write(text: str, weights: dict[str, np.ndarray] | None = None, name: str = "net.onnx") -> Path:
        model = onnx.parser.parse_model(HEADER + text)
        for key, value in (weights or {}).items():
            model.graph.initializer.append(numpy_helper.from_array(value, key))
        onnx.checker.check_model(model)
        path = tmp_path / name
        onnx.save(model, path)
        return path

    return write


@pytest.fixture
def linear(write_model: Callable[..., Path]) -> tuple[Path, np.ndarray, np.ndarray]:
    """Return y = x W + b on [batch, 3] -> [batch, 2], with W and b in float64."""
    draw = np.random.default_rng(7)
    weight, bias = draw.normal(size=(3, 2)).astype(np.float32), draw.normal(size=2).astype(np.float32)
    path = write_model("net (float[batch, 3] x) => (float[batch, 2] y) { y = Gemm(x, W, b) }", {"W": weight, "b": bias})
    return path, weight.astype(np.float64), bias.astype(np.float64)


@pytest.fixture
def convnet(write_model: Callable[..., Path]) -> Path:
    """Return a small convolutional classifier: [batch, 3, 16, 16] -> [batch, 5]."""
    draw = np.random.default_rng(11)

    def he(*shape: int) -> np.ndarray:
        return (draw.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)

    weights = {"W1": he(16, 3, 3, 3), "b1": he(16, 1)[:, 0], "W2": he(32, 16, 3, 3), "b2": he(32, 1)[:, 0]}
    weights |= {"W3": he(32, 5), "b3": he(5, 1)[:, 0]}
    text = """net (float[batch, 3, 16, 16] x) => (float[batch, 5] y) {
        c1 = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, W1, b1)
        r1 = Relu(c1)
        c2 = Conv <pads = [1, 1, 1, 1]> (r1, W2, b2)
        r2 = Relu(c2)
        p = GlobalAveragePool(r2)
        f = Flatten(p)
        y = Gemm(f, W3, b3)
    }"""
    return write_model(text, weights, "conv.onnx")
