"""Blocks of channels: files that onnxruntime's level "all" saves, evaluated and run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnxruntime_outputs import run_onnxruntime
from optimized_files import operators, optimized

from normdeploy.graph import Evaluator, load_graph
from normdeploy.graph.operators.contrib.nchwc import block_size, blocked, plain

DOMAIN = "com.microsoft.nchwc"
RNG = np.random.default_rng(0)

# kernels by name: an image of 3 channels, then channels that are and are not multiples of a block
KERNELS = {
    "w3": (16, 3, 3, 3), "w16": (32, 16, 3, 3), "w20": (20, 16, 1, 1), "w21": (24, 20, 3, 3), "wd": (16, 1, 3, 3),
    "wg": (32, 16, 3, 3),
}  # fmt: skip
CASES = {
    "image": ("c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w3, b16) y = Relu (c)", {"Conv"}),
    "odd channels": ("c = Conv (x, w3, b16) d = Conv (c, w20) y = Conv <pads = [1, 0, 1, 2]> (d, w21)", {"Conv"}),
    "depthwise": ("c = Conv (x, w3) y = Conv <group = 16, strides = [2, 1]> (c, wd, b16)", {"Conv"}),
    "groups": ("c = Conv (x, w3) d = Conv (c, w16) y = Conv <group = 2> (d, wg)", {"Conv"}),
    "sum": (
        "c = Conv (x, w3) d = Conv <group = 16, pads = [1, 1, 1, 1]> (c, wd) s = Add (c, d) y = Relu (s)",
        {"Conv"},
    ),
    "joined": (
        "c = Conv (x, w3) d = Conv <group = 16, pads = [1, 1, 1, 1]> (c, wd) j = Concat <axis = 1> (c, d)"
        " k = Sigmoid (j) y = Conv <group = 2> (k, wg)",
        {"Conv"},
    ),
    "largest": (
        "c = Conv (x, w3) y = MaxPool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 0, 1]> (c)",
        {"MaxPool"},
    ),
    "means": (
        "c = Conv (x, w3) y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (c)",
        {"AveragePool"},
    ),
    "all means": ("c = Conv (x, w3) d = Conv (c, w16) y = GlobalAveragePool (d)", {"GlobalAveragePool"}),
    "all largest": ("c = Conv (x, w3) y = GlobalMaxPool (c)", {"GlobalMaxPool"}),
    "nearest": (
        'c = Conv (x, w3) y = Resize <mode = "nearest", nearest_mode = "floor",'
        ' coordinate_transformation_mode = "asymmetric"> (c, , twice)',
        {"Upsample"},
    ),
    "linear": ('c = Conv (x, w3) y = Resize <mode = "linear"> (c, , twice)', {"Upsample"}),
    "linear corners": (
        'c = Conv (x, w3) y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (c, , twice)',
        {"Upsample"},
    ),
    "linear from the left": (
        'c = Conv (x, w3) y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (c, , twice)',
        {"Upsample"},
    ),
}


def written(body: str, path: Path) -> Path:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[N,3,12,10] x) => (float[a,b,c,d] y) {{ {body} }}'
    proto = parser.parse_model(text)
    used = {name for node in proto.graph.node for name in node.input}
    arrays = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in KERNELS.items()}
    arrays |= {"b16": RNG.standard_normal(16).astype(np.float32), "twice": np.array([1, 1, 2, 2], np.float32)}
    for name, array in arrays.items():
        if name in used:
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(proto, str(path))
    return path


@pytest.mark.parametrize("case", CASES)
def test_the_saved_file_means_what_the_source_means(case: str, tmp_path: Path):
    body, kinds = CASES[case]
    source = written(body, tmp_path / "net.onnx")
    saved = optimized(source, tmp_path / "optimized.onnx", "all")
    if not operators(saved, DOMAIN):
        pytest.skip("this processor's onnxruntime keeps no channels together")
    assert kinds | {"ReorderOutput"} <= operators(saved, DOMAIN), operators(saved, DOMAIN)
    x = RNG.standard_normal((2, 3, 12, 10)).astype(np.float32)
    expected = Evaluator(load_graph(source)).run({"x": x})["y"].numpy()
    got = Evaluator(load_graph(tmp_path / "optimized.onnx")).run({"x": x})["y"].numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_values_lie_as_the_runtime_lays_them():
    from onnx import TensorProto, helper

    node = helper.make_node("ReorderInput", ["x"], ["y"], domain=DOMAIN)
    x = RNG.standard_normal((2, 20, 3, 2)).astype(np.float32)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)], [onnx.ValueInfoProto(name="y")]
    )
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)], ir_version=8
    )
    [theirs] = run_onnxruntime(proto, {"x": x})
    import torch

    mine = blocked(torch.from_numpy(x))
    np.testing.assert_array_equal(mine.numpy(), theirs)
    assert mine.shape[1] % block_size() == 0
    np.testing.assert_array_equal(plain(mine)[:, :20].numpy(), x)
