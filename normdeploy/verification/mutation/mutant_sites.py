"""Where mutants are made: every normalization of a graph, and every convolution that pads what one writes."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import evaluate_node, module_path
from normdeploy.graph.walk import nodes_in
from normdeploy.verification.mutation.mutants import (
    BATCH_NORM,
    NO_EPSILON,
    Apply,
    Mutant,
    Site,
    Values,
    mutants_of,
    opsets,
)


def sites_of(graph: ir.Graph) -> list[Site]:
    """Return every normalization operator of a graph and of the bodies in it, with its mutants, in graph order."""
    sites: list[Site] = []
    whole = dict(graph.opset_imports)
    for node in nodes_in(graph):
        mutants = mutants_of(node, whole)
        if mutants:
            names = tuple(str(v.name) if v is not None and v.name else "" for v in node.inputs)
            where = module_path(node)
            epsilon = node.attributes.get_float("epsilon", 1e-5)
            output = str(node.outputs[0].name)
            epsilon = epsilon if epsilon >= NO_EPSILON else 0.0
            inner = node.graph is not graph
            sites.append(Site(where, node, names, output, mutants, epsilon=epsilon, opset=whole if inner else None))
            sites += [] if inner else border_sites(node, where, names)
    return sites


def border_sites(node: ir.Node, where: str, inputs: tuple[str, ...], right: Apply | None = None) -> list[Site]:
    """A fold into the next convolution that forgets its zero padding: the shift is added outside the image too.

    Args:
        node: a channel-wise affine map. inputs: names of the values it reads. right: computes it; the node by default.
    """
    if node.op_type not in (BATCH_NORM, "Affine"):
        return []
    sites = []
    norm = right or (lambda values: evaluate_node(node, list(values), opset_imports=opsets(node))[0])
    for use, index in node.outputs[0].uses():
        pads = use.attributes.get_ints("pads", ())
        if use.op_type != "Conv" or index != 0 or not any(pads):
            continue
        names = tuple(str(v.name) if v is not None and v.name else "" for v in use.inputs)[1:]
        blind = _border_blind(norm, use, len(inputs))
        mutant = Mutant("a fold that ignores the zero-padded border", blind, same=_shiftless(norm, len(inputs)))
        clean = _conv_of(norm, use, len(inputs))
        sites.append(Site(where, node, (*inputs, *names), str(use.outputs[0].name), [mutant], right=clean))
    return sites


def _conv_of(norm: Apply, conv: ir.Node, count: int) -> Apply:
    opset = opsets(conv)
    return lambda values: evaluate_node(conv, [norm(values[:count]), *values[count:]], opset_imports=opset)[0]


def _shiftless(norm: Apply, count: int) -> Callable[[Values], bool]:
    """Return what tells whether an affine map leaves zeros as they are: padded before it or behind, it is the same."""

    def same(values: Values) -> bool:
        x = values[0]
        assert x is not None
        return not bool(norm([torch.zeros_like(x), *values[1:count]]).any())

    return same


def _border_blind(norm: Apply, conv: ir.Node, count: int) -> Apply:
    opset = opsets(conv)
    pads = list(conv.attributes.get_ints("pads", ()))
    half = len(pads) // 2
    flat = [n for pair in zip(reversed(pads[:half]), reversed(pads[half:]), strict=True) for n in pair]
    kept = [a for a in conv.attributes.values() if a.name != "pads"]
    free = ir.Node("", "Conv", [None] * len(conv.inputs), kept, num_outputs=1)

    def apply(values: Values) -> Tensor:
        x = values[0]
        assert x is not None
        # Padding x with zeros before the norm fills the border of its result with the shift
        inner = norm([torch.nn.functional.pad(x, flat), *values[1:count]])
        return evaluate_node(free, [inner, *values[count:]], opset_imports=opset)[0]

    return apply
