"""Constants of which a part is read that inputs or sizes decide: rows of an embedding, the first places of a table.

Where the parts are the same, the whole constant absorbs a gauge that is one for all of them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import FLOATS, constant_tensor
from normdeploy.graph.operators.call import axis_of
from normdeploy.verification.derivation.gauges import Claim, ranked
from normdeploy.verification.derivation.laws.same_operator import equal
from normdeploy.verification.derivation.related.relation import Finding, Proof, Relation, Target
from normdeploy.verification.derivation.related.stored_rounding import Wrong, compare
from normdeploy.verification.derivation.side.affine_laws import Affine
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind


def confirm_table(relation: Relation, node: ir.Node, origin: ir.Node, behind: Affine, target: Target) -> Finding:
    """Confirm what is read of a table: (row - t) / s.

    Args:
        node, origin: of one kind, of the file and the source. behind: the map of the source's. target: of the file's.
    """
    ours, theirs = constant_tensor(origin.inputs[0]), constant_tensor(node.inputs[0])
    if ours is None or theirs is None:
        return ""
    found = _same_part(relation, node, origin)
    if not isinstance(found, bool):
        return found
    gauges = _of_the_table(relation, node, len(theirs.shape), behind, target)
    if isinstance(gauges, str):
        return gauges
    wrong = _compare(kind(node), ours, theirs, gauges)
    if wrong is not None:
        return wrong
    claim = Claim(node.outputs[0], target.scale, target.shift, found)
    return Proof("looks up the same rows", ((target.value, claim),), (node,))


def _same_part(relation: Relation, node: ir.Node, origin: ir.Node) -> bool | str | Wrong:
    """Return False if both read the same part, True if so by assumption, or why not."""
    axes = [n.attributes.get_int("axis", 0) for n in (node, origin)]
    if any(axes):
        return f"{kind(node)} along another axis than the first"
    ours, theirs = inputs_of(origin)[1:], inputs_of(node)[1:]
    if len(ours) != len(theirs):
        return f"{kind(node)} reads other operands"
    found = [equal(relation, w, v) for w, v in zip(ours, theirs, strict=True)]
    return next((each for each in found if not isinstance(each, bool)), any(found))


def _of_the_table(
    relation: Relation, node: ir.Node, of_table: int, behind: Affine, target: Target
) -> list[Floats] | str:
    """Return a, c, s and t, so that a c' + c = s v + t for the tables c' and v, or why they are not of one row."""
    varies = f"{kind(node)}: its gauge varies with the place"
    rank = relation.rank(target.value)
    if rank is None:
        return varies
    gauges = [ranked(g, rank) for g in (behind.scale, behind.shift, target.scale, target.shift)]
    axes = _places(relation.file, node, rank, of_table)
    known = [g for g in gauges if g is not None and all(g.shape[axis] == 1 for axis in axes)]
    if len(known) < len(gauges):
        return varies
    if kind(node) == "Slice":
        return known
    return [g.reshape((1, *g.shape[len(axes) :])) for g in known]


def _places(side: Side, node: ir.Node, rank: int, of_table: int) -> tuple[int, ...]:
    """Return the axes of the result along which it is decided what is read."""
    if kind(node) == "Gather":
        return tuple(range(rank - (of_table - 1)))
    operands = inputs_of(node)
    axes = side.constant(operands[3]) if len(operands) > 3 and operands[3] is not None else None
    return tuple(range(rank)) if axes is None else tuple(axis_of(int(axis), rank) for axis in axes.reshape(-1))


def _compare(
    what: str, table: ir.TensorProtocol, stored: ir.TensorProtocol, gauges: list[Floats]
) -> Wrong | str | None:
    a, c, s, t = gauges
    if stored.dtype not in FLOATS:
        if any((part != plain).any() for part, plain in ((a, 1), (s, 1), (c, 0), (t, 0))):
            return f"{what}: integers that are scaled or shifted"
        alike = stored.dtype == table.dtype and np.array_equal(stored.numpy(), table.numpy())
        return None if alike else Wrong(f"table of {what} holds other integers")
    if list(stored.shape) != list(table.shape):
        return Wrong(f"table of {what} has shape {list(stored.shape)}; expected {list(table.shape)}")
    raw = table.numpy()
    if ((c - t) != 0).any():
        raw = raw.astype(np.float64) * (a / s) + (c - t) / s
        wrong = compare(stored.numpy(), stored.dtype, raw, size=np.abs(raw) + (np.abs(c) + np.abs(t)) / np.abs(s))
    else:
        wrong = compare(stored.numpy(), stored.dtype, raw, a / s, products=True)
    return None if wrong is None else wrong.of(f"table of {what}")
