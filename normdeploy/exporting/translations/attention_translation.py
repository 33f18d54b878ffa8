r"""scaled_dot_product_attention in ONNX operators, over any number of axes and with any mask.

torch's own translation takes exactly [batch, heads, L, E], and where a mask leaves a query no key at all it writes a
softmax over nothing: NaN for a mask of -inf, the mean of all values for a mask of booleans. torch returns 0 there.
With ``kept`` = 1 where some key is left and 0 elsewhere, and rows without a key opened in the mask::

    attention(q, k, v, mask)  =  softmax(q k^T scale + opened mask) v kept

A product, not a choice: what is NaN or infinite in q, k or v makes NaN there, as it does in torch. Without a mask, and
with a causal one (every query sees the first key), no row is empty and nothing is added.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import onnxscript

# typed for tensors of numbers; while an exporter traces, every value is a symbol
op: Any = onnxscript.opset18
op23: Any = onnxscript.opset23
_FUSED_OPSET = 23  # the first with an Attention operator
_FUSED_RANK = 4


def ints(*numbers: int) -> Any:
    """Return a constant of these numbers."""
    return op.Constant(value_ints=list(numbers))


def number(value: float, like: Any) -> Any:
    """Return a constant of one number, of another value's type."""
    return op.Constant(value=ir.tensor(value, dtype=like.dtype))


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Translate aten.scaled_dot_product_attention for operator sets without an Attention operator.

    Args:
        query: [..., L, E].
        key: [..., S, E]. value: [..., S, V]. The axes in front broadcast.
        attn_mask: broadcasts to [..., L, S]; booleans (true: seen) or numbers to add; None for none.
        dropout_p: 0.
        is_causal: query i sees keys 0 to i.
        scale: of the products; E ** -0.5 by default.
        enable_gqa: heads (axis -3) of key and value each serve several of the query.
    """
    del dropout_p  # other than 0, the trace is refused: it would follow no eval()
    rank = len(key.shape)
    keys, values = (_repeated(key, query), _repeated(value, query)) if enable_gqa else (key, value)
    transposed = op.Transpose(keys, perm=[*range(rank - 2), rank - 1, rank - 2])
    # each factor takes the root, as in torch: products of float16 stay in range
    scaled = op.Mul(query, _root(query, scale, signed=True))
    scores = op.MatMul(scaled, op.Mul(transposed, _root(query, scale)))
    kept = None
    if is_causal:
        scores = op.Add(scores, _causal(query, key))
    elif attn_mask is not None:
        opened, kept = open_rows(attn_mask, query)
        scores = op.Add(scores, opened)
    attended = op.MatMul(op.Softmax(scores, axis=-1), values)
    return attended if kept is None else op.Mul(attended, kept)


def fused_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Translate it for operator set 23 and newer: the Attention operator, where the tensors have its four axes."""
    fits = all(len(tensor.shape) == _FUSED_RANK for tensor in (query, key, value))
    same = fits and all(query.shape[0] == tensor.shape[0] for tensor in (key, value))
    heads = [tensor.shape[1] for tensor in (query, key, value)] if fits else []
    if not same or (not enable_gqa and len(set(heads)) > 1):
        return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if attn_mask is None:
        return op23.Attention(query, key, value, scale=scale, is_causal=int(is_causal))[0]
    opened, kept = open_rows(attn_mask, query)
    # onnxruntime's operator wants both lengths written out
    whole = op.Concat(op.Shape(query, start=2, end=3), op.Shape(key, start=2, end=3), axis=0)
    return op.Mul(op23.Attention(query, key, value, op.Expand(opened, whole), scale=scale)[0], kept)


def open_rows(mask: Any, query: Any) -> tuple[Any, Any]:
    """Open the rows of a mask that leave no key.

    Returns:
        (the mask as numbers to add, with such rows 0; [..., L or 1, 1], 1 where a key was left, else 0).
    """
    nothing, shut = number(0.0, query), number(-math.inf, query)
    boolean = mask.dtype == ir.DataType.BOOL
    seen = mask if boolean else op.Not(op.Equal(mask, shut))
    kept = op.ReduceMax(op.Cast(seen, to=query.dtype), ints(-1), keepdims=1)
    if not boolean:
        return op.Where(op.Cast(kept, to=ir.DataType.BOOL), mask, nothing), kept
    # 0 where seen, -inf where not, and 0 in a row where nothing is: -inf and kept = 0 do not meet
    unseen = op.Where(op.Cast(kept, to=ir.DataType.BOOL), shut, nothing)
    return op.Where(mask, nothing, unseen), kept


def _root(tensor: Any, scale: float | None, *, signed: bool = False) -> Any:
    """Return the root of the scale, in the dtype of a tensor [..., E]; with its sign where ``signed``."""
    width = tensor.shape[len(tensor.shape) - 1]
    if scale is None and not isinstance(width, int):
        size = op.Cast(op.Shape(tensor, start=len(tensor.shape) - 1), to=tensor.dtype)
        return op.Sqrt(op.Reciprocal(op.Sqrt(size)))
    factor = width**-0.5 if scale is None else scale
    root = math.sqrt(abs(factor))
    return number(math.copysign(root, factor) if signed else root, tensor)


def _causal(query: Any, key: Any) -> Any:
    """Return the mask [L, S] to add: 0 on and below the diagonal, -inf above."""
    length, keys = (op.Shape(tensor, start=len(tensor.shape) - 2, end=len(tensor.shape) - 1) for tensor in (query, key))
    seen = op.Trilu(op.Expand(op.Constant(value_float=1.0), op.Concat(length, keys, axis=0)), upper=0)
    return op.Where(op.Cast(seen, to=ir.DataType.BOOL), number(0.0, query), number(-math.inf, query))


def _repeated(tensor: Any, query: Any) -> Any:
    """Return [..., heads of the query, S, E], each of the tensor's [..., heads, S, E] as often as it has to serve."""
    rank = len(tensor.shape)
    heads, served = query.shape[len(query.shape) - 3], tensor.shape[rank - 3]
    if heads == served:
        return tensor
    spread = op.Expand(op.Unsqueeze(tensor, ints(rank - 2)), ints(heads // served, 1, 1))
    # how many there are in front may be dynamic; the heads are not
    shape = op.Concat(op.Shape(tensor, end=rank - 3), ints(heads), op.Shape(tensor, start=rank - 2), axis=0)
    return op.Reshape(spread, shape)


def translation(opset: int | None) -> Any:
    """Return the translation for an operator set; None is the exporter's own default, which has no such operator."""
    return fused_attention if opset is not None and opset >= _FUSED_OPSET else attention
