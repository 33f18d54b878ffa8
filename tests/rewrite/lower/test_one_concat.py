"""Concats of Concats are one, of any number of parts; what something else reads, or joins along another axis, stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from normdeploy.rewrite import rewrite
from normdeploy.verification.derivation.checker import check_derivation

GIVEN = "float[n,2,3] x, float[n,2,3] z"
FRONT = "a = Tanh (x) b = Exp (z) c = Sin (x) "


@pytest.mark.parametrize(
    ("body", "results", "left"),
    [
        ("i = Concat <axis = 1> (b, c) y = Concat <axis = 1> (a, i)", "float[n,6,3] y", 1),
        ("i = Concat <axis = -2> (b, c) y = Concat <axis = 1> (i, a, i)", "float[n,10,3] y", 2),  # read at two places
        ("i = Concat <axis = 1> (b, c) j = Concat <axis = 1> (a, b) y = Concat <axis = 1> (i, j)", "float[n,8,3] y", 1),
        ("i = Concat <axis = 1> (b, c) j = Concat <axis = 1> (i, a) y = Concat <axis = 1> (c, j)", "float[n,8,3] y", 1),
        ("i = Concat <axis = 2> (b, c) j = Concat <axis = 2> (a, a) y = Concat <axis = 1> (i, j)", "float[n,4,6] y", 3),
        ("i = Concat <axis = 1> (b, c) y = Concat <axis = 1> (a, i) w = Neg (i)", "float[n,6,3] y, float[n,4,3] w", 2),
        ("i = Concat <axis = 1> (b, c) y = Concat <axis = 1> (a, i)", "float[n,6,3] y, float[n,4,3] i", 2),
    ],
)  # fmt: skip
def test_concats_of_concats(body: str, results: str, left: int):
    source = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> n ({GIVEN}) => ({results}) {{ {FRONT}{body} }}'
    )
    result = rewrite(ir.from_proto(source))
    target = ir.to_proto(result.model)
    onnx.checker.check_model(target, full_check=True)
    assert [node.op_type for node in result.model.graph].count("Concat") == left
    sizes = [{"x": (size, 2, 3), "z": (size, 2, 3)} for size in (1, 4)]
    rng = np.random.default_rng(0)
    for given in sizes:
        feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in given.items()}
        want, have = (ReferenceEvaluator(proto).run(None, feeds) for proto in (source, target))
        for a, b in zip(want, have, strict=True):
            np.testing.assert_array_equal(a, b)
    assert check_derivation(ir.from_proto(source), result.model, result.derivation, sizes).confirmed
