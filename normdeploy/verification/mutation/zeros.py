"""Sites that weights of nothing but zeros cut off from the outputs: no input shows what such a site computes.

A head before training, the last scale of a residual branch that starts as the identity: both are zeros on purpose, and
whatever stands in front of them could be wrong unseen.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from normdeploy.graph import ExactTensor, constant_tensor, module_path
from normdeploy.graph.exact import round_once
from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import bodies_of
from normdeploy.verification.mutation.mutants import Site

_NAMED = 3


def behind_zeros(graph: ir.Graph, sites: Sequence[Site]) -> dict[Site, str]:
    """Return, by each site of the main graph that no output depends on, why in a sentence.

    Args:
        graph: the graph that the sites are in. sites: those asked about.
    """
    cut = _cut_edges(graph)
    if not cut:
        return {}
    alive = _alive(graph, cut)
    values = {str(v.name): v for node in graph for v in node.outputs}
    unseen: list[Site] = []
    layers: dict[str, None] = {}
    for site in sites:
        value = values.get(site.output)
        if not site.inner and value is not None and value not in alive:
            found = _layers(value, cut)
            layers |= dict.fromkeys(found)
            unseen += [site] if found else []
    named = "; ".join(list(layers)[:_NAMED]) + (f"; and {len(layers) - _NAMED} more" if len(layers) > _NAMED else "")
    note = (
        "the outputs depend on it only through weights that are all zeros, as before training "
        f"({named}): load trained weights, or draw random ones, and verify again"
    )
    return dict.fromkeys(unseen, note)


def _cut_edges(graph: ir.Graph) -> dict[ir.Node, int]:
    """Return the nodes of which one factor is zeros, with the place of the other factor."""
    found = {}
    for node in graph:
        for factor, other, trait in ((0, 1, Trait.MULTIPLIES), (1, 0, Trait.WEIGHS)):
            if has(node, trait) and len(node.inputs) > 1 and _zeros(node.inputs[factor]):
                found[node] = other
    return found


def _zeros(value: ir.Value | None) -> bool:
    tensor = None if value is None else constant_tensor(value)
    producer = None if value is None else value.producer()
    if tensor is None and producer is not None and has(producer, Trait.MOVES | Trait.CONVERTS):
        return _zeros(producer.inputs[0])
    if tensor is None and producer is not None and has(producer, Trait.JOINS):
        return all(_zeros(part) for part in producer.inputs)
    if tensor is None or not tensor.size:
        return False
    if isinstance(tensor, ExactTensor) and tensor.parts is not None:  # computed piece by piece, where one is asked for
        pieces = tensor.parts.pieces(tuple(tensor.shape.numpy()))
        return not any(round_once(piece, tensor.dtype).any() for _, _, piece in pieces)
    array = tensor.numpy()
    return not array.flat[0] and not array.any()  # the first element settles nearly all, without reading the rest


def _alive(graph: ir.Graph, cut: dict[ir.Node, int]) -> set[ir.Value]:
    """Return the values that some output depends on, whatever the cut factors hold."""
    alive = set(graph.outputs)
    for node in reversed(list(graph)):
        if not alive.intersection(node.outputs):
            continue
        alive.update(v for i, v in enumerate(node.inputs) if v is not None and cut.get(node) != i)
        for inner in (n for body in bodies_of(node) for n in body.all_nodes()):  # a body reads values around it by name
            alive.update(v for v in inner.inputs if v is not None)
    return alive


def _layers(value: ir.Value, cut: dict[ir.Node, int]) -> list[str]:
    """Return, in words, the nodes at which everything computed from a value meets zeros."""
    layers: dict[str, None] = {}
    queue, seen = [value], {value}
    for current in queue:
        for node, index in current.uses():
            if cut.get(node) == index:
                layers[f"{node.op_type} at {module_path(node)!r}"] = None
                continue
            queue += [output for output in node.outputs if output not in seen]
            seen.update(node.outputs)
    return list(layers)
