"""Batch statistics: a normalization whose result for one sample depends on the others of its batch."""

from __future__ import annotations

import onnx_ir as ir
import torch

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator
from normdeploy.graph.dynamic_dims import names_of
from normdeploy.graph.onnx_files import declared
from normdeploy.graph.traits import is_standard
from normdeploy.ort.made_inputs import make_inputs
from normdeploy.rewrite.recognise.hypothesis import Norm

REASON = (
    "it normalizes with the statistics of the batch it is given, so one sample's output depends on its companions; "
    "keep running statistics and export in evaluation mode"
)


def in_training_mode(node: ir.Node) -> bool:
    """Tell whether a node is a BatchNormalization that computes its own statistics."""
    if not is_standard(node, "BatchNormalization"):
        return False
    return "training_mode" in node.attributes and node.attributes["training_mode"].as_int() != 0


def over_the_batch(norm: Norm, x: ir.Value, graph: ir.Graph) -> bool:
    """Tell whether statistics are taken over the batch.

    The batch is the dynamic first dimension of the graph's inputs. Where that is static, it is axis 0 of their size,
    unless all axes are averaged over (a single sample without a batch) or a run shows that no block of statistics sees
    two samples: as many channels as samples are no batch.
    """
    if x.shape is None:
        return False
    first_dims = [value.shape[0] for value in graph.inputs if value.shape is not None and len(value.shape) > 0]
    names = {dim.value for dim in first_dims if isinstance(dim, ir.SymbolicDim)}
    for axis in norm.blocks.axes:
        dim = x.shape[axis]
        if isinstance(dim, ir.SymbolicDim) and names & {*names_of(dim), dim.value} - {None}:
            return True
    if names:
        return False
    averaged = set(norm.blocks.axes)
    if 0 not in averaged or x.shape[0] not in first_dims or len(averaged) == len(x.shape):
        return False
    return _mixes_samples(norm, x, graph)


def _mixes_samples(norm: Norm, x: ir.Value, graph: ir.Graph) -> bool:
    """Tell whether a block of statistics holds elements of two samples, by a run in which one sample changes.

    Args:
        norm: of ``x``.
        x: of static shape.
        graph: with static inputs; True is the answer where it cannot be run.
    """
    batch = (x.shape or (0,))[0]
    if any(value.shape is None or value.dtype is None or not value.shape.is_static() for value in graph.inputs):
        return True
    feeds = make_inputs([declared(value) for value in graph.inputs], lambda *_: 1)
    other = {name: array.copy() for name, array in feeds.items()}
    for array in other.values():
        if array.ndim and len(array) == batch:
            array[0] = array[0] + 1 if array.dtype.kind == "f" else array[-1]
    evaluator, name = Evaluator(graph), str(x.name)
    try:
        with torch.no_grad():
            changed = evaluator.run(feeds, fetch=[name])[name] != evaluator.run(other, fetch=[name])[name]
    except GraphError:
        return True
    blocks = changed.numpy().reshape(norm.blocks.split_shape(tuple(changed.shape)))
    axes = norm.blocks.split_axes()
    return bool((blocks.any(axis=axes) != blocks.all(axis=axes)).any())
