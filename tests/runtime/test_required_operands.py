"""Files that end the process in onnxruntime, for want of an operand that is called optional, end in an error."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import normdeploy as nd
from normdeploy.errors import GraphError
from normdeploy.ort.required_operands import check_operands

RNG = np.random.default_rng(0)
NUMBERS = {
    "w": RNG.standard_normal((8, 24)).astype(np.float32),
    "b": np.zeros(24, np.float32),
    "s": np.array(0.1, np.float32),
    "z": np.array(3, np.uint8),
}
FLOATS, BYTES = "float[n, k, 8]", "uint8[n, k, 8]"
LACKS = {
    "Attention": (FLOATS, "com.microsoft.Attention<num_heads=2>(x, w{})", ", b", "bias"),
    "QLinearSigmoid": (BYTES, "com.microsoft.QLinearSigmoid(x, s, z, s{})", ", z", "zero point"),
    "QLinearLeakyRelu": (BYTES, "com.microsoft.QLinearLeakyRelu(x, s, z, s{})", ", z", "zero point"),
}
BRANCHES = "then_branch = a () => (K u) { u = CALL }, else_branch = o () => (K v) { v = CALL }"
BODIES = {
    "in the graph": "y = CALL",
    "in a branch": f"t = Size(x) c = Cast<to = 9>(t) y = If(c)<{BRANCHES}>",
}


def write(folder: Path, operator: str, body: str = "in the graph", *, whole: bool = False) -> Path:
    kind, call, operand, _ = LACKS[operator]
    text = BODIES[body].replace("CALL", call.format(operand if whole else "")).replace("K ", f"{kind} ")
    head = '<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>'
    model = parser.parse_model(f"{head} g ({kind} x) => ({kind} y) {{ {text} }}")
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in NUMBERS.items())
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("operator", LACKS)
def test_it_is_refused_by_name_before_it_is_opened(operator: str, body: str, tmp_path: Path) -> None:
    path = write(tmp_path, operator, body)
    message = rf"{operator} '[yuv]' lacks a {LACKS[operator][3]}.*ends the process"
    with pytest.raises(GraphError, match=message):
        nd.load(path)(np.ones((2, 3, 8), np.float32 if operator == "Attention" else np.uint8))
    with pytest.raises(GraphError, match=message):
        check_operands(path)
    verdict = nd.verify(path, path, level="quick")
    assert verdict.status == "error"
    assert re.search(message, verdict.reasons[0])


@pytest.mark.parametrize("operator", LACKS)
def test_with_the_operand_it_is_run_and_judged(operator: str, tmp_path: Path) -> None:
    path = write(tmp_path, operator, whole=True)
    x = RNG.standard_normal((2, 3, 8)).astype(np.float32)
    made = nd.load(path)(x if operator == "Attention" else np.abs(100 * x).astype(np.uint8))
    assert np.asarray(made).shape == (2, 3, 8)
    assert nd.verify(path, path, level="quick").status == "pass"


ABSENT = {
    "DFT": ("float[b, 8, 1] x) => (float[b, k, 2] y", 'DFT <onesided = 1> (x, "", "")', "DFT <onesided = 1> (x)"),
    "Max": ("float[b, 8, 1] x) => (float[b, 8, 1] y", 'Max (x, "")', "Max (x)"),
    "LayerNormalization": (
        "float[b, 8] x) => (float[b, 8] y",
        'LayerNormalization (x, x1, "")',
        "LayerNormalization (x, x1)",
    ),
}


@pytest.mark.parametrize("operator", ABSENT)
def test_an_absent_operand_that_is_written_is_refused(operator: str, tmp_path: Path) -> None:
    interface, *calls = ABSENT[operator]
    paths = [tmp_path / name for name in ("lacks.onnx", "whole.onnx")]
    scale = "<float[8] x1 = {1, 2, 3, 4, 5, 6, 7, 8}>" if "x1" in calls[0] else ""
    for path, call in zip(paths, calls, strict=True):
        onnx.save(
            parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> g ({interface}) {scale} {{ y = {call} }}'),
            path,
        )
    assert nd.verify(paths[1], paths[1], level="quick").status == "pass"
    verdict = nd.verify(paths[1], paths[0], level="quick")
    assert verdict.status == "fail"
    assert any(f"{operator} 'y' lacks" in reason for reason in verdict.reasons)
    x = np.ones((2, 8) if "x1" in calls[0] else (2, 8, 1), np.float32)
    nd.load(paths[1])(x)
    with pytest.raises(GraphError, match=f"{operator} 'y' lacks"):
        nd.load(paths[0])(x)


@pytest.mark.skipif(os.name != "posix", reason="signals end processes on POSIX")
@pytest.mark.parametrize("operator", LACKS)
def test_onnxruntime_itself_does_not_survive_it(operator: str, tmp_path: Path) -> None:
    """Where a release does, the operator may be run again."""
    kind = "float32" if operator == "Attention" else "uint8"
    code = f"""import numpy, onnxruntime
s = onnxruntime.InferenceSession({str(write(tmp_path, operator))!r}, providers=["CPUExecutionProvider"])
s.run(None, {{"x": numpy.ones((2, 3, 8), numpy.{kind})}})"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGABRT), done.stderr
