"""A Clip written as a Max and a Min, where one graph has the one and the other the others.

torch's exporter writes ``clamp`` as Max and Min, and its optimizer, as that of other tools, a Clip of them. It is
min(max(x, low), high) by definition, also where low is above high.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.traits import is_standard
from normdeploy.verification.derivation.side.spelled_operator import Writer


def bounds_differ(source: ir.Model, file: ir.Model) -> bool:
    """Tell whether one of two graphs has a Clip, and the other a Max or a Min."""
    return any(
        any(is_standard(node, "Clip") for node in one.graph)
        and any(is_standard(node, "Max", "Min") for node in other.graph)
        for one, other in ((source, file), (file, source))
    )


def write_bounds(model: ir.Model) -> set[str]:
    """Write each Clip of a model's graph as a Max and a Min, in place; return the names of what came in between.

    Args:
        model: a copy of its own.
    """
    made: set[str] = set()
    for node in list(model.graph):
        if not is_standard(node, "Clip"):
            continue
        writer = Writer(model, node)
        value = writer.read(0)
        for place, (op_type, name) in enumerate((("Max", "min"), ("Min", "max")), start=1):
            given = node.attributes.get_float(name, None)  # before operator set 11
            bound = writer.read(place) if given is None else writer.number(given)
            value = value if bound is None else writer.add(op_type, value, bound)
        if writer.nodes:
            made |= writer.put()
    return made
