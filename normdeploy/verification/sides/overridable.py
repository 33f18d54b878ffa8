"""Initializers among a graph's inputs: nothing is fed in their place here, so that their own numbers are judged.

Where both graphs offer one and both hold the same numbers in it, it may be what else a caller gives. Otherwise it is a
constant as far as anything is compared: a number of it that is off is found as in any other.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.verification.derivation.side.value_facts import fed_alike


def unlike(one: ir.Graph, other: ir.Graph) -> list[str]:
    """Return the names of the inputs with numbers of their own that the other graph has not, or has otherwise."""
    sides = [{str(value.name): value for value in graph.inputs if value.is_initializer()} for graph in (one, other)]
    return sorted(
        name
        for name in {*sides[0], *sides[1]}
        if not (name in sides[0] and name in sides[1] and fed_alike(sides[0][name], sides[1][name]))
    )


def take_as_constants(graph: ir.Graph, names: list[str]) -> None:
    """Take some initializers from a graph's inputs, in place."""
    kept = [value for value in graph.inputs if not (value.is_initializer() and value.name in names)]
    graph.inputs.clear()
    graph.inputs.extend(kept)
