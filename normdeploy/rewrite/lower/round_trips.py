"""Remove movements that undo each other: a view and its way back, two inverse transposes, a no-op.

What a hand-written norm leaves behind once its arithmetic has moved into a neighbour. A chain of Reshape, Transpose,
Flatten, Squeeze, Unsqueeze and Identity is a round trip when

1. it returns every element to its place: shown by moving 0, 1, 2, ... through it;
2. it does so at several sizes of every dynamic dimension, and no constant decides what becomes of a dynamic size.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph.edit import is_read, take_out_unread, take_place
from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import graphs_of
from normdeploy.rewrite.recognise.clamps import clamp_of
from normdeploy.rewrite.recognise.norm_region import GraphRegions, Region
from normdeploy.rewrite.recognise.probe import Probe
from normdeploy.rewrite.recognise.trial_sizes import TURNS

_LONGEST = 12


class RemoveRoundTrips(ir.passes.InPlacePass):
    """Replace each round trip's end by its start; the longest from each end goes first.

    What was found to move something is not tried again when this pass comes again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._moving = set[tuple[object, ...]]()

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Remove the round trips of the main graph and of its bodies."""
        modified = False
        for graph in graphs_of(model):
            regions = GraphRegions(graph)
            for node in list(graph):
                if has(node, Trait.PERMUTES):
                    modified |= self._remove(regions, node)
        return ir.passes.PassResult(model, modified)

    def _remove(self, regions: GraphRegions, end: ir.Node) -> bool:
        y = end.outputs[0]
        if not is_read(y):
            return False
        starts: list[tuple[ir.Value, list[ir.Node]]] = []
        chain: list[ir.Node] = []
        node: ir.Node | None = end
        while has(node, Trait.PERMUTES) and len(chain) < _LONGEST:
            source = node.inputs[0]
            if source is None or source.shape is None:
                break
            if node.graph is not end.graph:
                break  # computed outside this body
            chain.insert(0, node)
            starts.append((source, list(chain)))
            node = source.producer()
        for source, nodes in reversed(starts):
            if not _may_replace(y, source):
                continue
            known = (source, str(source.shape), *(item for node in nodes for item in (node, *node.inputs)))
            if known in self._moving or regions.is_side(source):
                continue
            region = regions.chain(source, nodes)
            if region is not None and _returns(region, y):
                take_place(source, y, named=False)
                take_out_unread([y])  # else it would go on as a reader of the start
                return True
            self._moving.add(known)
        return False


def _may_replace(y: ir.Value, source: ir.Value) -> bool:
    """Tell whether all readers of ``y`` can read ``source``: a graph output keeps its name and its own value."""
    if any(isinstance(value.type, (ir.OptionalType, ir.SequenceType)) for value in (source, y)):
        return False  # what holds a tensor is none: OptionalGetElement moves nothing, and stays
    if source.dtype != y.dtype or source.shape is None or y.shape is None or len(source.shape) != len(y.shape):
        return False
    for before, after in zip(source.shape, y.shape, strict=True):
        if isinstance(before, int) and isinstance(after, int) and before != after:
            return False
    if not y.is_graph_output():
        return True
    producer, end = source.producer(), y.producer()
    if producer is None or end is None or producer.graph is not end.graph:
        return False  # a body must compute what it returns
    return not (source.is_graph_output() or source.is_graph_input() or source.is_initializer())


def _returns(region: Region, y: ir.Value) -> bool:
    if clamp_of(region, region.nodes) is not None:
        return False
    for turn in range(TURNS):
        try:
            probe = Probe(region, turn)
            x = np.arange(float(np.prod(probe.shape))).reshape(probe.shape)
            (moved,) = probe.run(x, [y])
        except GraphError:
            return False  # sizes made up for dynamic dimensions need not fit the views; then nothing is known
        if moved.shape != x.shape or not np.array_equal(moved, x):
            return False
    return True
