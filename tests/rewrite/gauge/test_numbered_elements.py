"""What moves elements has the gauges of what it moves, one number for all of them or one for each."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest
import torch

from normdeploy.errors import RewriteError
from normdeploy.rewrite.gauge.numbered_elements import require_moved

ONE, TWO, ROW = np.ones((1, 1)), np.full((1, 1), 2.0), np.array([[1.0, 2.0, 3.0]])
EACH = {
    "nothing": (ONE, ONE, ONE),
    "one number": (TWO, TWO, TWO),
    "one number, written for each column": (np.full((1, 3), 2.0), TWO, np.full((1, 6), 2.0)),
    "a result of another number": (TWO, TWO, ONE),
    "operands of two numbers": (ONE, TWO, ONE),
    "operands of two numbers, kept": (ONE, TWO, np.array([[1.0, 1, 1, 2, 2, 2]])),
    "operands of two numbers, turned": (ONE, TWO, np.array([[2.0, 2, 2, 1, 1, 1]])),
    "one number, and one in the result that is another": (TWO, TWO, np.array([[2.0, 2, 2, 2, 2, 2.5]])),
    "a row and a number": (ROW, TWO, np.concatenate([ROW, np.full((1, 3), 2.0)], 1)),
    "a row in another order": (ROW, TWO, np.concatenate([ROW[:, ::-1], np.full((1, 3), 2.0)], 1)),
    "within rounding": (TWO, TWO, TWO * (1 + 1e-15)),
    "infinite": (np.full((1, 1), np.inf), TWO, np.array([[np.inf] * 3 + [2.0] * 3])),
    "no number": (np.full((1, 1), np.nan), np.full((1, 1), np.nan), np.full((1, 1), np.nan)),
}


@pytest.mark.parametrize("shifts", [False, True], ids=["scales", "shifts"])
@pytest.mark.parametrize("which", EACH)
def test_a_join_has_the_gauges_of_its_parts(which: str, shifts: bool) -> None:
    arrays = EACH[which]
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 20]> g (float[4,3] a, float[4,3] b) => (float[4,6] y)'
        "{ y = Concat<axis = 1>(a, b) }"
    )
    node = model.graph.node(0)
    values = [*node.inputs, *node.outputs]
    ties = SimpleNamespace(of=dict(zip(values, range(3), strict=True)), repeated={}, moved={})
    others = [np.ones((1, 1)) if shifts else np.zeros((1, 1))] * 3
    scales, shifted = (others, arrays) if shifts else (arrays, others)
    at = SimpleNamespace(ties=ties, scale=scales.__getitem__, shift=shifted.__getitem__)
    a, b, y = (np.broadcast_to(array, shape) for array, shape in zip(arrays, ((4, 3), (4, 3), (4, 6)), strict=True))
    holds = np.allclose(np.concatenate([a, b], 1), y, rtol=1e-12, atol=0)
    drawn = dict.fromkeys(node.inputs, torch.zeros(4, 3))
    edit = SimpleNamespace(node=node, at=at)
    if holds:
        require_moved(edit, drawn)  # type: ignore[arg-type]  # stands for an edit and its solution
        return
    with pytest.raises(RewriteError, match="expected the gauges of the elements it holds"):
        require_moved(edit, drawn)  # type: ignore[arg-type]  # likewise
