"""Products with quantized weights whose other operand is a float: dynamic quantization, blocks of 2, 4 and 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need, optional
from normdeploy.graph.operators.integer_operators import dynamically_quantized, real
from normdeploy.graph.operators.recurrent import lstm


def _biased(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias


def _dynamic_quantize_matmul(call: Call, inputs: Inputs) -> Tensor:
    """A B + bias, with A quantized to the 256 steps of its own range."""
    whole, step, zero = dynamically_quantized(need(inputs, 0))
    a = real(call, whole, step, zero)
    b = real(call, need(inputs, 1), need(inputs, 2), optional(inputs, 3), axis=-1)
    return _biased(a @ b, optional(inputs, 4))


def _dynamic_quantize_lstm(call: Call, inputs: Inputs) -> list[Tensor]:
    """LSTM whose weights are integers, [directions, operands, results] each, with a step per direction or per result.

    The sequence is quantized to the 256 steps of its own range, as a whole; the state at each step, of all samples:
    onnxruntime with several threads takes the samples of each thread apart, and another result for it.
    """
    if optional(inputs, 4) is not None:
        raise NotImplementedError("lengths of sequences: what of the state is quantized behind an end is not told")

    def requantized(x: Tensor) -> Tensor:
        return real(call, *dynamically_quantized(x))

    weights: list[Tensor | None] = []
    for place, steps in ((1, 8), (2, 10)):
        whole = need(inputs, place)
        step, zero = (need(inputs, at).reshape(len(whole), 1, -1) for at in (steps, steps + 1))
        weights.append(((whole.to(call.dtype) - zero.to(call.dtype)) * step).transpose(1, 2))
    return lstm(call, [requantized(need(inputs, 0)), *weights, *inputs[3:8]], requantized)


def _matmul_integer_to_float(call: Call, inputs: Inputs) -> Tensor:
    """A B + bias of integers; A's step may be one per row, B's one per column."""
    a = real(call, need(inputs, 0), need(inputs, 2), optional(inputs, 4), axis=-2)
    b = real(call, need(inputs, 1), need(inputs, 3), optional(inputs, 5), axis=-1)
    return _biased(a @ b, optional(inputs, 6))


def unpacked(stored: Tensor, bits: int) -> Tensor:
    """Return the integers that a last axis of bytes holds, the lowest bits first."""
    each = 8 // bits
    shifts = torch.arange(each, dtype=torch.uint8) * bits
    whole = torch.bitwise_right_shift(stored.unsqueeze(-1), shifts) & (2**bits - 1)
    return torch.flatten(whole, -2)


def _matmul_n_bits(call: Call, inputs: Inputs) -> Tensor:
    """A W' + bias; each row of W [N, K] in blocks along K, each with its step and zero point."""
    bits, block = call.attr("bits", 4), call.attr("block_size")
    rows, columns = call.attr("N"), call.attr("K")
    if bits not in (2, 4, 8) or call.attr("weight_prepacked", 0) or optional(inputs, 4) is not None:
        raise NotImplementedError("bits other than 2, 4 and 8, prepacked weights, g_idx")
    count = -(-columns // block)
    whole = unpacked(need(inputs, 1).reshape(rows, count, -1), bits).to(call.dtype)
    steps, zeros = need(inputs, 2).reshape(rows, count, 1), optional(inputs, 3)
    if zeros is None:
        zero: Tensor | float = float(2 ** (bits - 1))
    elif zeros.is_floating_point():
        zero = zeros.reshape(rows, count, 1)
    else:
        zero = unpacked(zeros.reshape(rows, -1), bits)[:, :count, None].to(call.dtype)
    weight = ((whole - zero) * steps).reshape(rows, -1)[:, :columns]
    return _biased(need(inputs, 0) @ weight.T, optional(inputs, 5))


def _gather_block_quantized(call: Call, inputs: Inputs) -> Tensor:
    """Rows of a table of few bits, in blocks along another axis, each with its step and zero point; zeros beyond it."""
    stored, index, steps = need(inputs, 0), need(inputs, 1), need(inputs, 2)
    if stored.is_floating_point():
        raise NotImplementedError("tables of floats of 4 and 8 bits")
    bits, packed = call.attr("bits", 4), stored.dtype is torch.uint8  # other types are stored one by one
    along, block = call.attr("quantize_axis", 1) % stored.dim(), call.attr("block_size", 128)
    zeros = optional(inputs, 3)
    if packed:
        stored, zeros = unpacked(stored, bits), None if zeros is None else unpacked(zeros, bits)
    if zeros is None:
        zeros = torch.full_like(steps, 2 ** (bits - 1) if packed else 0)
    each = zeros[..., : steps.shape[-1]].to(call.dtype), steps
    zero, step = (part.repeat_interleave(block, along).narrow(along, 0, stored.shape[along]) for part in each)
    table = (stored.to(call.dtype) - zero) * step
    axis = int(call.attr("gather_axis", 0)) % table.dim()
    rows = table.shape[axis]
    places = index.reshape(-1).long()
    known = (places >= -rows) & (places < rows)
    found = table.index_select(axis, torch.where(known, places, 0) % rows)
    found = found * known.reshape(-1, *(1,) * (table.dim() - axis - 1))
    shape = (*table.shape[:axis], *index.shape, *table.shape[axis + 1 :])
    return found.reshape(shape)


PACKED: dict[str, Implementation] = {
    "DynamicQuantizeLSTM": _dynamic_quantize_lstm,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "GatherBlockQuantized": _gather_block_quantized,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "MatMulNBits": _matmul_n_bits,
}
