"""Numbers that follow from constants alone are computed; what hangs on an input is told from them at once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from normdeploy.graph import computed_constants
from normdeploy.graph.computed_constants import computed_constant


def results(body: str, constants: str) -> dict[str, ir.Value]:
    head = '<ir_version: 10, opset_import: ["": 18]> g (float[n] x) => (float[n] y)'
    model = ir.from_onnx_text(f"{head} <{constants}> {{ {body} y = Relu(x) }}")
    return {str(value.name): value for node in model.graph for value in node.outputs}


def test_what_follows_from_constants() -> None:
    found = results("a = Mul(b, c) d = Sqrt(a) e = Concat<axis = 0>(d, d)", "float[1] b = {2}, float[1] c = {8}")
    assert computed_constant(found["a"]) == [16.0]
    np.testing.assert_array_equal(computed_constant(found["e"]), [4.0, 4.0])
    assert computed_constant(None) is None


def test_what_hangs_on_an_input_is_none_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operator reads the one before twice: 2^14 ways lead to the input."""
    found = results("h0 = Add(b, x) " + " ".join(f"h{k + 1} = Mul(h{k}, h{k})" for k in range(14)), "float[1] b = {2}")
    asked = list[ir.Value | None]()
    original = computed_constants.computed_constant

    def counted(value: ir.Value | None, depth: int = 0):
        asked.append(value)
        return original(value, depth)

    monkeypatch.setattr(computed_constants, "computed_constant", counted)
    assert counted(found["h14"]) is None
    assert len(asked) == 17
