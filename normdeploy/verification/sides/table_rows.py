"""Tables of a file that the reference does not have, and whose rows a computed number chooses (a codebook, an expert).

A row that no sample chose shows nothing of itself. Where the reference holds the same table it need not; indices that
are fed are fed from all of the table.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from normdeploy.graph import FLOATS, constant64, constant_tensor
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import values_read


def own_tables(nodes: Iterable[ir.Node], source: Iterable[ir.Node]) -> dict[str, tuple[int, ...]]:
    """Return the operators that read a table which the source has not: name of the result, and the table's rows.

    Args:
        nodes: of the file. source: the source's.
    """
    opened = [node for node in nodes if is_standard(node, "Gather")]
    chosen = [node for node in opened if _stored(node) is not None and _is_chosen(node.inputs[1])]
    if not chosen:
        return {}
    theirs = [table for node in source if is_standard(node, "Gather") and (table := _stored(node)) is not None]
    found: dict[str, tuple[int, ...]] = {}
    for node in chosen:
        table = _stored(node)
        if table is not None and not any(np.array_equal(table, other) for other in theirs):
            axis = node.attributes.get_int("axis", 0)
            found[str(node.outputs[0].name)] = tuple(range(table.shape[axis]))
    return found


def _stored(node: ir.Node) -> np.ndarray | None:
    """Return the table that a Gather reads, if it is one of floats."""
    tensor = constant_tensor(node.inputs[0])
    return constant64(node.inputs[0]) if tensor is not None and tensor.dtype in FLOATS and tensor.shape.rank() else None


def _is_chosen(index: ir.Value | None) -> bool:
    """Tell whether indices follow from numbers that are fed as floats, and from no indices that are fed."""
    queue = [] if index is None else [index]
    seen, floats = set(queue), False
    for value in queue:
        node = value.producer()
        if node is None:
            if constant_tensor(value) is None and value.dtype not in FLOATS:
                return False
            floats |= constant_tensor(value) is None
        elif not is_standard(node, "Shape", "Size"):
            more = [read for read in values_read(node) if read not in seen]
            queue += more
            seen.update(more)
    return floats
