"""Views in a row are one, Transposes of axes of one element among them; what moves an element stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation

TARGETS = {
    "six": np.array([6, 4]),
    "three": np.array([2, 3, 4]),
    "ones": np.array([2, 1, 3, 4]),
    "first": np.array([0]),
    "second": np.array([1]),
}


def rewritten(given: str, body: str, results: str) -> list[str]:
    """Return the operators of the rewritten graph, which computes the same at several sizes, and is proven."""
    source = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> n ({given}) => ({results}) {{ {body} }}'
    )
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    source.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in TARGETS.items() if n in words)
    result = rewrite(ir.from_proto(source))
    target = ir.to_proto(result.model)
    onnx.checker.check_model(target, full_check=True)
    sizes = []
    for size in (2, 5):
        sizes.append(
            {v.name: tuple(d.dim_value or size for d in v.type.tensor_type.shape.dim) for v in source.graph.input}
        )
        draw = np.random.default_rng(size)
        feeds = {name: draw.normal(size=shape).astype(np.float32) for name, shape in sizes[-1].items()}
        for a, b in zip(*(ReferenceEvaluator(proto).run(None, feeds) for proto in (source, target)), strict=True):
            np.testing.assert_array_equal(a, b)
    sizes = sizes[: 1 if sizes[0] == sizes[1] else 2]
    assert check_derivation(ir.from_proto(source), result.model, result.derivation, sizes).confirmed
    return [node.op_type for node in result.model.graph]


@pytest.mark.parametrize(
    ("given", "body", "results", "left"),
    [
        ("float[2,3,4] x", "r = Tanh (x) a = Reshape (r, ones) b = Reshape (a, six) y = Exp (b)", "float[6,4] y",
         "Tanh Reshape Exp"),
        ("float[2,3,4] x", "r = Tanh (x) a = Unsqueeze (r, second) b = Flatten (a) y = Exp (b)", "float[2,12] y",
         "Tanh Reshape Exp"),
        ("float[2,3,4] x", "r = Tanh (x) a = Reshape (r, ones) b = Transpose <perm = [1, 0, 2, 3]> (a) "
         "c = Reshape (b, six) y = Exp (c)", "float[6,4] y", "Tanh Reshape Exp"),
        ("float[n,3,4] x", "r = Tanh (x) a = Unsqueeze (r, second) b = Flatten (a) y = Exp (b)", "float[n,12] y",
         "Tanh Reshape Exp"),
        # nothing at all
        ("float[1,1,4] x", "r = Tanh (x) a = Transpose <perm = [1, 0, 2]> (r) y = Exp (a)", "float[1,1,4] y",
         "Tanh Exp"),
        ("float[1,1,1] x", "r = Tanh (x) a = Transpose (r) y = Exp (a)", "float[1,1,1] y", "Tanh Exp"),
        ("float[2,3,4] x", "r = Tanh (x) a = Unsqueeze (r, second) b = Transpose <perm = [1, 0, 2, 3]> (a) "
         "c = Squeeze (b, first) y = Exp (c)", "float[2,3,4] y", "Tanh Exp"),
    ],
)  # fmt: skip
def test_a_row_of_views_is_one(given, body, results, left):
    assert rewritten(given, body, results) == left.split()


@pytest.mark.parametrize(
    ("given", "body", "results"),
    [
        # it moves elements
        ("float[2,3,4] x", "a = Transpose <perm = [1, 0, 2]> (x) y = Flatten (a)", "float[3,8] y"),
        # no view beside it
        ("float[2,1,4] x", "r = Tanh (x) a = Transpose <perm = [1, 0, 2]> (r) y = Exp (a)", "float[1,2,4] y"),
        # another reads what is in between
        ("float[2,3,4] x", "a = Reshape (x, six) y = Reshape (a, ones) z = Exp (a)", "float[2,1,3,4] y, float[6,4] z"),
        # two sizes are open
        ("float[n,m,4] x", "a = Unsqueeze (x, second) b = Exp (a) y = Squeeze (b, second)", "float[n,m,4] y"),
        ("float[n,m,4] x", "a = Unsqueeze (x, first) b = Unsqueeze (a, first) y = Exp (b)", "float[1,1,n,m,4] y"),
        # a size that is open may be more than one
        ("float[n,3,4] x", "a = Transpose <perm = [1, 0, 2]> (x) y = Exp (a)", "float[3,n,4] y"),
    ],
)
def test_others_stay(given, body, results):
    expected = [word for word in body.replace("(", " (").split() if word[0].isupper()]
    assert rewritten(given, body, results) == expected
