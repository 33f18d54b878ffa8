"""Batch statistics: a normalization whose result for one sample depends on the others of its batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.graph import module_path
from normdeploy.rewrite.recognise.hypothesis import Norm
from normdeploy.rewrite.recognise.region import GraphRegions
from normdeploy.rewrite.recognise.search import best_of

REASON = (
    "it normalizes with the statistics of the batch it is given, so one sample's output depends on its companions; "
    "keep running statistics and export in evaluation mode"
)


@dataclass(frozen=True)
class BatchStatistics:
    """A normalization by the statistics of the batch in an inference graph.

    Args:
        where: module path, or node name.
        x: name of the value that is normalized.
        y: name of the result.
        axes: the axes averaged over; empty for a BatchNormalization node in training mode.
        epsilon: under the root, in the units of the biased variance.
    """

    where: str
    x: str
    y: str
    axes: tuple[int, ...]
    epsilon: float


def batch_statistics(model: ir.Model) -> list[BatchStatistics]:
    """List the regions of a graph that normalize by batch statistics, hand-written or not; the graph stays as it is.

    Args:
        model: constants evaluated (``weights.EvaluateConstants``) or not; values typed, with shapes.

    Returns:
        one entry per region, in graph order.
    """
    rng = np.random.default_rng(0)
    regions = GraphRegions(model.graph)
    found: list[BatchStatistics] = []
    seen: set[ir.Value] = set()
    for node in model.graph:
        if in_training_mode(node):
            epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
            names = (str(node.inputs[0].name) if node.inputs[0] is not None else "", str(node.outputs[0].name))
            found.append(BatchStatistics(module_path(node), *names, (), epsilon))
    for seed in regions.seeds():
        best, _ = best_of(regions, seed, rng)
        if best is None or best.y in seen or not over_the_batch(best.norm, best.region.x, model.graph):
            continue
        seen.add(best.y)
        names = (str(best.region.x.name), str(best.y.name))
        found.append(BatchStatistics(module_path(seed), *names, best.norm.blocks.axes, best.norm.epsilon))
    return found


def in_training_mode(node: ir.Node) -> bool:
    """Tell whether a node is a BatchNormalization that computes its own statistics."""
    if node.op_type != "BatchNormalization" or node.domain not in ("", "ai.onnx"):
        return False
    return "training_mode" in node.attributes and node.attributes["training_mode"].as_int() != 0


def over_the_batch(norm: Norm, x: ir.Value, graph: ir.Graph) -> bool:
    """Tell whether statistics are taken over the batch.

    The batch is the dynamic first dimension of the graph's inputs; where that is static, axis 0, unless all axes are
    averaged over (a single sample without a batch).
    """
    if x.shape is None:
        return False
    first_dims = [value.shape[0] for value in graph.inputs if value.shape is not None and len(value.shape) > 0]
    names = {dim.value for dim in first_dims if isinstance(dim, ir.SymbolicDim)}
    for axis in norm.blocks.axes:
        dim = x.shape[axis]
        if isinstance(dim, ir.SymbolicDim) and dim.value is not None and names & (dim.free_symbols() | {dim.value}):
            return True
    if names:
        return False
    averaged = set(norm.blocks.axes)
    return 0 in averaged and x.shape[0] in first_dims and len(averaged) < len(x.shape)
