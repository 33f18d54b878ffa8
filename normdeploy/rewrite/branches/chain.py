"""Chains of linear operators behind one value, and the one operator that takes a chain's or a sum's place."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from normdeploy.errors import GraphError
from normdeploy.graph import constant_tensor, module_path
from normdeploy.rewrite.affine import is_affine, settle
from normdeploy.rewrite.affine.constant import dtype_of, optional, required, string
from normdeploy.rewrite.affine.region import Region
from normdeploy.rewrite.branches import term as terms
from normdeploy.rewrite.branches.term import Term
from normdeploy.rewrite.context import RewriteContext

DEPTH = 4
"""Operators of one chain that are looked at."""


def alone(value: ir.Value, reader: ir.Node | None = None) -> bool:
    """Tell whether a value is read exactly once (by ``reader`` if given) and is no graph output."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return False
    return reader is None or next(iter(uses)).node is reader


def chains(leaf: ir.Value, graph: ir.Graph, *, exclusive: bool) -> list[Term]:
    """Return what ``leaf`` is of each value that it depends on through linear spatial operators alone, nearest first.

    Args:
        leaf: the end of the chain.
        graph: chains do not leave it.
        exclusive: whether its producer may go: nothing but the rewrite reads ``leaf``.
    """
    whole = terms.identity(leaf)
    found = [] if whole is None else [whole]
    value = leaf
    while len(found) <= DEPTH and exclusive:
        producer = value.producer()
        if producer is None or producer.graph is not graph:
            break
        step = terms.of_node(producer)
        if step is None:
            break
        if whole is None or not whole.nodes:
            whole = step
        else:
            longer = terms.compose(step, whole)
            if longer is None:
                break
            whole = longer
        found.append(whole)
        value = step.source
        exclusive = alone(value, producer)
    return found


def convolution(region: Region, term: Term, *, like: ir.Node, result: ir.Value, after: ir.Node) -> ir.Node:
    """Make the Conv that computes ``term`` and put it behind ``after``.

    Args:
        region: takes the node and its constants.
        term: what to compute.
        like: the Conv whose name, module path and weight names it takes over.
        result: the value whose type and shape its result has.
        after: a node that stands behind ``term.source``.
    """
    weight, bias = required(like, 1), optional(like, 2)
    dtype = dtype_of(weight)
    shape = (term.outs, term.ins // term.group, *term.window.size)
    inputs: list[ir.Value | None] = [
        term.source,
        region.constant(term.kernel, shape, dtype, name=str(weight.name), succeeds=weight, parts=term.parts),
    ]
    if term.bias is not None:
        stem = str(weight.name).removesuffix(".weight")
        name = f"{stem}.bias" if bias is None else str(bias.name)
        inputs.append(region.constant(term.bias, (term.outs,), dtype, name=name, succeeds=bias))
    node = ir.Node(
        "",
        "Conv",
        inputs,
        attributes=term.window.attributes(term.group),
        outputs=[ir.Value(shape=result.shape, type=result.type)],
        name=like.name,
        metadata_props=dict(like.metadata_props),
    )
    return region.adopt(node, after=after)


def small_feeds(
    context: RewriteContext, term: Term, others: Sequence[ir.Value] = ()
) -> dict[ir.Value, torch.Tensor] | None:
    """Draw inputs for a check: as many positions as show both borders and an interior.

    Args:
        context: draws.
        term: its source gets a small spatial size.
        others: values that are added to the term's result; None is returned where one does not stretch with it.
    """
    reach, window = term.window.reach, term.window
    # sizes differ by axis so that swapped axes show
    sizes = [reach + axis for axis in range(len(window.size))]
    if any(string(node, "auto_pad", "NOTSET").startswith("SAME") for node in term.nodes):
        # such padding depends on the size, so only the real one will do; where it is dynamic the stride is 1
        known = () if term.source.shape is None else term.source.shape.dims[2:]
        sizes = [dim if isinstance(dim, int) else size for dim, size in zip(known, sizes, strict=True)]
    dims = [1, term.ins, *sizes]
    results = [
        (size + excess - 1) // stride + 1
        for size, excess, stride in zip(sizes, window.excess, window.stride, strict=True)
    ]
    feeds = {term.source: torch.from_numpy(context.rng.standard_normal(dims))}
    whole = [1, term.outs, *results]
    for value in others:
        shape = value.shape
        if shape is None or shape.rank() > len(whole):
            return None
        own = [1 if dim == 1 else size for dim, size in zip(shape, whole[len(whole) - shape.rank() :], strict=True)]
        if constant_tensor(value) is not None:
            if list(shape.numpy()) != own:
                return None
        elif value not in feeds:
            feeds[value] = torch.from_numpy(context.rng.standard_normal(own))
    return feeds


def commit(
    context: RewriteContext,
    region: Region,
    rule: str,
    site: str,
    *,
    into: str,
    feeds: dict[ir.Value, torch.Tensor] | None = None,
) -> bool:
    """Check a region and put it in place; settle the affine maps that went with it as merged into ``into``.

    Returns:
        whether it is in place: false where its inputs could not be drawn, and nothing changed.
    """
    affine = [node for node in region.before if is_affine(node)]
    try:
        region.commit(context, rule, site, feeds)
    except GraphError:
        region.discard()
        return False
    for node in affine:
        settle(context.ledger, node, "merged", into, "part of a sum of linear branches")
    return True


def main_convolution(nodes: Sequence[ir.Node]) -> ir.Node:
    """Return the Conv with the most weights, which lends its name."""
    convolutions = [node for node in nodes if node.op_type == "Conv"]
    return max(convolutions, key=lambda node: _size(required(node, 1)))


def _size(value: ir.Value) -> int:
    tensor = value.const_value
    return 0 if tensor is None else tensor.size


def site_of(node: ir.Node) -> str:
    """Return where a rewrite happened, for its error."""
    return module_path(node)
