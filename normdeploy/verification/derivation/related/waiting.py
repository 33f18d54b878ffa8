"""Products without a bias that are looked at with the shift behind them, as one linear operator.

A derivation mostly names the sum of a product and its bias, not the product between. Looked at alone, its weights would
be held against those of each product nearby, and then once more with the bias. A shift leaves the weights as they are:
nothing in it can make up for a wrong one, so that the sum shows all that the product would.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.verification.derivation.side.affine_laws import step_of
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import kind


def shifted(side: Side, value: ir.Value) -> ir.Value | None:
    """Return a product with constant weights shifted by constants, where nothing else reads the product.

    Args:
        side: its graph. value: the product.

    Returns:
        the shifted value; None where the value is no such product.
    """
    node, uses = value.producer(), list(value.uses())
    if node is None or kind(node) != "MatMul" or len(uses) != 1 or value.is_graph_output():
        return None
    if not any(read is not None and side.is_constant(read) for read in node.inputs):
        return None
    behind = uses[0].node.outputs[0]
    step = step_of(side, behind)
    plain = step is not None and step.value is value and bool((step.scale == 1).all()) and not step.off_scale.any()
    return behind if plain else None
