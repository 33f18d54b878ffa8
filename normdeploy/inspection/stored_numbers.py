"""Numbers in a file that are none, or that no calculation survives: in any constant, not only those of a norm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import FLOATS, module_path
from normdeploy.graph.exact import tensor64
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.inspection.findings import Finding
from normdeploy.inspection.stored_statistics import check_epsilon

_BOUNDED = ("Where", "Clip", "Max", "Min", "Pad", "IsInf", "IsNaN", "ScatterElements", "ScatterND")
"""What reads an infinity, or the largest number there is, as a bound or as a mark; comparisons do, too."""
_SHARES = ("Softmax", "LogSoftmax", "Attention")
_BETWEEN = Trait.BROADCASTS | Trait.MOVES | Trait.JOINS | Trait.CONVERTS
"""What a mask passes on its way to a softmax."""
_STEPS = 8
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
_RANGES = {
    ir.DataType.FLOAT: (2.0**-126, 2.0**96),
    ir.DataType.BFLOAT16: (2.0**-126, 2.0**96),
    ir.DataType.DOUBLE: (2.0**-1022, 2.0**992),
}
"""Smallest normal number, and a 2**32nd of the largest; float16 is narrow, and its weights are at both ends."""


def check_stored_numbers(model: ir.Model) -> Iterator[Finding]:
    """Yield constants that hold NaN, infinity, what overflows in a product or what is below the normal numbers.

    NaN in the parameters of BatchNormalization is :mod:`.stored_statistics`' to tell of, channel by channel. What ends
    in a
    softmax, or is a bound, may be infinite or the largest number there is: so masks are written.
    """
    seen: set[ir.Value] = set()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for place, value in enumerate(node.inputs):
            tensor = None if value is None or value in seen else value.const_value
            if value is None or tensor is None or value.is_graph_input() or tensor.dtype not in FLOATS:
                continue
            seen.add(value)
            array = tensor64(tensor)
            if node.op_type == "BatchNormalization" and not np.isfinite(array).all():
                continue
            yield from _check(node, place, str(value.name), array, tensor.dtype)
            if array.size == 1 and array.min() < 0 and _is_epsilon(node):
                yield from check_epsilon(module_path(node), float(array.min()), tensor.dtype)


def _is_epsilon(node: ir.Node) -> bool:
    """Tell whether a number is added to a mean under a root: a norm whose epsilon is negative is not recognised."""
    producers = [value.producer() for value in node.inputs if value is not None]
    means = any(producer is not None and producer.op_type == "ReduceMean" for producer in producers)
    return node.op_type == "Add" and means and all(use.node.op_type == "Sqrt" for use in node.outputs[0].uses())


def _check(node: ir.Node, place: int, name: str, array: Floats, dtype: ir.DataType) -> Iterator[Finding]:
    if not array.size:
        return
    low, high = float(array.min()), float(array.max())
    mask = is_standard(node, *_BOUNDED) or has(node, Trait.COMPARES) or _is_shared(node)
    if np.isnan(low) or (not mask and (np.isinf(low) or np.isinf(high))):
        broken = ~np.isfinite(array)
        yield Finding(
            "error",
            "not-finite",
            module_path(node),
            f"constant {name!r} of {node.op_type} is NaN or infinite at {int(broken.sum())} of {array.size} places: "
            "what is computed from them is, too",
            "training diverged, or the weights are damaged: take an earlier checkpoint",
            detail={"constant": name, "count": int(broken.sum())},
        )
        return
    if node.op_type in _QUANTIZERS and place == 1 and low <= 0:
        yield Finding(
            "error",
            "quantizer",
            module_path(node),
            f"step {name!r} of {node.op_type} is {low:.3g}: a quantizer's step is positive",
            "calibrate it again",
            detail={"constant": name},
        )
    smallest, largest = _RANGES.get(dtype, (0.0, np.inf))
    size = np.abs(array[np.isfinite(array)])
    if not mask and (size > largest).any():
        yield Finding(
            "warning",
            "magnitude",
            module_path(node),
            f"constant {name!r} of {node.op_type} holds {float(size.max()):.3g}: products with it overflow "
            f"{dtype.name.lower()}",
            "rescale it, or take an earlier checkpoint",
            detail={"constant": name},
        )
    tiny = (size > 0) & (size < smallest)
    if tiny.any():
        yield Finding(
            "note",
            "magnitude",
            module_path(node),
            f"constant {name!r} of {node.op_type} holds {int(tiny.sum())} of {array.size} numbers below "
            f"{smallest:.3g}: kernels that flush such numbers take them for zero",
            "set them to zero where they are meant to be",
            detail={"constant": name, "count": int(tiny.sum())},
        )


def _is_shared(node: ir.Node) -> bool:
    """Tell whether what a node computes becomes shares of a softmax, a few steps on."""
    reached = [node]
    for _ in range(_STEPS):
        if any(one.op_type in _SHARES for one in reached):
            return True
        ahead = [one for one in reached if has(one, _BETWEEN)]
        reached = list(dict.fromkeys(use.node for one in ahead for value in one.outputs for use in value.uses()))
    return False
