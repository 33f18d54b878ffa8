r"""Attention over any number of axes, traced as over four.

``torch.nn.functional.scaled_dot_product_attention`` takes [..., L, E]; the exporter of torch takes exactly
[batch, heads, L, E] and raises otherwise. Axes in front are independent of each other: they can be split and joined::

    attention([..., L, E], [..., S, E], [..., S, V])  =  attention([1, ..., L, E], ...)[0]              fewer than four
                                                      =  attention([prod, last, L, E], ...) in its shape     more
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

_AXES = 4


class FourAxes(TorchFunctionMode):
    """While active, calls of scaled_dot_product_attention with other than four axes are made with four."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``; attention over other than four axes through :func:`attention_over_four`."""
        keywords = kwargs or {}
        if func is scaled_dot_product_attention:
            return _dispatch(*args, **keywords)
        return func(*args, **keywords)


def _dispatch(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **more: Any
) -> Tensor:
    as_it_is = query.dim() == _AXES or len({query.dim(), key.dim(), value.dim()}) > 1 or more.get("enable_gqa", False)
    call = scaled_dot_product_attention if as_it_is else attention_over_four
    return call(query, key, value, attn_mask, *rest, **more)


def attention_over_four(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **more: Any
) -> Tensor:
    """Return scaled_dot_product_attention of tensors of one number of axes, not four, through a call with four.

    Args:
        query: [..., L, E].
        key: [..., S, E]. value: [..., S, V]. The axes in front broadcast.
        attn_mask: broadcasts to [..., L, S]; None for none.
        rest: the function's other arguments.
        more: and those given by name.
    """
    if query.dim() < _AXES:  # the mask broadcasts from the right, and so over new axes in front
        missing = (None,) * (_AXES - query.dim())
        four = scaled_dot_product_attention(query[missing], key[missing], value[missing], attn_mask, *rest, **more)
        return four[(0,) * len(missing)]
    lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])  # type: ignore[no-untyped-call] # torch has no types for it

    def flat(tensor: Tensor) -> Tensor:
        whole = tensor if tensor.shape[:-2] == lead else tensor.expand(*lead, *tensor.shape[-2:])
        return whole.flatten(0, -_AXES)

    mask = attn_mask if attn_mask is None or attn_mask.dim() < _AXES else flat(attn_mask)
    four = scaled_dot_product_attention(flat(query), flat(key), flat(value), mask, *rest, **more)
    return four.reshape(*lead, *four.shape[-2:])
