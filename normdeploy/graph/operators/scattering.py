"""Writing into places: ScatterElements and ScatterND, all updates at once.

Where places are named twice and nothing is reduced, ONNX leaves open which update stays; here it is the last.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, axis_of, counted, need

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _written(rows: Tensor, axis: int, places: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """Return rows with updates at places along an axis; what stood there takes part in a reduction."""
    if reduction == "none":
        return rows.scatter(axis, places, updates)
    return rows.scatter_reduce(axis, places, updates, _REDUCTIONS[reduction])


def _scatter_elements(call: Call, inputs: Inputs) -> Tensor:
    x, places, updates = need(inputs, 0), need(inputs, 1), need(inputs, 2)
    if any(operand.is_meta for operand in (x, places, updates)):
        return torch.empty_like(x, device="meta")
    axis = axis_of(call.attr("axis", 0), x.dim())
    places = counted(call, places.to(torch.int64), x.shape[axis])
    return _written(x, axis, places, updates, call.attr("reduction", "none"))


def _scatter_nd(call: Call, inputs: Inputs) -> Tensor:
    x, at, updates = need(inputs, 0), need(inputs, 1), need(inputs, 2)
    if any(operand.is_meta for operand in (x, at, updates)):
        return torch.empty_like(x, device="meta")
    named = x.shape[: at.shape[-1]]
    at = counted(call, at.to(torch.int64), torch.tensor(named))
    strides = torch.tensor([math.prod(named[axis + 1 :]) for axis in range(len(named))])
    rows = (at * strides).sum(-1).reshape(-1, 1)
    flat = x.reshape(math.prod(named), math.prod(x.shape[len(named) :]))
    given = updates.reshape(len(rows), flat.shape[1])
    return _written(flat, 0, rows.expand_as(given), given, call.attr("reduction", "none")).reshape(x.shape)


SCATTERING: dict[str, Implementation] = {"ScatterElements": _scatter_elements, "ScatterND": _scatter_nd}
