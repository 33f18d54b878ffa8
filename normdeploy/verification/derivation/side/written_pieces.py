"""Functions in pieces written as their parts, where one graph has the function and the other the parts.

torch's exporter writes ``clamp`` as Max and Min, and its optimizer, as that of other tools, a Clip of them. It is
min(max(x, low), high) by definition, also where low is above high. onnxruntime's optimizer writes x HardSigmoid(x) for
a HardSwish, as the operator's definition has it. The smallest is the negative of the largest of the negatives, where
the other graph negates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from normdeploy.graph.traits import is_standard
from normdeploy.verification.derivation.side.largest_of_negatives import LARGEST, write_largest
from normdeploy.verification.derivation.side.spelled_operator import Spelling, Writer

_SIXTH = float(np.float32(1 / 6))


def pieces_differ(source: ir.Model, file: ir.Model) -> set[str]:
    """Return the functions that one of two graphs has, and the other parts of."""
    return {
        function
        for function, (parts, _) in _FUNCTIONS.items()
        for one, other in ((source, file), (file, source))
        if _has(one, function) and _has(other, *parts)
    }


def _has(model: ir.Model, *op_types: str) -> bool:
    return any(is_standard(node, *op_types) for node in model.graph)


def write_pieces(model: ir.Model, functions: Collection[str]) -> set[str]:
    """Write functions of a model's graph as their parts, in place; return the names of what came in between.

    Args:
        model: a copy of its own. functions: by operator.
    """
    made: set[str] = set()
    for node in list(model.graph):
        if not functions or not is_standard(node, *functions):
            continue
        writer = Writer(model, node)
        if _FUNCTIONS[node.op_type][1](writer):
            made |= writer.put()
    return made


def _clip(writer: Writer) -> bool:
    value = writer.read(0)
    for place, (op_type, name) in enumerate((("Max", "min"), ("Min", "max")), start=1):
        given = writer.node.attributes.get_float(name, None)  # before operator set 11
        bound = writer.read(place) if given is None else writer.number(given)
        value = value if bound is None else writer.add(op_type, value, bound)
    return bool(writer.nodes)


def _hard_swish(writer: Writer) -> bool:
    writer.add("Mul", writer.read(0), writer.add("HardSigmoid", writer.read(0), alpha=_SIXTH, beta=0.5))
    return True


_FUNCTIONS: Mapping[str, tuple[tuple[str, ...], Spelling]] = {
    "Clip": (("Max", "Min"), _clip),
    "HardSwish": (("HardSigmoid",), _hard_swish),
    **dict.fromkeys(LARGEST, (("Neg",), write_largest)),
}
"""Each function's parts, by which the other graph is known to have it, and how it is written."""
