"""Operators written once for all tests, by torch and numpy: what onnx's own reference evaluator has slow or wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch.nn import functional


def convolution(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None, *, strides: Sequence[int], pads: Sequence[int],
    dilations: Sequence[int], group: int, transposed: bool = False, output_padding: Sequence[int] | None = None,
) -> np.ndarray:  # fmt: skip
    """Convolve by torch, in the type of the operands, each side padded (or cut, transposed) on its own."""
    rank = x.ndim - 2
    operands = [None if array is None else torch.from_numpy(np.array(array)) for array in (x, w, b)]
    if transposed:
        run = getattr(functional, f"conv_transpose{rank}d")
        full = run(*operands, tuple(strides), 0, tuple(output_padding or [0] * rank), group, tuple(dilations)).numpy()
        window = [slice(pads[axis], size - pads[axis + rank]) for axis, size in enumerate(full.shape[2:])]
        return np.ascontiguousarray(full[(slice(None), slice(None), *window)])
    widths = [width for axis in reversed(range(rank)) for width in (pads[axis], pads[rank + axis])]
    run = getattr(functional, f"conv{rank}d")
    result: np.ndarray = run(
        functional.pad(operands[0], widths), *operands[1:], tuple(strides), 0, tuple(dilations), group
    ).numpy()
    return result


class Conv(OpRun):
    """Conv by torch: onnx's own is slow."""

    def _run(self, x, w, b=None, **attributes):
        spatial = x.ndim - 2
        strides, dilations = attributes["strides"] or [1] * spatial, attributes["dilations"] or [1] * spatial
        pads = list(attributes["pads"] or [0] * 2 * spatial)
        if attributes["auto_pad"] in ("SAME_UPPER", "SAME_LOWER"):
            for axis, (size, kernel, step, gap) in enumerate(
                zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True)
            ):
                total = max((-(-size // step) - 1) * step + (kernel - 1) * gap + 1 - size, 0)
                sides = total // 2, total - total // 2
                pads[axis], pads[axis + spatial] = sides if attributes["auto_pad"] == "SAME_UPPER" else sides[::-1]
        groups = attributes["group"] or 1
        return (convolution(x, w, b, strides=strides, pads=pads, dilations=dilations, group=groups),)


class ConvTranspose(OpRun):
    """ConvTranspose by torch: onnx's own fails on groups."""

    def _run(self, x, w, b=None, **attributes):
        ones = [1] * (x.ndim - 2)
        return (
            convolution(
                x,
                w,
                b,
                strides=attributes["strides"] or ones,
                pads=attributes["pads"] or [0] * 2 * len(ones),
                dilations=attributes["dilations"] or ones,
                group=attributes["group"] or 1,
                transposed=True,
                output_padding=attributes["output_padding"],
            ),
        )


def _windows(x, attributes):
    """Return a pool's kernel, strides, dilations and the padding that all its windows fit into, by torch's order."""
    spatial = x.ndim - 2
    assert attributes.get("auto_pad") in (None, "NOTSET")
    kernel, pads = attributes["kernel_shape"], list(attributes["pads"] or [0] * 2 * spatial)
    strides, dilations = attributes["strides"] or [1] * spatial, attributes["dilations"] or [1] * spatial
    widths, given = [], []
    for axis in reversed(range(spatial)):
        before, after = pads[axis], pads[axis + spatial]
        free = x.shape[axis + 2] + before + after - (kernel[axis] - 1) * dilations[axis] - 1
        count = free // strides[axis] + 1
        if attributes["ceil_mode"] and free % strides[axis] and count * strides[axis] < x.shape[axis + 2] + before:
            count += 1  # a further window that begins inside
        widths += [before, after + max((count - 1) * strides[axis] - free, 0)]
        given += [before, after]
    return kernel, tuple(strides), tuple(dilations), widths, given


class MaxPool(OpRun):
    """MaxPool by torch: onnx's own fails on padding of one side."""

    def _run(self, x, **attributes):
        kernel, strides, dilations, widths, _ = _windows(x, attributes)
        padded = functional.pad(torch.from_numpy(np.array(x)), widths, value=-float("inf"))
        run = getattr(functional, f"max_pool{x.ndim - 2}d")
        return (run(padded, tuple(kernel), strides, 0, dilations).numpy(),)


class AveragePool(OpRun):
    """AveragePool by torch's convolution: sums of values over sums of what counts."""

    def _run(self, x, **attributes):
        kernel, strides, dilations, widths, given = _windows(x, attributes)
        run = getattr(functional, f"conv{x.ndim - 2}d")
        ones = torch.ones(1, 1, *kernel, dtype=torch.from_numpy(np.array(x)).dtype)
        values = torch.from_numpy(np.array(x)).reshape(-1, 1, *x.shape[2:])
        counted = torch.ones_like(values)
        if attributes["count_include_pad"]:
            counted = functional.pad(counted, given, value=1.0)
            counted = functional.pad(counted, [wide - own for wide, own in zip(widths, given, strict=True)])
        else:
            counted = functional.pad(counted, widths)
        sums, counts = (
            run(item, ones, None, strides, 0, dilations) for item in (functional.pad(values, widths), counted)
        )
        mean = (sums / counts).numpy()
        return (mean.reshape(*x.shape[:2], *mean.shape[2:]),)


class GlobalMaxPool(OpRun):
    """GlobalMaxPool by numpy: onnx's own takes the wrong axes unless there are two."""

    def _run(self, x):
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class Mean(OpRun):
    """Mean by numpy: onnx's own adds in place, and fails where the first operand is not the largest."""

    def _run(self, *operands):
        return (sum(operands) / np.asarray(len(operands), operands[0].dtype),)


class Pad(OpRun):
    """Pad by numpy: onnx's own knows no negative widths."""

    def _run(self, x, pads, value=None, axes=None, mode=None):
        widths = np.zeros((x.ndim, 2), np.int64)
        named = np.arange(x.ndim) if axes is None else axes
        widths[named] = pads.reshape(2, -1).T
        cut = tuple(
            slice(max(-low, 0), size - max(-high, 0)) for size, (low, high) in zip(x.shape, widths, strict=True)
        )
        options = {"constant_values": 0 if value is None else value} if mode in (None, "constant") else {}
        return (np.pad(x[cut], np.maximum(widths, 0), mode=mode or "constant", **options),)


class GlobalLpPool(OpRun):
    """The p-norm over all places of a channel, which onnx's own evaluator does not have."""

    def _run(self, x, p=2):
        return ((np.abs(x) ** (p or 2)).sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / (p or 2)),)


OPERATORS = [Conv, ConvTranspose, MaxPool, AveragePool, GlobalMaxPool, GlobalLpPool, Mean, Pad]


def evaluate(
    proto: onnx.ModelProto, feeds: dict[str, np.ndarray], operators: Sequence[type[OpRun]] = ()
) -> list[np.ndarray]:
    """Evaluate a graph by onnx's reference evaluator, convolutions by torch."""
    return ReferenceEvaluator(proto, new_ops=list(operators or OPERATORS)).run(None, feeds)
