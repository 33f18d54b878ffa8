"""Constants of a file before their rounding: what follows from them is computed once, however often it is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from normdeploy.graph.derivation import Derivation
from normdeploy.verification.derivation.related.unrounded import Constants
from normdeploy.verification.derivation.side.checked_side import Side

DOUBLED = 60


def test_what_is_read_twice_at_every_step_is_computed_once(graph_of: Callable[[str], ir.Model]):
    """Sixty doublings: by the way from the end, each value computed for each reader, they would take 2^60 steps."""
    steps = " ".join(f"v{i + 1} = Add(v{i}, v{i})" for i in range(DOUBLED))
    model = graph_of(
        f"g (float[N,4] x) => (float[N,4] y) {{ n = Shape(x) v0 = Cast<to = 1>(n) {steps} y = Mul(x, v{DOUBLED}) }}"
    )
    side = Side(model, [{"x": (3, 4)}])
    product = next(node for node in model.graph if node.op_type == "Mul")
    found = Constants(side, Derivation(())).expression(product.inputs[1], 0)
    np.testing.assert_array_equal(found, np.array([3.0, 4.0]) * 2.0**DOUBLED)
