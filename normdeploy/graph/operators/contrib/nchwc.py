r"""Convolutions and pools on blocks of channels, which onnxruntime's optimization level "all" writes.

A value of shape [N, C, H, W] lies in memory as [N, C / B, H, W, B], C filled up to a multiple of the block size B with
zeros. B is the number of floats that the processor's vectors hold, and no file says it: a file of this domain runs
only on processors of its own kind, so it is asked of the onnxruntime at hand. Kernels lie as [O / B, I, H, W, B] where
a group has fewer input channels than a block (images, depthwise), otherwise as [O / B, I / B, H, W, B, B].

Source: onnxruntime, core/optimizer/nchwc_transformer.cc and core/mlas/lib/reorder.cpp.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from onnx import TensorProto, helper
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need, optional
from normdeploy.graph.operators.contrib.dense import fused_conv, one
from normdeploy.graph.operators.pooling import POOLING
from normdeploy.graph.operators.resampling import RESAMPLING

_CHANNELS = 4
"""Channels of the image that the block size is read off; the kernel takes multiples of four."""


@functools.cache
def block_size() -> int:
    """Return how many channels onnxruntime keeps together on this processor."""
    import onnxruntime  # here: everything else in this room does without it

    domain = "com.microsoft.nchwc"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, _CHANNELS, 1, 1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("ReorderInput", ["x"], ["y"], domain=domain)], "blocks", [x], [y])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(["y"], {"x": np.zeros((1, _CHANNELS, 1, 1), np.float32)})[0]
    return int(found.shape[1])


def _filled(channels: int) -> int:
    return -(-channels // block_size()) * block_size()


def blocked(x: Tensor) -> Tensor:
    """Bring a value into blocks; the shape is that of the plain value, its channels filled up."""
    count, channels, *sizes = x.shape
    total = _filled(channels)
    plain = torch.cat([x, x.new_zeros(count, total - channels, *sizes)], dim=1)
    split = plain.reshape(count, total // block_size(), block_size(), *sizes)
    return split.movedim(2, -1).reshape(count, total, *sizes)


def plain(x: Tensor) -> Tensor:
    """Undo `blocked`, the filling left in place."""
    count, channels, *sizes = x.shape
    split = x.reshape(count, channels // block_size(), *sizes, block_size())
    return split.movedim(-1, 2).reshape(x.shape)


def plain_kernel(w: Tensor) -> Tensor:
    """Return a kernel that lies in blocks as [O, I, H, W]."""
    block = block_size()
    out, into, *sizes = w.shape
    if into < block:
        return w.reshape(out // block, into, *sizes, block).movedim(-1, 1).reshape(w.shape)
    split = w.reshape(out // block, into // block, *sizes, block, block)
    return split.movedim(-1, 1).movedim(-1, 3).reshape(w.shape)


def _conv(call: Call, inputs: Inputs) -> Tensor:
    """FusedConv of blocks; an image of fewer channels than a block comes as it is."""
    x, w, b, z = need(inputs, 0), need(inputs, 1), optional(inputs, 2), optional(inputs, 3)
    image = w.shape[1] < block_size() and call.attr("group", 1) == 1
    x, z = x if image else plain(x), None if z is None else plain(z)
    return blocked(fused_conv(call, [x, plain_kernel(w), b, z]))


def _on_plain(operator: Callable[[Call, Inputs], object]) -> Implementation:
    """Return an operator that works channel by channel, on blocks."""
    return lambda call, inputs: blocked(one(operator(call, [plain(need(inputs, 0)), *inputs[1:]])))


def _reorder_input(call: Call, inputs: Inputs) -> Tensor:
    x = need(inputs, 0)
    return blocked(x.movedim(-1, 1) if call.attr("channels_last", 0) else x)


def _reorder_output(call: Call, inputs: Inputs) -> Tensor:
    x = plain(need(inputs, 0))[:, : call.attr("channels")]
    return x.movedim(1, -1) if call.attr("channels_last", 0) else x


def _upsample(call: Call, inputs: Inputs) -> Tensor:
    """Enlarge by whole factors: nearest repeats, linear interpolates by the transformation that the node names."""
    x, scales = plain(need(inputs, 0)), [int(scale) for scale in call.attr("scales")]
    if call.attr("mode", "nearest") == "nearest":
        for axis, scale in enumerate(scales):
            x = x.repeat_interleave(scale, dim=axis)
        return blocked(x)
    transformation = call.attr("coordinate_transformation_mode", "asymmetric")
    if transformation == "asymmetric":
        return blocked(one(RESAMPLING["Upsample"](call, [x])))
    sizes = [size * scale for size, scale in zip(x.shape[2:], scales[2:], strict=True)]
    corners = {"align_corners": True, "half_pixel": False}[transformation]
    return blocked(torch.nn.functional.interpolate(x, sizes, mode="bilinear", align_corners=corners))


NCHWC: dict[str, Implementation] = {
    "AveragePool": _on_plain(POOLING["AveragePool"]),
    "Conv": _conv,
    "GlobalAveragePool": _on_plain(POOLING["GlobalAveragePool"]),
    "GlobalMaxPool": _on_plain(POOLING["GlobalMaxPool"]),
    "MaxPool": _on_plain(POOLING["MaxPool"]),
    "ReorderInput": _reorder_input,
    "ReorderOutput": _reorder_output,
    "Upsample": _upsample,
}
