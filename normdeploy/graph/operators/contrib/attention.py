"""Attention as onnxruntime fuses it: projections, masks in their four forms, past keys and values, rotary positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need, optional

_MASKED = -10000.0
"""Default of ``mask_filter_value``: added to the scores of keys that padding hides, so that a row masked whole stays
finite. Keys behind the query are out of sight altogether."""


def heads(x: Tensor, count: int) -> Tensor:
    """Return [batch, length, heads * size] as [batch, heads, length, size]."""
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """Undo `heads`."""
    return x.transpose(1, 2).flatten(2)


def _mask(call: Call, given: Tensor | None, batch: int, length: int, total: int) -> Tensor | float:
    """Return what masks add to the scores: keys that padding hides, and keys behind the query where it may not look.

    Args:
        given: [batch, total] or [batch, length, total] of zeros for hidden keys; or, per row, the end of the keys,
            [batch], or the ends and then the starts, [2 batch].
        length, total: of queries and keys.
    """
    value = float(call.attr("mask_filter_value", _MASKED))
    added: Tensor | float = 0.0
    if given is not None:
        at = torch.arange(total)
        if given.dim() == 1 and len(given) == batch:
            seen = at < given[:, None]
        elif given.dim() == 1 and len(given) == 2 * batch:
            seen = (at < given[:batch, None]) & (at >= given[batch:, None])
        elif given.dim() in (2, 3):
            seen = given > 0
        else:
            raise NotImplementedError(f"a mask of shape {tuple(given.shape)}")
        seen = seen[:, None, None] if seen.dim() == 2 else seen[:, None]
        added = torch.where(seen, 0.0, value).to(call.dtype)
    if call.attr("unidirectional", 0):
        ahead = torch.arange(total) > torch.arange(total - length, total)[:, None]
        added = added + torch.where(ahead, float("-inf"), 0.0).to(call.dtype)
    return added


def attend(call: Call, q: Tensor, k: Tensor, v: Tensor, added: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return softmax(scale q k' + added) v, and the weights; all [batch, heads, length, size]."""
    scale = call.attr("scale", 0.0) or 1 / math.sqrt(q.shape[-1])
    weights = torch.softmax(q @ k.transpose(-1, -2) * scale + added, dim=-1)
    return weights @ v, weights


