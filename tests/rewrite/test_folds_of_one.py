"""Folds of one element leave where all sizes are fixed, proven to be nothing; they stay wherever they are something."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation
from normdeploy.verification.hints import unchanged


def model(given: str, body: str, results: str, axes: tuple[int, ...] = (2, 3)) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> n ({given}) => ({results}) {{ {body} }}'
    )
    if "axes" in body:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(axes), "axes"))
    return proto


def rewritten(source: onnx.ModelProto) -> tuple[list[str], bool]:
    """Return the operators of the rewritten graph, which computes the same, and whether it is proven."""
    graph = ir.from_proto(source)
    result = rewrite(graph)
    target = ir.to_proto(result.model)
    onnx.checker.check_model(target, full_check=True)
    shapes = {v.name: tuple(d.dim_value or 2 for d in v.type.tensor_type.shape.dim) for v in source.graph.input}
    draw = np.random.default_rng(4)
    feeds = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for a, b in zip(*(ReferenceEvaluator(proto).run(None, feeds) for proto in (source, target)), strict=True):
        np.testing.assert_array_equal(a, b)
    more = [{name: (shape[0] + 3, *shape[1:]) for name, shape in shapes.items()}]
    fixed = all(d.dim_value for v in source.graph.input for d in v.type.tensor_type.shape.dim)
    sizes = [shapes] if fixed else [shapes, *more]
    report = check_derivation(ir.from_proto(source), result.model, result.derivation, sizes)
    return [node.op_type for node in result.model.graph], report.confirmed


PIXEL = "float[2,3,1,1] x"
FOLDS = ["GlobalAveragePool (r)", "GlobalMaxPool (r)"] + [
    f"Reduce{name} <keepdims = 1> (r, axes)" for name in ("Mean", "Sum", "Max", "Min")
]


@pytest.mark.parametrize("fold", FOLDS)
def test_a_fold_of_one_pixel_leaves(fold):
    source = model(PIXEL, f"r = Relu (x) g = {fold} y = Tanh (g)", "float[2,3,1,1] y")
    assert rewritten(source) == (["Relu", "Tanh"], True)


@pytest.mark.parametrize("name", ["Mean", "Sum"])
def test_where_its_axes_go_it_is_a_view(name):
    source = model(PIXEL, f"r = Relu (x) g = Reduce{name} <keepdims = 0> (r, axes) y = Tanh (g)", "float[2,3] y")
    assert rewritten(source) == (["Relu", "Reshape", "Tanh"], True)


def test_one_that_the_graph_gives_out_keeps_its_name():
    source = model(PIXEL, "r = Relu (x) y = GlobalAveragePool (r) z = Tanh (r)", "float[2,3,1,1] y, float[2,3,1,1] z")
    assert rewritten(source) == (["Relu", "Tanh"], True)


@pytest.mark.parametrize(
    ("given", "body", "results"),
    [
        # another function of one element
        (PIXEL, "r = Tanh (x) g = ReduceL1 <keepdims = 1> (r, axes) y = Tanh (g)", "float[2,3,1,1] y"),
        (PIXEL, "r = Tanh (x) g = ReduceSumSquare <keepdims = 1> (r, axes) y = Tanh (g)", "float[2,3,1,1] y"),
        (PIXEL, "r = Tanh (x) g = ReduceL2 <keepdims = 1> (r, axes) y = Tanh (g)", "float[2,3,1,1] y"),
        # two pixels
        ("float[2,3,1,2] x", "r = Tanh (x) g = ReduceMean <keepdims = 1> (r, axes) y = Tanh (g)", "float[2,3,1,1] y"),
        ("float[2,3,2,1] x", "r = Tanh (x) g = GlobalAveragePool (r) y = Tanh (g)", "float[2,3,1,1] y"),
        # how many there are is open
        ("float[2,3,1,w] x", "r = Tanh (x) g = GlobalAveragePool (r) y = Tanh (g)", "float[2,3,1,1] y"),
        # and here, what other sizes are
        ("float[n,3,1,1] x", "r = Tanh (x) g = GlobalAveragePool (r) y = Tanh (g)", "float[n,3,1,1] y"),
    ],
)
def test_others_stay(given, body, results):
    source = model(given, body, results)
    assert rewritten(source)[0] == [node.op_type for node in source.graph.node]


def test_where_sizes_vary_no_proof_takes_one_element_for_all():
    """At each size that is tried the pool sees one pixel: the file without it is right there, and not elsewhere."""
    texts = (
        "n (float[n,3,h,h] x) => (float[n,3,1,1] y) { r = MaxPool <kernel_shape = [2, 2], strides = [9, 9]> (x) "
        "g = GlobalAveragePool (r) y = Tanh (g) }",
        "n (float[n,3,h,h] x) => (float[n,3,1,1] y) { r = MaxPool <kernel_shape = [2, 2], strides = [9, 9]> (x) "
        "y = Tanh (r) }",
    )
    source, file = (
        ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["":18]> {t}')) for t in texts
    )
    sizes = [{"x": (2, 3, 4, 4)}, {"x": (5, 3, 6, 6)}]
    assert not check_derivation(source, file, unchanged(source), sizes).confirmed
    assert not check_derivation(source, file, unchanged(source), sizes[:1]).confirmed
