"""Formulas of one integer that are cut to integers again, as the bucket of a distance: held at each integer.

``(log(d / 5) / log(4) * 15).long()`` meets whole numbers, where the last bit decides which integer comes out. Two
formulas that are one in real numbers are not the same there: what floats make such a difference by chance, integers
meet every time. So both are computed as they are stored, in float32, of the first integers.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, evaluate_node
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.derivation.related.stored_rounding import Wrong
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.movement import DEPTH
from normdeploy.verification.derivation.side.operands import inputs_of, kind

_INTEGERS = 1024

_MOVES = Trait.MOVES | Trait.KEEPS_ORDER


class _Outside(Exception):
    """It is no formula of one integer."""


def other_integers(side: Side, origin: ir.Node, file: Side, node: ir.Node) -> Wrong | None:
    """Return at which integer an operator cuts another number than the source's does; None where both cut alike.

    Args:
        side, origin: of the source. file, node: of the file, of the same kind.
    """
    if not _cuts(side, origin):
        return None
    try:
        ours, theirs = (_values(one, cutter) for one, cutter in ((side, origin), (file, node)))
    except (_Outside, GraphError, RuntimeError):
        return None
    at = np.flatnonzero((ours != theirs).numpy())
    if not at.size:
        return None
    first, (want, have) = int(at[0]), (float(one[int(at[0])]) for one in (ours, theirs))
    told = f"{kind(node)} makes {have:g} of the integer {first}; expected {want:g}: its formula rounds otherwise"
    return Wrong(told, certain=True)


def _cuts(side: Side, node: ir.Node) -> bool:
    made, read = side.type_of(node.outputs[0]), None if not node.inputs else node.inputs[0]
    if read is None or side.type_of(read) not in FLOATS:
        return False
    return has(node, Trait.DECIDES) or (kind(node) in ("Cast", "CastLike") and made not in FLOATS)


def _values(side: Side, cutter: ir.Node) -> Tensor:
    """Return what an operator makes of the first integers, 0 where what it reads is no number."""
    leaves: set[ir.Value] = set()
    read = [None if value is None else _computed(side, value, leaves, 0) for value in inputs_of(cutter)]
    if len(leaves) != 1:
        raise _Outside
    made = evaluate_node(cutter, read, dtype=torch.float32, opset_imports=side.imports)[0]
    finite = torch.stack([part.expand(_INTEGERS).isfinite() for part in read if part is not None]).all(0)
    return torch.where(finite, made.expand(_INTEGERS), 0)


def _computed(side: Side, value: ir.Value, leaves: set[ir.Value], depth: int) -> Tensor:
    constant = side.constant(value)
    if constant is not None:
        if constant.size != 1:
            raise _Outside
        return torch.from_numpy(np.asarray(constant.reshape(()), np.float32 if constant.dtype.kind == "f" else None))
    node, dtype = value.producer(), side.type_of(value)
    if dtype is not None and dtype.is_integer():
        leaves.add(value)
        return torch.arange(_INTEGERS)
    if node is None or depth > DEPTH or dtype not in FLOATS:
        raise _Outside
    read = inputs_of(node)
    if has(node, _MOVES) and read[0] is not None:
        return _computed(side, read[0], leaves, depth + 1)
    if not (has(node, Trait.POINTWISE) or kind(node) in ("Cast", "Identity")):
        raise _Outside
    operands = [None if one is None else _computed(side, one, leaves, depth + 1) for one in read]
    return evaluate_node(node, operands, dtype=torch.float32, opset_imports=side.imports)[0]
