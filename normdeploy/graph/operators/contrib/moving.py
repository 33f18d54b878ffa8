"""Operators of com.microsoft that move and choose elements."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need
from normdeploy.graph.operators.resampling import RESAMPLING
from normdeploy.graph.operators.shaping import SHAPING

_MEANS = {"GatherND": 12, "GridSample": 16, "Pad": 13, "Trilu": 14}
"""The standard's operator set whose operator of that name has the same meaning."""


def _standard(name: str) -> Implementation:
    """Return the standard's operator of the same name."""
    implementation = (SHAPING | RESAMPLING)[name]
    return lambda call, inputs: implementation(replace(call, opset=_MEANS[name]), inputs)


def _pad(call: Call, inputs: Inputs) -> Tensor:
    """Pad, whose pads may be a matrix of one row and whose value may be a vector of one."""
    flat = [inputs[0], *(None if item is None else item.reshape(-1) for item in inputs[1:])]
    if len(flat) > 2:
        value = flat[2]
        flat[2] = None if value is None else value.reshape(())
    result = _standard("Pad")(call, flat)
    assert isinstance(result, Tensor)
    return result


def _repeats(call: Call, inputs: Inputs) -> Tensor:
    """Scores of which those are minus infinity whose token would end an n-gram that the row holds already."""
    ids, scores = need(inputs, 0).long(), need(inputs, 1).clone()
    size = call.attr("ngram_size")
    if ids.shape[1] >= size:
        grams = ids.unfold(1, size, 1)
        same = (grams[..., :-1] == ids[:, ids.shape[1] - size + 1 :].unsqueeze(1)).all(-1)
        row, place = same.nonzero(as_tuple=True)
        scores[row, grams[row, place, -1]] = float("-inf")
    return scores


def _unfold(call: Call, inputs: Inputs) -> Tensor:
    result: Tensor = need(inputs, 0).unfold(call.attr("dim", -1), call.attr("size"), call.attr("step", 1))
    return result


def _expand_dims(call: Call, inputs: Inputs) -> Tensor:
    return need(inputs, 0).unsqueeze(int(need(inputs, 1)))


def _range(call: Call, inputs: Inputs) -> Tensor:
    bounds: Inputs = [item.reshape(()) for item in inputs if item is not None]
    first = need(bounds, 0)
    result = SHAPING["Range"](call, bounds if len(bounds) > 2 else [*bounds, torch.ones_like(first)])
    assert isinstance(result, Tensor)
    return result


MOVING: dict[str, Implementation] = {
    "ExpandDims": _expand_dims,
    "GatherND": _standard("GatherND"),
    "GridSample": _standard("GridSample"),
    "NGramRepeatBlock": _repeats,
    "Pad": _pad,
    "Range": _range,
    "Trilu": _standard("Trilu"),
    "UnfoldTensor": _unfold,
}
