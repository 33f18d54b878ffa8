"""Values that are looked at with what is behind them: products without a bias, and what lies inside of a region.

A derivation mostly names the sum of a product and its bias, not the product between. Looked at alone, its weights would
be held against those of each product nearby, and then once more with the bias. A shift leaves the weights as they are:
nothing in it can make up for a wrong one, so that the sum shows all that the product would.

Of a region of operators a derivation names the result alone. Where the result is confirmed, so is all inside of it;
before that no value in it needs to be held against regions of the source.
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


def leads_to(side: Side, value: ir.Value, through: Collection[str], known: Callable[[ir.Value], bool]) -> bool:
    """Tell whether some operators compute a known value of another one, which no body reads.

    None of them reads a constant of several numbers: looked at alone it is compared number by number.

    Args:
        side: their graph. value: the other; its own operator is one of them, whatever that reads.
        through: kinds of operators. known: tells which values are known.
    """
    own = value.producer()
    if own is None or kind(own) not in through or any(use.node.graph is not own.graph for use in value.uses()):
        return False
    queue = [value]
    for current in queue:
        for node in (use.node for use in current.uses()):
            if kind(node) not in through or any(_is_long(side, read) for read in node.inputs):
                continue
            if any(map(known, node.outputs)):
                return True
            queue += [output for output in node.outputs if output not in queue][: _MOST - len(queue)]
    return False


def _is_long(side: Side, value: ir.Value | None) -> bool:
    array = side.constant(value)
    return array is not None and array.size > 1
