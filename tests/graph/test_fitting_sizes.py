"""Inputs whose sizes do not fit their operator: inspect and fold refuse them, as onnxruntime does, and evaluation."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from onnxruntime_outputs import run_onnxruntime

import normdeploy as nd
from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator, load_graph

VECTORS = (
    "float[{n}] s = {{{values}}}, float[{n}] t = {{{values}}}, float[{n}] m = {{{values}}}, float[{n}] v = {{{values}}}"
)
BATCH = "y = BatchNormalization (x, s, t, m, v)"
PARAMETERS = {  # what x is, the operator, and how long its parameters may be
    "BatchNormalization": ("float[N,4,3,3] x", BATCH, {4}, 21),
    "BatchNormalization behind": ("float[N,4,3,3] x", f"x2 = Relu (x) {BATCH.replace('x', 'x2')}", {4}, 21),
    "BatchNormalization, old": ("float[N,4,3,3] x", BATCH, {4}, 9),
    "InstanceNormalization": ("float[N,4,3] x", "y = InstanceNormalization (x, s, t)", {4}, 21),
    "GroupNormalization": ("float[N,4,3] x", "y = GroupNormalization <num_groups = 2> (x, s, t)", {1, 4}, 21),
    "LayerNormalization": ("float[N,3,4] x", "y = LayerNormalization (x, s, t)", {1, 4}, 17),
    "RMSNormalization": ("float[N,3,4] x", "y = RMSNormalization (x, s)", {1, 4}, 23),
    "PRelu": ("float[N,3,4] x", "y = PRelu (x, s)", {1, 4}, 16),
    "Conv": ("float[N,3,5] x", "w = ConstantOfShape (sizes) y = Conv (x, w, s)", {4}, 21),
    "ConvTranspose": ("float[N,4,5] x", "w = ConstantOfShape (sizes) y = ConvTranspose (x, w, s)", {3}, 21),
    "Gemm": ("float[N,3] x", "w = ConstantOfShape (square) y = Gemm (x, w, s)", {1, 4}, 21),
    "Add": ("float[N,4] x", "y = Add (x, s)", {1, 4}, 21),
}
AXES = {  # the operators of a value of three axes; the axes are put in
    **{f"{op} {opset}": (f"y = {op} <axis = {{axis}}> (x)", opset)
       for op in ("Softmax", "LogSoftmax", "Hardmax") for opset in (9, 11, 12, 13, 20)},
    **{f"{op} {opset}": (f"y = {op} <axes = [{{axis}}]> (x)", opset)
       for op in ("ReduceMean", "ReduceMax", "ReduceL2") for opset in (9, 11)},
    "ReduceMax 18": ("a = Constant <value_ints = [{axis}]> () y = ReduceMax (x, a)", 18),
    "LayerNormalization": ("y = LayerNormalization <axis = {axis}> (x, one)", 17),
    "RMSNormalization": ("y = RMSNormalization <axis = {axis}> (x, one)", 23),
    "LpNormalization": ("y = LpNormalization <axis = {axis}> (x)", 20),
    "Concat": ("y = Concat <axis = {axis}> (x, x)", 20),
    "ArgMax": ("q = ArgMax <axis = {axis}> (x) y = Cast <to = 1> (q)", 20),
    "CumSum": ("a = Constant <value_int = {axis}> () y = CumSum (x, a)", 20),
    "Transpose": ("y = Transpose <perm = [{axis}, 1, 0]> (x)", 20),
    "QuantizeLinear": ("q = QuantizeLinear <axis = {axis}> (x, four)"
                       "y = DequantizeLinear <axis = {axis}> (q, four)", 20),
}  # fmt: skip


def write(path: Path, x: str, body: str, opset: int, n: int = 4) -> Path:
    held = VECTORS.format(n=n, values=", ".join(["1.5"] * n))
    sizes = "int64[3] sizes = {4, 3, 1}, int64[2] square = {3, 4}, float one = {1}, float[4] four = {1, 1, 1, 1}"
    text = f'<ir_version: 9, opset_import: ["": {opset}]> g ({x}) => (float y) <{held}, {sizes}> {{ {body} }}'
    model = parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    read = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    onnx.save(model, path)
    return path


def runs(path: Path) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        given = session.get_inputs()[0]
        session.run(None, {"x": np.ones([n if isinstance(n, int) else 2 for n in given.shape], np.float32)})
    except Exception:  # onnxruntime's own classes
        return False
    return True


def asked(path: Path, fits: bool, *, prove: bool = True) -> None:
    """Check what onnxruntime, inspect, fold and the evaluation in float64 say of a file."""
    assert runs(path) is fits
    target = path.with_name("out.onnx")
    if fits:
        assert "not-run" not in [finding.kind for finding in nd.inspect(path)]
        verdict = nd.fold(path, target, verify="quick" if prove else False).verdict
        assert verdict is None or verdict.passed
        return
    for call in (lambda: nd.inspect(path), lambda: nd.fold(path, target, verify=False)):
        with pytest.raises(
            GraphError, match=r"contradicts itself: .*expected|contradicts itself: .*no runtime takes it"
        ):
            call()
    assert not target.exists()
    graph = load_graph(path)
    sizes = [size if isinstance(size, int) else 2 for size in graph.graph.inputs[0].shape]
    with pytest.raises(GraphError):
        Evaluator(graph).run({"x": np.ones(sizes, np.float32)})


@pytest.mark.parametrize("length", [1, 3, 4])
@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_as_long_as_the_channels(name: str, length: int, tmp_path: Path) -> None:
    x, body, right, opset = PARAMETERS[name]
    asked(write(tmp_path / "in.onnx", x, body, opset, length), length in right)


@pytest.mark.parametrize("axis", [-4, -3, 2, 3])
@pytest.mark.parametrize("name", AXES)
def test_an_axis_is_one_that_the_value_has(name: str, axis: int, tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.ERROR)
    body, opset = AXES[name]
    path = write(tmp_path / "in.onnx", "float[N,3,4] x", body.format(axis=axis), opset)
    there = -3 <= axis < 3
    if there and not runs(path):
        pytest.skip("the axis is there, and this operator cannot have it")
    if not there or name != "QuantizeLinear" or axis == 2:
        asked(path, there, prove="LayerNorm" in name)


@pytest.mark.parametrize("groups", [-1, 0, 2, 3, 8])
def test_groups_cut_the_channels(groups: int, tmp_path: Path) -> None:
    body = f"y = GroupNormalization <num_groups = {groups}> (x, s, t)"
    asked(write(tmp_path / "in.onnx", "float[N,4,3] x", body, 21), groups == 2)


def test_what_a_file_declares_of_an_inner_value_is_no_contradiction(tmp_path: Path) -> None:
    """Runtimes go by what they infer, and warn: an exporter that declares another number of rows is forgiven."""
    path = write(tmp_path / "in.onnx", "float[N,4] x", "a = Relu (x) y = Add (a, s)", 20)
    model = onnx.load(path)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [7, 5]))
    onnx.save(model, path)
    asked(path, True)


@pytest.mark.parametrize(("side", "x", "w"), [("transA", "3,N", "3,4"), ("transB", "N,3", "4,3")])
def test_any_number_but_0_turns_an_operand_of_a_gemm(side: str, x: str, w: str, tmp_path: Path) -> None:
    """As onnxruntime reads it; taken for an axis, 2 was out of the shape."""
    numbers = ", ".join(str(n) for n in range(12))
    held = f"float[{w}] w = {{{numbers}}}, float[4] s = {{1, 2, 3, 4}}"
    body = f"{{ a = Relu (x) y = Gemm <{side} = 2> (a, w, s) }}"
    path = tmp_path / "in.onnx"
    text = f'<ir_version: 9, opset_import: ["": 20]> g (float[{x}] x) => (float[N,4] y) <{held}> {body}'
    onnx.save(parser.parse_model(text), path)
    asked(path, True)
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(3, 2) if side == "transA" else np.ones((2, 3), np.float32)}
    found = Evaluator(load_graph(path)).run(feeds)["y"]
    np.testing.assert_array_equal(found, run_onnxruntime(path, feeds)[0])
