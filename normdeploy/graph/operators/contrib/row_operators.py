"""Row-wise and pointwise fusions: Gelu in its forms, biases, residual sums in front of norms, embeddings."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from normdeploy.graph.operators.call import Call, Implementation, Inputs, axis_of, need, optional
from normdeploy.graph.operators.normalization import channelwise


def _biased(inputs: Inputs) -> Tensor:
    x, bias = need(inputs, 0), optional(inputs, 1)
    return x if bias is None else x + bias


def _bias_split_gelu(call: Call, inputs: Inputs) -> Tensor:
    """The left half of x + b times the Gelu of the right one."""
    left, right = _biased(inputs).chunk(2, dim=-1)
    return left * functional.gelu(right)


def _bias_softmax(call: Call, inputs: Inputs) -> Tensor:
    """Softmax of x + b over the axes from ``axis`` on; b holds fewer rows than x, each of them for several of x's.

    With ``is_inner_broadcast`` neighbouring rows share one of b's, otherwise b's rows repeat in turn.
    """
    x, bias = need(inputs, 0), need(inputs, 1)
    axis = axis_of(call.attr("axis", 1), x.dim())
    size = math.prod(x.shape[axis:])
    rows, biases = x.reshape(-1, size), bias.reshape(-1, size)
    at = torch.arange(len(rows))
    inner = call.attr("is_inner_broadcast")
    at = at // (len(rows) // len(biases)) if inner else at % len(biases)
    return torch.softmax(rows + biases[at], dim=-1).reshape(x.shape)


def _bias_dropout(call: Call, inputs: Inputs) -> list[Tensor]:
    """X + b + residual: in inference nothing is dropped."""
    training = optional(inputs, 4)
    if training is not None and bool(training):
        raise NotImplementedError("random in training")
    y, residual = _biased(inputs), optional(inputs, 2)
    y = y if residual is None else y + residual
    return [y, torch.ones_like(y, dtype=torch.bool)]


def _scaled_silu(call: Call, inputs: Inputs) -> Tensor:
    scale = optional(inputs, 1)
    z = need(inputs, 0) * (call.attr("alpha", 1.0) if scale is None else scale)
    return z * torch.sigmoid(z)


def _gated_rms_norm(call: Call, inputs: Inputs) -> Tensor:
    x, scale, gate = need(inputs, 0), need(inputs, 1), need(inputs, 2)
    groups = x.reshape(*x.shape[:-1], -1, scale.numel())
    normal = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + call.attr("epsilon", 1e-6)) * scale
    opened = torch.sigmoid(gate) if call.attr("activation", "silu") == "sigmoid" else functional.silu(gate)
    return normal.reshape(x.shape) * opened


def _skipped(inputs: Inputs, bias: Tensor | None) -> Tensor:
    total = need(inputs, 0) + need(inputs, 1)
    return total if bias is None else total + bias


def _normal_rows(call: Call, total: Tensor, gamma: Tensor, beta: Tensor | None) -> list[Tensor]:
    """LayerNorm of the last axis, its mean and its inverse deviation."""
    mean = total.mean(-1, keepdim=True)
    inverse = torch.rsqrt((total - mean).square().mean(-1, keepdim=True) + call.attr("epsilon", 1e-12))
    y = (total - mean) * inverse * gamma
    return [y if beta is None else y + beta, mean, inverse]


def _skip_layer_normalization(call: Call, inputs: Inputs) -> list[Tensor]:
    """LayerNorm(x + skip + bias); its statistics; the sum."""
    total = _skipped(inputs, optional(inputs, 4))
    return [*_normal_rows(call, total, need(inputs, 2), optional(inputs, 3)), total]


def _skip_simplified_layer_normalization(call: Call, inputs: Inputs) -> list[Tensor]:
    total = _skipped(inputs, optional(inputs, 3))
    inverse = torch.rsqrt(total.square().mean(-1, keepdim=True) + call.attr("epsilon", 1e-12))
    return [total * inverse * need(inputs, 2), torch.zeros_like(inverse), inverse, total]


def _embed_layer_normalization(call: Call, inputs: Inputs) -> list[Tensor]:
    """LayerNorm(word[ids] + position[0, 1, ... or ids given] + segment[ids]); the words per row; the sum."""
    ids, segments, words, positions, kinds = (optional(inputs, place) for place in range(5))
    mask, places = optional(inputs, 7), optional(inputs, 8)
    assert ids is not None
    assert words is not None
    assert positions is not None
    at = torch.arange(ids.shape[1]).expand(ids.shape) if places is None else places.long()
    total = words[ids.long()] + positions[at.expand(ids.shape)]
    if segments is not None and kinds is not None:
        total = total + kinds[segments.long()]
    seen = torch.zeros_like(ids, dtype=torch.bool) if mask is None else mask == 1
    counted = seen.sum(1).to(torch.int32)
    return [_normal_rows(call, total, need(inputs, 5), optional(inputs, 6))[0], counted, total]


def _group_norm(call: Call, inputs: Inputs) -> Tensor:
    """GroupNorm with channels last (the default) or in place 1, a SiLU behind it where ``activation`` is 1."""
    return _groups(call, need(inputs, 0), need(inputs, 1), need(inputs, 2))


def _groups(call: Call, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    at = -1 if call.attr("channels_last", 1) else 1
    x = x.movedim(at, 1)
    grouped = x.reshape(x.shape[0], call.attr("groups"), -1)
    centred = grouped - grouped.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    y = (centred * torch.rsqrt(variance + call.attr("epsilon", 1e-5))).reshape(x.shape)
    y = y * channelwise(gamma, x.dim(), 1) + channelwise(beta, x.dim(), 1)
    return (functional.silu(y) if call.attr("activation", 0) else y).movedim(1, at)


def _skip_group_norm(call: Call, inputs: Inputs) -> list[Tensor]:
    """GroupNorm(x + skip + bias), and the sum; skip and bias may be one number per channel."""
    total, skip, bias = need(inputs, 0), need(inputs, 3), optional(inputs, 4)
    rank, at = total.dim(), (total.dim() - 1 if call.attr("channels_last", 1) else 1)
    if skip.dim() < rank:
        shape = [1] * rank
        shape[0], shape[at] = skip.shape[0], skip.shape[-1]
        skip = skip.reshape(shape)
    total = total + skip
    total = total if bias is None else total + channelwise(bias, rank, at)
    return [_groups(call, total, need(inputs, 1), need(inputs, 2)), total]


def _fast_gelu(call: Call, inputs: Inputs) -> Tensor:
    return functional.gelu(_biased(inputs), approximate="tanh")


ROWS: dict[str, Implementation] = {
    "BiasAdd": lambda call, inputs: _biased(inputs) + need(inputs, 2),
    "BiasDropout": _bias_dropout,
    "BiasGelu": lambda call, inputs: functional.gelu(_biased(inputs)),
    "BiasSoftmax": _bias_softmax,
    "BiasSplitGelu": _bias_split_gelu,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "FastGelu": _fast_gelu,
    "GatedAdd": lambda call, inputs: need(inputs, 0) + need(inputs, 1) * need(inputs, 2),
    "GatedRMSNorm": _gated_rms_norm,
    "Gelu": lambda call, inputs: functional.gelu(need(inputs, 0)),
    "GroupNorm": _group_norm,
    "QuickGelu": lambda call, inputs: need(inputs, 0) * torch.sigmoid(call.attr("alpha", 1.702) * need(inputs, 0)),
    "ScaledSiLU": _scaled_silu,
    "SkipGroupNorm": _skip_group_norm,
    "SkipLayerNormalization": _skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_normalization,
}
