"""What a file declares of shapes is held against what it returns: engines that plan memory by it are told wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import normdeploy as nd
from normdeploy.verification import verify
from normdeploy.verification.record.answers import Question, Status

GRAPH = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] x) => ({} y)
    <float[4] s = {{1, 2, 3, 4}}, float[4] b = {{4, 3, 2, 1}}> {{ h = LayerNormalization(x, s) y = Mul(h, b) }}"""

RIGHT = "float[n, 4]"


def written(path: Path, output: str, inner: Sequence[str | int] | None = None) -> Path:
    model = onnx.parser.parse_model(GRAPH.format(output))
    if inner is not None:
        model.graph.value_info.append(onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, inner))
    onnx.save(model, path)
    return path


def answers(reference: Path, file: Path) -> tuple[Status, list[tuple[Status, str]]]:
    verdict = verify(reference, file)
    return verdict.status, [(c.status, c.detail) for c in verdict.checks if c.name is Question.STRUCTURE][1:]


@pytest.mark.parametrize("declared", ["float[n]", "float[n, 5]", "float[2, 4]", "float"])
def test_an_output_that_is_not_as_declared_fails(declared: str, tmp_path: Path) -> None:
    """Numbers are right, and every operator is proven."""
    status, found = answers(written(tmp_path / "a.onnx", RIGHT), written(tmp_path / "b.onnx", declared))
    assert status is Status.FAIL
    assert [one for one, _ in found] == [Status.FAIL]
    assert "output 'y' is declared [" in found[0][1]
    assert "and returned [" in found[0][1]


@pytest.mark.parametrize("declared", ["float[n, 5]", "float[2, 4]"])
def test_what_the_reference_declares_too_is_noted(declared: str, tmp_path: Path) -> None:
    status, found = answers(written(tmp_path / "a.onnx", declared), written(tmp_path / "b.onnx", declared))
    assert status is Status.PASS
    assert [one for one, _ in found] == [Status.NOTE]
    assert "and so is the reference's" in found[0][1]


@pytest.mark.parametrize(
    ("output", "inner", "told"),
    [
        ("float[n, n]", None, "output 'y' is declared of size 'n' and returned 4 where that is 3 of an input"),
        (RIGHT, ["n", 7], "'h' is declared [n, 7] and is [3, 4]"),
        (RIGHT, ["n"], "'h' is declared [n] and is [3, 4]"),
        (RIGHT, [3, 4], "'h' is declared [3, 4] and is [7, 4]"),
    ],
    ids=["name", "size", "rank", "batch"],
)
def test_names_and_values_inside_are_noted(
    output: str, inner: list[str | int] | None, told: str, tmp_path: Path
) -> None:
    status, found = answers(written(tmp_path / "a.onnx", RIGHT), written(tmp_path / "b.onnx", output, inner))
    assert status is Status.PASS
    assert [one for one, _ in found] == [Status.NOTE]
    assert told in found[0][1]


@pytest.mark.parametrize("declared", [RIGHT, "float[m, 4]", "float[m, k]"])
def test_what_is_left_open_contradicts_nothing(declared: str, tmp_path: Path) -> None:
    reference, file = written(tmp_path / "a.onnx", RIGHT), written(tmp_path / "b.onnx", declared, ["n", 4])
    assert answers(reference, file) == (Status.PASS, [])


def test_a_module_declares_nothing(tmp_path: Path) -> None:
    """A batch that is fixed for an output alone shows where the file is run on another."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval(), torch.randn(3, 4)
    nd.export(model, x, tmp_path / "net.onnx")
    assert verify(model, tmp_path / "net.onnx", args=x).status is Status.PASS
    file = onnx.load(tmp_path / "net.onnx")
    file.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 3
    onnx.save(file, tmp_path / "fixed.onnx")
    verdict = verify(model, tmp_path / "fixed.onnx", args=x)
    assert verdict.status is Status.FAIL
    assert any("is declared [3, 4] and returned [" in reason for reason in verdict.reasons)
