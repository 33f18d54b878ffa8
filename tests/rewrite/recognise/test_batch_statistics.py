"""Statistics over the batch are found, named, and left as written."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.rewrite.ledger import LedgerRow
from normdeploy.rewrite.recognise import RecogniseNorms
from normdeploy.rewrite.rewrite_context import RewriteContext

C = 6
G = np.linspace(0.5, 2.0, C).astype(np.float32)


def normalized(x, axes, shape):
    m = x.mean(axes)
    v = (x * x).mean(axes) - m * m
    return (x - m) / (v + 1e-5).sqrt() * G.reshape(shape)


def recognised(model: ir.Model) -> list[LedgerRow]:
    context = RewriteContext()
    RecogniseNorms(context)(model)
    return list(context.ledger)


CASES = {
    "B3": (("n", C), (0,), (C,)),
    "B4, images": (("n", C, 3, 4), (0, 2, 3), (1, C, 1, 1)),
    "B5, sequences": (("n", C, 7), (0, 2), (C, 1)),
    "static batch": ((4, C), (0,), (C,)),
}


@pytest.mark.parametrize("name", CASES)
def test_batch_statistics_are_kept_with_the_reason(name, sketch):
    shape, axes, affine = CASES[name]
    drawing = sketch()
    model = drawing.model(normalized(drawing.input(shape), axes, affine))
    kinds = [node.op_type for node in model.graph]
    (row,) = recognised(model)
    assert [node.op_type for node in model.graph] == kinds
    assert (row.kind, row.action, row.site) == ("batch statistics", "kept", ("y0",))
    assert (row.detail["x"], row.detail["axes"]) == ("x", axes)
    assert row.detail["epsilon"] == pytest.approx(1e-5, rel=1e-6)
    assert "companions" in row.reason


def test_view_to_rows_of_the_batch_is_seen_through(sketch):
    """B2 on (N, L, C) by a view to (N L, C): the averaged dimension is a multiple of the batch."""
    drawing = sketch()
    x = drawing.input(("n", 4, C))
    model = drawing.model(normalized(x.reshape(-1, C), (0,), (C,)).reshape(-1, 4, C))
    (row,) = recognised(model)
    assert (row.kind, row.detail["axes"]) == ("batch statistics", (0, 1))


def test_layer_norms_are_not_batch_statistics(sketch):
    drawing = sketch()
    x = drawing.input(("n", 4, C))
    m = x.mean()
    model = drawing.model((x - m) / (((x - m) ** 2).mean() + 1e-5).sqrt())
    assert [row.kind for row in recognised(model)] == ["LayerNormalization"]


def test_one_sample_without_a_batch_is_a_layer_norm(sketch):
    drawing = sketch()
    x = drawing.input((C,))
    m = x.mean()
    model = drawing.model((x - m) / (((x - m) ** 2).mean() + 1e-5).sqrt() * G)
    recognised(model)
    assert [node.op_type for node in model.graph] == ["LayerNormalization"]


def test_training_mode_node_is_kept():
    model = ir.from_onnx_text(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[n, 3, 4, 4] x) => (float[n, 3, 4, 4] y)
        <float[3] g = {1, 2, 3}, float[3] b = {0, 0, 0}, float[3] m = {0, 0, 0}, float[3] v = {1, 1, 1}>
        { y, rm, rv = BatchNormalization <training_mode = 1, epsilon = 0.001> (x, g, b, m, v) }
        """
    )
    assert [(row.kind, row.action, row.site) for row in recognised(model)] == [("batch statistics", "kept", ("y",))]
