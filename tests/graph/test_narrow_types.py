"""Integers of 2 and 4 bits and floats of 8, in float64 against onnxruntime's kernels: quantizers, casts, both ways."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from normdeploy.graph import Evaluator, load_graph

FEEDS = np.random.default_rng(0).uniform(-12, 12, (4, 6)).astype(np.float32)
FEEDS[0] = [0.25, 0.75, -0.25, 1.25, -8, 8]  # ties at steps of a half
EIGHT = ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ"]
FEW = ["INT2", "UINT2", "INT4", "UINT4"]


def written(nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto], folder) -> str:
    shown = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 6]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", shown[:1], shown[1:], constants)
    path = str(folder / "net.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11), path)
    return path


def agree(path: str, x: np.ndarray = FEEDS) -> np.ndarray:
    """Ask both; where this onnxruntime has no such kernel, there is nothing to agree with."""
    ours = Evaluator(load_graph(path)).run({"x": x})["y"].numpy()
    try:
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes
        pytest.skip(f"onnxruntime: {error}")
    np.testing.assert_allclose(session.run(None, {"x": x})[0], ours, rtol=1e-6)
    return ours


@pytest.mark.parametrize("dtype", [*FEW, *EIGHT])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("block", [None, 0, 3])
def test_quantizers(dtype: str, named: bool, block: int | None, tmp_path):
    """The type is the zero point's or named, one step or one per channel or block."""
    shape = {None: (), 0: (6,), 3: (4, 2)}[block]
    steps = numpy_helper.from_array(np.random.default_rng(1).uniform(0.3, 0.6, shape).astype(np.float32), "s")
    if block is None:
        steps = numpy_helper.from_array(np.float32(0.5), "s")
    count = int(np.prod(shape, dtype=int))
    zero = helper.make_tensor("z", getattr(TensorProto, dtype), shape, [0.0 if dtype in EIGHT else 1.0] * count)
    given = {} if block is None else {"axis": 1} | ({"block_size": block} if block else {})
    target = {"output_dtype": getattr(TensorProto, dtype)} if named else {}
    more = [] if named else ["z"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", *more], ["q"], **given, **target),
        helper.make_node("DequantizeLinear", ["q", "s", *more], ["y"], **given),
    ]
    found = agree(written(nodes, [steps] if named else [steps, zero], tmp_path))
    assert np.abs(found - FEEDS).max() > 0.05  # something was rounded


@pytest.mark.parametrize("dtype", [*FEW, *EIGHT])
@pytest.mark.parametrize("first", [TensorProto.FLOAT, TensorProto.INT32])
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts(dtype: str, first: int, saturate: int, tmp_path):
    x = FEEDS * 100
    x[(np.abs(x) > 464) & (np.abs(x) < 500)] = 512  # onnxruntime 1.31 casts 480 to 448, where 479 and 500 are NaN
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=first),
        helper.make_node("Cast", ["a"], ["q"], to=getattr(TensorProto, dtype), **({} if saturate else {"saturate": 0})),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
    ]
    agree(written(nodes, [], tmp_path), x)


@pytest.mark.parametrize("dtype", FEW)
def test_a_cast_to_the_type_of_another(dtype: str, tmp_path):
    like = helper.make_tensor("z", getattr(TensorProto, dtype), (), [1])
    nodes = [
        helper.make_node("CastLike", ["x", "z"], ["q"]),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
    ]
    agree(written(nodes, [like], tmp_path))
