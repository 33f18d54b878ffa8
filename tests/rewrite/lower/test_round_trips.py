"""Movements that undo each other go; every other one stays."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
import torch

from normdeploy.graph import Evaluator
from normdeploy.rewrite.lower import Clean, RemoveRoundTrips

HEAD = '<ir_version: 10, opset_import: ["" : 20]> net (float[n, 3, 4, 4] x) => (float[{out}] y)'
CONSTANTS = (
    "<int64[3] flat = {0, 3, -1}, int64[4] back = {0, 3, 4, 4}, int64[4] other = {0, 4, 4, 3}, int64[1] two = {2}>"
)


def rewritten(body: str, out: str = "n, 3, 4, 4") -> tuple[ir.Model, ir.Model]:
    import onnx_ir.passes.common as common

    model = ir.from_onnx_text(f"{HEAD.format(out=out)} {CONSTANTS} {{ {body} }}")
    common.ShapeInferencePass()(model)
    before = model.clone()
    RemoveRoundTrips()(model)
    Clean()(model)
    onnx.checker.check_model(ir.to_proto(model))
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    old, new = (Evaluator(item).run({"x": x})["y"] for item in (before, model))
    assert torch.equal(old, new)
    return before, model


GONE = {
    "blocks": (
        "a = Relu(x) b = SpaceToDepth <blocksize = 2> (a) c = DepthToSpace <blocksize = 2> (b) y = Sqrt(c)",
        ["Relu", "Sqrt"],
    ),
    "views": ("a = Relu(x) b = Reshape(a, flat) c = Reshape(b, back) y = Sqrt(c)", ["Relu", "Sqrt"]),
    "views to an output": ("a = Relu(x) b = Reshape(a, flat) y = Reshape(b, back)", ["Relu"]),
    "transposes": (
        "a = Relu(x) b = Transpose <perm = [0, 2, 3, 1]> (a) c = Transpose <perm = [0, 3, 1, 2]> (b) y = Sqrt(c)",
        ["Relu", "Sqrt"],
    ),
    "mixed": (
        "a = Relu(x) b = Transpose <perm = [0, 2, 3, 1]> (a) d = Unsqueeze(b, two) e = Squeeze(d, two) "
        "c = Transpose <perm = [0, 3, 1, 2]> (e) y = Sqrt(c)",
        ["Relu", "Sqrt"],
    ),
    "target from the shape": (
        "a = Relu(x) s = Shape(a) b = Reshape(a, flat) c = Reshape(b, s) y = Sqrt(c)",
        ["Relu", "Sqrt"],
    ),
    "one of two readers": (
        "a = Relu(x) b = Reshape(a, flat) d = Reshape(b, back) e = Sqrt(b) f = Reshape(e, back) y = Add(d, f)",
        ["Relu", "Reshape", "Sqrt", "Reshape", "Add"],
    ),
}

KEPT = {
    "another order": (
        "a = Relu(x) b = Transpose <perm = [0, 2, 3, 1]> (a) c = Reshape(b, back) y = Sqrt(c)",
        "n, 3, 4, 4",
    ),
    "square transpose": ("a = Relu(x) c = Transpose <perm = [0, 1, 3, 2]> (a) y = Sqrt(c)", "n, 3, 4, 4"),
    "work in between": (
        "a = Relu(x) b = Transpose <perm = [0, 2, 3, 1]> (a) d = Sqrt(b) c = Transpose <perm = [0, 3, 1, 2]> (d) "
        "y = Relu(c)",
        "n, 3, 4, 4",
    ),
    "another shape": ("a = Relu(x) b = Reshape(a, flat) c = Reshape(b, other) y = Sqrt(c)", "n, 4, 4, 3"),
    "from input to output": ("b = Reshape(x, flat) y = Reshape(b, back)", "n, 3, 4, 4"),
}


@pytest.mark.parametrize("name", GONE)
def test_round_trip_goes(name):
    body, expected = GONE[name]
    _, model = rewritten(body)
    assert [node.op_type for node in model.graph] == expected


@pytest.mark.parametrize("name", KEPT)
def test_other_movement_stays(name):
    before, model = rewritten(*KEPT[name])
    assert [node.op_type for node in model.graph] == [node.op_type for node in before.graph]