def attention_of(
    call: Call, projected: Tensor, mask: Tensor | None, past: Tensor | None, bias: Tensor | None
) -> list[Tensor]:
    """Return attention's output and the present keys and values, from queries, keys and values side by side."""
    if call.attr("do_rotary", 0) or call.attr("past_present_share_buffer", 0):
        raise NotImplementedError("do_rotary, past_present_share_buffer")
    sizes = [int(size) for size in call.attr("qkv_hidden_sizes", [])] or [projected.shape[-1] // 3] * 3
    q, k, v = (heads(part, call.attr("num_heads")) for part in torch.split(projected, sizes, dim=-1))
    if past is not None:
        k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
    added = _mask(call, mask, q.shape[0], q.shape[2], k.shape[2])
    y, _ = attend(call, q, k, v, added if bias is None else added + bias)
    return [joined(y), torch.stack([k, v]) if k.shape == v.shape else torch.empty(0)]


def _attention(call: Call, inputs: Inputs) -> list[Tensor]:
    x, w, b = need(inputs, 0), need(inputs, 1), optional(inputs, 2)
    projected = x @ w if b is None else x @ w + b
    if optional(inputs, 6) is not None:
        raise NotImplementedError("past_sequence_length")
    return attention_of(call, projected, optional(inputs, 3), optional(inputs, 4), optional(inputs, 5))


def _unpacked(call: Call, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return a MultiHeadAttention's queries, keys and values by heads, its bias added, however they were packed."""
    count = call.attr("num_heads")
    query, key, value, bias = need(inputs, 0), optional(inputs, 1), optional(inputs, 2), optional(inputs, 3)
    if query.dim() == 5:
        parts = list(query.unbind(3))
    elif key is not None and key.dim() == 5:
        parts = [query, *key.unbind(3)]
    else:
        assert key is not None
        assert value is not None
        parts = [query, key, value]
    by_heads = [part.dim() == 4 and query.dim() == 3 and key is not None and key.dim() == 4 for part in parts]
    flat = [
        part.flatten(2) if part.dim() == 4 and not ready else part for part, ready in zip(parts, by_heads, strict=True)
    ]
    if bias is not None:
        sizes = [
            part.shape[1] * part.shape[-1] if ready else part.shape[-1]
            for part, ready in zip(flat, by_heads, strict=True)
        ]
        pieces = torch.split(bias, sizes)
        # keys and values that come by heads were projected elsewhere, their bias with them
        flat = [part if ready else part + piece for part, ready, piece in zip(flat, by_heads, pieces, strict=True)]
    q, k, v = (part if ready else heads(part, count) for part, ready in zip(flat, by_heads, strict=True))
    return q, k, v


def _multi_head_attention(call: Call, inputs: Inputs) -> list[Tensor]:
    """Softmax(scale q k' + masks + attention_bias) v; present keys and values; the weights."""
    if optional(inputs, 8) is not None or optional(inputs, 9) is not None:
        raise NotImplementedError("past_sequence_length, cache_indirection")
    q, k, v = _unpacked(call, inputs)
    past = optional(inputs, 6), optional(inputs, 7)
    k, v = (x if before is None else torch.cat([before, x], dim=2) for x, before in zip((k, v), past, strict=True))
    added = _mask(call, optional(inputs, 4), q.shape[0], q.shape[2], k.shape[2])
    bias = optional(inputs, 5)
    y, weights = attend(call, q, k, v, added if bias is None else added + bias)
    return [joined(y), k, v, weights]


def rotated(x: Tensor, cosines: Tensor, sines: Tensor, places: Tensor, *, interleaved: bool) -> Tensor:
    """Turn pairs of x by the angles of their places; entries of a head beyond the angles stay as they are.

    Args:
        x: [batch, heads, length, size]. cosines, sines: [places, pairs]. places: [batch, length].
        interleaved: neighbours are pairs; otherwise the first half and the second.
    """
    c, s = cosines[places].unsqueeze(1), sines[places].unsqueeze(1)
    turned, rest = x[..., : 2 * c.shape[-1]], x[..., 2 * c.shape[-1] :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    pair = a * c - b * s, a * s + b * c
    together = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([together, rest], dim=-1)


def _rotary(call: Call, inputs: Inputs) -> Tensor:
    x, places, cosines, sines = (need(inputs, at) for at in range(4))
    if call.attr("is_packed_batching", 0):
        raise NotImplementedError("is_packed_batching")
    count = call.attr("num_heads", 0)
    by_heads = x if x.dim() == 4 else heads(x, count or x.shape[-1] // (2 * cosines.shape[-1]))
    places = places.long()
    if places.numel() == 1 and places.dim() == 1:
        places = places + torch.arange(by_heads.shape[2]).expand(by_heads.shape[0], -1)
    y = rotated(by_heads, cosines, sines, places, interleaved=bool(call.attr("interleaved", 0)))
    return y if x.dim() == 4 else joined(y)


def _lengths(call: Call, inputs: Inputs, length: int) -> int:
    """Return how many keys a GroupQueryAttention's queries find behind them.

    Rows of different lengths are refused: what a padded query gives is not defined.
    """
    ends, total = need(inputs, 5).reshape(-1), int(need(inputs, 6))
    if not bool((ends == total - 1).all()):
        raise NotImplementedError("rows of different lengths")
    return total - length


_NOT_BASIC = ("qk_output", "smooth_softmax", "sliding_window_cache", "kv_cache_bit_width")


def _group_query_attention(call: Call, inputs: Inputs) -> list[Tensor]:
    """Causal attention in which groups of query heads share keys and values; present keys and values."""
    if any(call.attr(name, 0) > 0 for name in _NOT_BASIC) or any(
        optional(inputs, at) is not None for at in range(11, 16)
    ):
        raise NotImplementedError("a GroupQueryAttention beyond the basic one")
    query, key, value = need(inputs, 0), optional(inputs, 1), optional(inputs, 2)
    many, few = call.attr("num_heads"), call.attr("kv_num_heads")
    if key is None or value is None:
        size = query.shape[-1] // (many + 2 * few)
        query, key, value = torch.split(query, [many * size, few * size, few * size], dim=-1)
    q, k, v = heads(query, many), heads(key, few), heads(value, few)
    before = _lengths(call, inputs, q.shape[2])
    if call.attr("do_rotary", 0):
        given = optional(inputs, 9)
        places = torch.arange(before, before + q.shape[2]).expand(q.shape[0], -1) if given is None else given.long()
        cosines, sines = need(inputs, 7), need(inputs, 8)
        way = bool(call.attr("rotary_interleaved", 0))
        q, k = (rotated(x, cosines, sines, places, interleaved=way) for x in (q, k))
    past = optional(inputs, 3), optional(inputs, 4)
    k, v = (
        x if old is None else torch.cat([old[:, :, :before], x], dim=2) for x, old in zip((k, v), past, strict=True)
    )
    keys, values = (x.repeat_interleave(many // few, dim=1) for x in (k, v))
    scale = call.attr("scale", 0.0) or 1 / math.sqrt(q.shape[-1])
    scores, cap, bias = q @ keys.transpose(-1, -2) * scale, call.attr("softcap", 0.0), optional(inputs, 10)
    scores = cap * torch.tanh(scores / cap) if cap else scores
    scores = scores if bias is None else scores + bias
    distance = torch.arange(before, before + q.shape[2])[:, None] - torch.arange(k.shape[2])
    window = call.attr("local_window_size", -1)
    hidden = torch.zeros_like(distance, dtype=torch.bool) if not call.attr("causal", 1) else distance < 0
    hidden = hidden | (distance >= window) if window > 0 else hidden
    y = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ values
    return [joined(y), k, v]


ATTENTION: dict[str, Implementation] = {
    "Attention": _attention,
    "GroupQueryAttention": _group_query_attention,
    "MultiHeadAttention": _multi_head_attention,
    "RotaryEmbedding": _rotary,
}
