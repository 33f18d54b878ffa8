"""A mean, sum, maximum or minimum over one element is that element: where all sizes are fixed, it leaves the graph.

A fold of one element x is f(x) = c x with c > 0 where it is monotone and homogeneous, and c is 1 for all of ONNX's that
are. So a pool over one pixel, as a small picture leaves it in front of a classifier, is nothing; where the axes go as
well, it is a Reshape.

Where an input's size may vary, one element here may be several elsewhere: then nothing is done.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from normdeploy.graph.edit import edit_each, view_as
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import of_fixed_sizes
from normdeploy.rewrite.identities import hand_on


class FoldsOfOne(ir.passes.InPlacePass):
    """Let what reads a fold of one element read the element."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Visit every graph, where the inputs of the model have fixed sizes."""
        if not of_fixed_sizes(model.graph):
            return ir.passes.PassResult(model, False)
        return edit_each(model, lambda graph, node: folds_one(node) and _remove(graph, node))


def folds_one(node: ir.Node) -> bool:
    """Tell whether an operator folds axes of one element each, and makes nothing else of these."""
    if not (has(node, Trait.REDUCES) and has(node, Trait.MONOTONE) and has(node, Trait.HOMOGENEOUS)):
        return False
    source, result = node.inputs[0], node.outputs[0]
    if not is_standard(node) or source is None or source.shape is None or result.shape is None:
        return False
    if not (source.shape.is_static() and result.shape.is_static()) or source.dtype != result.dtype:
        return False
    before, after = (math.prod(shape.numpy()) for shape in (source.shape, result.shape))
    return before == after > 0 and (source.shape == result.shape or has(node, Trait.SUMS))


def _remove(graph: ir.Graph, node: ir.Node) -> bool:
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    assert result.shape is not None
    if source.shape == result.shape:
        return hand_on(node, source)
    view_as(graph, node, source, [int(size) for size in result.shape.numpy()])
    graph.remove(node, safe=True)
    return True
