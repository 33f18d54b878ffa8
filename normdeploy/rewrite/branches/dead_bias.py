"""A convolution's bias in front of a norm over each channel's own positions is dead.

InstanceNormalization subtracts the mean over a channel's positions, so n(y + b) = n(y) for a bias b per channel;
likewise GroupNormalization with one channel per group. The bias goes.

Done where the norm is the only reader of the convolution, whose bias is constant.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.errors import GraphError
from normdeploy.graph import is_constant, module_path
from normdeploy.graph.edit import only_reader
from normdeploy.graph.linear_view import linear_of
from normdeploy.graph.operator_inputs import array_of, optional, required, shape_of
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.affine.replacement import Region
from normdeploy.rewrite.rewrite_context import RewriteContext

RULE = "dead bias before a norm"

FAR = 1e4
"""Largest bias in units of its channel's largest weight: beyond, it is no longer dead to a file that rounds."""


def drop_dead_bias(context: RewriteContext, graph: ir.Graph, node: ir.Node) -> bool:
    """Drop the bias of the convolution in front of the norm ``node``; return whether the graph changed."""
    if not is_standard(node) or not _is_per_channel(node):
        return False
    value = required(node, 0)
    conv = value.producer()
    if conv is None or conv.graph is not graph or not is_standard(conv, "Conv", "ConvTranspose"):
        return False
    bias = optional(conv, 2)
    if bias is None or not all(map(is_constant, (required(conv, 1), bias))):  # beside a weight given later: how loud?
        return False
    if only_reader(value) is not node or _is_heard(conv):
        return False
    number = array_of(bias).reshape(-1, *(1,) * (len(shape_of(required(conv, 1))) - 2))
    region = Region(graph)
    region.before = [conv, node]
    new = region.replace(conv, conv.inputs[:2])
    norm = region.replace(node, [new.outputs[0], *node.inputs[1:]])
    region.same(node.outputs[0], norm.outputs[0])
    try:
        region.commit(context, RULE, module_path(conv), {required(conv, 0): _few(context, conv)})
    except GraphError:
        region.discard()
        return False
    context.carried.change([(value, np.ones(()), number)])
    context.carried.hand_over(value, new.outputs[0])
    return True


def _is_heard(conv: ir.Node) -> bool:
    """Tell whether a bias is no number, or so large beside the weights that it rounds away what it is added to."""
    weight, bias, linear = array_of(required(conv, 1)), array_of(required(conv, 2)), linear_of(conv)
    assert linear is not None
    channels = linear.channels(weight.shape)
    assert channels.written is not None  # no recurrent operator
    largest = np.zeros(channels.outs)
    np.maximum.at(largest, np.broadcast_to(channels.written, weight.shape), np.abs(weight))
    return not bool((np.abs(bias) <= FAR * largest)[largest > 0].all() and np.isfinite(bias).all())


def _few(context: RewriteContext, conv: ir.Node) -> torch.Tensor:
    """Draw an input of as many positions as the kernel spans, and some."""
    shape, linear = shape_of(required(conv, 1)), linear_of(conv)
    assert linear is not None
    dilations = conv.attributes.get_ints("dilations", (1,) * (len(shape) - 2))
    sizes = [size * step + 3 + axis for axis, (size, step) in enumerate(zip(shape[2:], dilations, strict=True))]
    return torch.from_numpy(context.rng.standard_normal([2, linear.channels(shape).ins, *sizes]))


def _is_per_channel(node: ir.Node) -> bool:
    if node.op_type == "InstanceNormalization":
        return True
    if node.op_type != "GroupNormalization":
        return False
    shape = required(node, 0).shape
    return shape is not None and shape.rank() > 1 and shape[1] == node.attributes.get_int("num_groups", 0)
