"""Pools that round their size up have the size that torch and onnxruntime give them, whatever onnx infers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import parser
from torch.nn import functional

import normdeploy as nd
from normdeploy.rewrite.infer import infer_missing_types

NORM = "<float[3] g = {1, 2, 3}, float[3] v = {1, 2, 3}>"


@pytest.mark.parametrize("version", [10, 17, 18, 21, 22])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_a_fold_declares_the_sizes_that_are_returned(kind: str, version: int, tmp_path: Path) -> None:
    """It declared 4 for 5 in padded twos, and its own verdict refused that."""
    pool = f"{kind} <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1>"
    text = f"""<ir_version: 8, opset_import: ["": {version}]> f (float[N, 3, 5, 6] x) => (float[N, 3, a, b] y) {NORM} {{
        c = {pool} (x) y = BatchNormalization (c, g, v, v, g) }}"""
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    assert nd.fold(tmp_path / "net.onnx", tmp_path / "out.onnx").verdict.status == "pass"
    x = torch.randn(2, 3, 5, 6)
    in_torch = {
        "MaxPool": functional.max_pool2d(x, 2, 2, 1, ceil_mode=True),
        "AveragePool": functional.avg_pool2d(x, 2, 2, 1, ceil_mode=True, count_include_pad=False),
    }
    session = ort.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x.numpy()})
    scale, shift = torch.tensor([1.0, 2, 3]).view(3, 1, 1), torch.tensor([1.0, 2, 3]).view(3, 1, 1)
    expected = (in_torch[kind] - shift) / torch.sqrt(scale + 1e-5) * scale + shift
    np.testing.assert_allclose(y, expected.numpy(), atol=1e-5)
    dims = onnx.load(tmp_path / "out.onnx").graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims[1:]] == [3, 3, 4]


def test_in_bodies_and_with_indices() -> None:
    """Behind a value of unknown size nothing is known; the indices of a MaxPool have its size."""
    pool = "MaxPool <kernel_shape = [2], strides = [2], pads = [1, 1], ceil_mode = 1>"
    text = f"""<ir_version: 8, opset_import: ["": 17]> f (bool k, float[N, 3, 5] x, float[N, 3, L] z)
        => (float[N, 3, a] y, int64[N, 3, b] i, float[N, 3, c] w) {{
        r = Relu (x) p, i = {pool} (r) q = {pool} (z) w = Relu (q)
        y = If (k) <then_branch = a () => (float[N, 3, d] t) {{ s = {pool} (x) t = Relu (s) }},
        else_branch = e () => (float[N, 3, e] u) {{ u = Relu (p) }}> }}"""
    model = ir.from_proto(parser.parse_model(text))
    infer_missing_types(model, anew=True)
    sizes = {node.outputs[0].name: node.outputs[0].shape for node in model.graph.all_nodes()}
    assert [sizes[name][-1] for name in ("p", "s", "t", "u")] == [3, 3, 3, 3]
    assert not isinstance(sizes["q"][-1], int)
    assert all(node.domain == "" for node in model.graph.all_nodes())
    assert not model.functions
