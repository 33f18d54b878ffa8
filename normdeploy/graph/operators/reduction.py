"""Reductions in torch; axes as attribute or input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, axis_of, need


def _reduce(function: Callable[[Tensor, list[int], bool], Tensor]) -> Implementation:
    def implementation(call: Call, inputs: Inputs) -> Tensor:
        x = need(inputs, 0)
        axes = call.ints("axes", inputs, 1)
        if not axes:
            if call.attr("noop_with_empty_axes", 0):
                return x
            axes = list(range(x.dim()))
        if not axes:
            return x
        if not x.numel():
            raise NotImplementedError("a reduction over an empty axis")
        return function(x, [axis_of(axis, x.dim()) for axis in axes], bool(call.attr("keepdims", 1)))

    return implementation


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _arg(function: Callable[[Tensor, int, bool], Tensor]) -> Implementation:
    def implementation(call: Call, inputs: Inputs) -> Tensor:
        x = need(inputs, 0)
        axis = axis_of(call.attr("axis", 0), x.dim())
        keep = bool(call.attr("keepdims", 1))
        if call.attr("select_last_index", 0):
            return (x.shape[axis] - 1) - function(x.flip(axis), axis, keep)
        return function(x, axis, keep)

    return implementation


REDUCTION: dict[str, Implementation] = {
    "ArgMax": _arg(lambda x, axis, keep: torch.argmax(x, axis, keep)),
    "ArgMin": _arg(lambda x, axis, keep: torch.argmin(x, axis, keep)),
    "ReduceL1": _reduce(lambda x, axes, keep: x.abs().sum(axes, keepdim=keep)),
    "ReduceL2": _reduce(lambda x, axes, keep: torch.sqrt((x * x).sum(axes, keepdim=keep))),
    "ReduceLogSum": _reduce(lambda x, axes, keep: x.sum(axes, keepdim=keep).log()),
    "ReduceLogSumExp": _reduce(lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep)),
    "ReduceMax": _reduce(lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "ReduceMean": _reduce(lambda x, axes, keep: x.mean(axes, keepdim=keep)),
    "ReduceMin": _reduce(lambda x, axes, keep: x.amin(axes, keepdim=keep)),
    "ReduceProd": _reduce(_prod),
    "ReduceSum": _reduce(lambda x, axes, keep: x.sum(axes, keepdim=keep)),
    "ReduceSumSquare": _reduce(lambda x, axes, keep: (x * x).sum(axes, keepdim=keep)),
}
