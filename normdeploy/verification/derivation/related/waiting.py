"""Values that are looked at with what is behind them: products without a bias, and what lies inside of a region.

A derivation mostly names the sum of a product and its bias, not the product between. Looked at alone, its weights would
be held against those of each product nearby, and then once more with the bias. A shift leaves the weights as they are:
nothing in it can make up for a wrong one, so that the sum shows all that the product would.

Of a region of operators a derivation names the result alone. Where the result is confirmed, so is all inside of it;
before that no value in it needs to be held, region by region, against those of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from normdeploy.verification.derivation.side.affine_laws import step_of
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import kind

_MOST = 16
"""Operators behind a value that are looked at."""


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


def leads_to(value: ir.Value, through: Collection[str], known: Callable[[ir.Value], bool]) -> bool:
    """Tell whether some operators compute a known value of another one, which no body reads.

    Args:
        value: the other; its own operator is one of them. through: kinds of operators. known: tells which are known.
    """
    own = value.producer()
    if own is None or any(usage.node.graph is not own.graph for usage in value.uses()):
        return False
    seen: dict[ir.Value, None] = {value: None}
    queue = [value]
    for current in queue:
        maker = current.producer()
        if maker is None or kind(maker) not in through:
            continue
        if current is not value and known(current):
            return True
        ahead = [output for usage in current.uses() for output in usage.node.outputs if output not in seen]
        ahead = ahead[: _MOST - len(seen)]
        seen.update(dict.fromkeys(ahead))
        queue += ahead
    return False
