"""A border that is written into a padded value, moved in front of the 1x1 convolution whose bias it repeats.

The diverse branch block pads what a 1x1 convolution and its norm make of x with what they would make of zeros::

    y = norm(conv(x));  z = pad(y);  z[:, :, :p] = v;  z[:, :, -p:] = v;  ...     with v = norm(conv(0))

which is traced to a chain of ScatterND, slices, transposes and computed indices. It is norm(conv(pad(x))), pad with
zeros: an ordinary Pad, which whatever reads z can take in.

What the chain writes is not read off its operators: it only moves elements, so it is run on distinct numbers
(:mod:`.moved_elements`).

Done where

1. y is made of x by operators that look at one position at a time (1x1 convolutions, norms, affine maps), which nothing
   else reads;
2. in the middle of z stands y, and around it one number per channel: what those operators make of zeros.

Source: X. Ding et al., Diverse Branch Block, 2021, section 3.2 (padding after a BatchNorm).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Floats
from normdeploy.errors import RewriteError
from normdeploy.graph import evaluate_region, module_path
from normdeploy.graph.edit import free_name, put_constant, take_out, take_place
from normdeploy.graph.traits import is_standard
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.affine.operator_names import describe
from normdeploy.rewrite.branches.moved_elements import ENDS, WRITES, Border, border_of, chain_to
from normdeploy.rewrite.branches.operator_as_map import Frame, Reading
from normdeploy.rewrite.branches.value_as_maps import Search
from normdeploy.rewrite.branches.window import Place
from normdeploy.rewrite.ledger import LedgerRow
from normdeploy.rewrite.rewrite_context import TOLERANCE, RewriteContext, RewritePass, relative_distance

RULE = "a border written behind a convolution"
KIND = "written border"

_SAME = 1e-12
"""Largest difference of float64 numbers, over the largest of their kind, that are one number computed in two ways."""


class MovePads(RewritePass):
    """Move pads in front of the convolutions whose bias is written around their results.

    Args:
        context: takes a row for each border that stays, and says whether to check.
    """

    def __init__(self, context: RewriteContext) -> None:
        super().__init__(context)
        self._seen: set[ir.Node] = set()

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every end of a chain in every graph, the last first."""
        modified = False
        for graph in graphs_of(model):
            search = Search(graph)
            for node in reversed(list(graph)):
                if node.graph is graph and node not in self._seen and is_standard(node, *ENDS):
                    modified |= self._move(search, node)
        return ir.passes.PassResult(model, modified)

    def _move(self, search: Search, last: ir.Node) -> bool:
        chain = chain_to(last)
        if chain is None:
            return False
        nodes, source = chain
        points = [
            reading
            for reading in search.of(source, Frame.IMAGE).readings.values()
            if reading.nodes and reading.map.window.is_point and reading.source.shape is not None
        ]
        if not points or last.outputs[0].shape is None:
            return False
        inner = _following(nodes, source) - {last.outputs[0]}
        if any(value.is_graph_output() or any(usage.node not in nodes for usage in value.uses()) for value in inner):
            return False  # it would be padded, too
        self._seen.update(nodes)
        written = any(node.op_type in WRITES for node in nodes)
        border = border_of(nodes, source, last.outputs[0])
        if border is None or not np.isfinite(border.value).all() or not (written or border.value.any()):
            return False  # a Pad of zeros is what it is
        distances = {reading: _distance(reading, border.value) for reading in points}
        fitting = [reading for reading, distance in distances.items() if distance <= _SAME]
        if not fitting and not written:
            return False
        if not fitting:
            reason = (
                f"what is written around the result of {describe(points[0].nodes[-1])} is not what it makes of zeros "
                f"(the difference is {min(distances.values()):.1g} of its size); compute it in float64, or in the "
                "graph, from the same parameters"
            )
            name = str(last.outputs[0].name)
            self.context.ledger.add(LedgerRow(module_path(last), KIND, "kept", "", reason, (name,)))
            return False
        if self.context.check:
            _check(self.context, fitting[-1], border, module_path(last))
        _write(search.graph, fitting[-1], border, nodes, last.outputs[0])
        # what lies in between is padded from now on
        self.context.carried.forget(node.outputs[0] for node in fitting[-1].nodes[:-1])
        search.forget()
        return True


def _following(nodes: Sequence[ir.Node], source: ir.Value) -> set[ir.Value]:
    """Return a value and what a chain makes of it; not the sizes and constants, which other chains may read as well."""
    found = {source}
    for node in nodes:
        if any(value in found for value in node.inputs):
            found.update(node.outputs)
    return found


def _distance(reading: Reading, value: Floats) -> float:
    """Return how far a border is from what operators make of zeros, over the size of both."""
    made = np.zeros(reading.map.outs) if reading.map.bias is None else reading.map.bias()
    size = max(float(np.abs(made).max()), float(np.abs(value).max()))
    return float(np.abs(made - value).max()) / size if size else 0.0


def _check(context: RewriteContext, reading: Reading, border: Border, where: str) -> None:
    """Compare padding behind the operators with padding in front of them.

    Raises:
        RewriteError: they differ.
    """
    rank = len(border.begin)
    x = torch.from_numpy(context.rng.standard_normal([1, reading.map.ins, *range(2, 2 + rank)]))
    widths = [width for axis in reversed(range(rank)) for width in (border.begin[axis], border.end[axis])]
    result = reading.nodes[-1].outputs[0]
    (inner,) = evaluate_region(reading.nodes, {reading.source: x}, [result])
    (found,) = evaluate_region(reading.nodes, {reading.source: torch.nn.functional.pad(x, widths)}, [result])
    expected = torch.from_numpy(border.value).reshape(1, -1, *(1,) * rank).broadcast_to(found.shape).clone()
    middle: Place = (..., *(slice(b, b + n) for b, n in zip(border.begin, inner.shape[2:], strict=True)))
    expected[middle] = inner
    distance = relative_distance(expected, found)
    if not distance <= TOLERANCE:
        raise RewriteError(RULE, where, f"{result.name} differs by {distance:.3g} relative; expected {TOLERANCE:g}")


def _write(graph: ir.Graph, reading: Reading, border: Border, chain: Sequence[ir.Node], result: ir.Value) -> None:
    """Pad in front of the operators, and let their result stand for the chain's."""
    first, y, x = reading.nodes[0], reading.nodes[-1].outputs[0], reading.source
    assert x.shape is not None
    assert y.shape is not None
    assert result.shape is not None
    spatial = [
        inner + b + e if isinstance(inner, int) else outer
        for inner, b, e, outer in zip(y.shape.dims[2:], border.begin, border.end, result.shape.dims[2:], strict=True)
    ]
    widths = np.array([0, 0, *border.begin, 0, 0, *border.end], np.int64)
    pads = put_constant(graph, widths, f"{first.name or y.name}.pads")
    padded = ir.Value(
        name=free_name(graph, f"{x.name}.padded"), type=x.type, shape=ir.Shape([*x.shape.dims[:2], *spatial])
    )
    pad = ir.Node(
        "",
        "Pad",
        [x, pads],
        outputs=[padded],
        name=str(pads.name).removesuffix("s"),
        metadata_props=dict(first.metadata_props),
    )
    graph.insert_before(first, pad)
    for index, value in enumerate(first.inputs):
        if value is x:
            first.replace_input_with(index, padded)
    for node in reading.nodes:
        output = node.outputs[0]
        output.shape = None if output.shape is None else ir.Shape([*output.shape.dims[:2], *spatial])
    take_place(y, result)
    take_out(chain)
