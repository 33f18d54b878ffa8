"""Smaller inputs for the check of a region whose constants name a large static size (tokens, say) in shapes only.

A fold's algebra does not depend on how many tokens there are. Where that number appears only as a dimension of the one
input and as an element of Reshape and Expand targets, the check replaces it by a small one in both: the same operators,
a fraction of the multiply-adds.

Not done for a size that could mean something else: it must be unique in the input's shape, at most once in each target,
divide no other element of a target, and be neither a dimension nor an element of any other constant or attribute.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph import FLOATS, constant_tensor
from normdeploy.rewrite.context import RewriteContext

LARGE = 12
"""Smaller sizes are not worth it."""

DYNAMIC = 2
"""What a dynamic dimension becomes; the first one, the batch, becomes 1."""

_SMALL_PRIMES = (2, 3, 5, 7, 11, 13)
_TARGETS = frozenset({"Reshape", "Expand"})
_SIZED = frozenset({"Conv", "ConvTranspose", "AveragePool", "MaxPool", "Resize", "Pad", "If", "Loop", "Scan"})


def shrunken_feeds(
    context: RewriteContext, nodes: Sequence[ir.Node], inputs: Sequence[ir.Value]
) -> dict[ir.Value, Tensor] | None:
    """Return inputs, and targets to use in place of the region's own; None where no size can be shrunk.

    Args:
        context: draws.
        nodes: the region, before and after.
        inputs: what it reads from outside, constants left out.
    """
    if len(inputs) != 1 or inputs[0].shape is None or len(inputs[0].shape) < 2:
        return None
    if any(node.op_type in _SIZED for node in nodes):
        return None
    source, shape = inputs[0], inputs[0].shape
    if source.dtype is not None and source.dtype not in FLOATS:
        return None
    static = [dim for dim in shape if isinstance(dim, int)]
    sizes = {dim for dim in static[:-1] if dim > LARGE and static.count(dim) == 1}
    targets: dict[ir.Value, list[int]] = {}
    for node in nodes:
        sizes -= {item for attribute in node.attributes.values() for item in _integers(attribute)}
        for index, value in enumerate(node.inputs):
            tensor = constant_tensor(value)
            if value is None or tensor is None:
                continue
            if index == 1 and node.op_type in _TARGETS:
                targets[value] = [int(item) for item in tensor.numpy().reshape(-1)]
                sizes = {size for size in sizes if _is_plain(size, targets[value])}
            else:
                sizes -= set(tensor.shape.numpy())
                if tensor.dtype not in FLOATS and tensor.size <= 64:
                    sizes -= {abs(int(item)) for item in tensor.numpy().reshape(-1)}
    if not sizes:
        return None
    # a size that nothing else here has, so that a mistaken axis shows
    taken = {*static, *(item for target in targets.values() for item in target)}
    taken |= {DYNAMIC} if any(not isinstance(dim, int) for dim in list(shape)[1:]) else set()
    small = dict(zip(sorted(sizes), (prime for prime in _SMALL_PRIMES if prime not in taken), strict=False))
    dims = [small.get(dim, dim) if isinstance(dim, int) else (DYNAMIC if axis else 1) for axis, dim in enumerate(shape)]
    feeds = {source: torch.from_numpy(context.rng.standard_normal(dims))}
    for value, target in targets.items():
        if any(item in small for item in target):
            feeds[value] = torch.from_numpy(np.array([small.get(item, item) for item in target]))
    return feeds


def _integers(attribute: ir.Attr) -> Sequence[int]:
    if attribute.type == ir.AttributeType.INT:
        return (attribute.as_int(),)
    return attribute.as_ints() if attribute.type == ir.AttributeType.INTS else ()


def _is_plain(size: int, target: Sequence[int]) -> bool:
    return target.count(size) <= 1 and all(item == size or item <= 0 or item % size for item in target)
