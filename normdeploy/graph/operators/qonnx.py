r"""QONNX's quantizers, as Brevitas writes them, by their definition; no runtime has a kernel for them.

::

    Quant(x, scale, zero, bits)  =  (round(clamp(x / scale + zero, low, high)) - zero) scale
    low, high                    =  -2^(bits-1) + narrow, 2^(bits-1) - 1   signed;    0, 2^bits - 1 - narrow   otherwise
    BipolarQuant(x, scale)       =  scale where x >= 0, -scale elsewhere;  Quant signed and of one bit alike

Source: qonnx, docs/qonnx-custom-ops (Quant, also called IntQuant, and BipolarQuant).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "ROUND": torch.round,
    "CEIL": torch.ceil,
    "FLOOR": torch.floor,
    "UP": lambda x: torch.sign(x) * torch.ceil(x.abs()),
    "DOWN": torch.trunc,
    "ROUND_TO_ZERO": torch.trunc,
}


def integer_range(bits: int, *, signed: bool, narrow: bool) -> tuple[int, int]:
    """Return the smallest and the largest integer of a quantizer."""
    if signed:
        return -(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1
    return 0, 2**bits - 1 - narrow


def rounding_of(given: str | bytes) -> str:
    """Return the name of a rounding mode, which may be written in either case.

    Raises:
        NotImplementedError: it is none of `ROUNDINGS`.
    """
    mode = (given.decode() if isinstance(given, bytes) else given).upper()
    if mode not in ROUNDINGS:
        raise NotImplementedError(f"rounding mode {mode}; expected one of {', '.join(ROUNDINGS)}")
    return mode


def _quant(call: Call, inputs: Inputs) -> Tensor:
    x, scale, zero, bits = (need(inputs, at) for at in range(4))
    signed, narrow = bool(call.attr("signed", 1)), bool(call.attr("narrow", 0))
    steps = x / scale + zero
    if signed and int(bits) == 1:
        whole = torch.where(steps >= 0, 1.0, -1.0).to(steps.dtype)
    else:
        low, high = integer_range(int(bits), signed=signed, narrow=narrow)
        whole = ROUNDINGS[rounding_of(call.attr("rounding_mode", "ROUND"))](steps.clamp(low, high))
    return (whole - zero) * scale


def _bipolar(call: Call, inputs: Inputs) -> Tensor:
    del call
    x, scale = need(inputs, 0), need(inputs, 1)
    return torch.where(x >= 0, scale, -scale)


QONNX: dict[tuple[str, str], Implementation] = {
    (domain, name): implementation
    for domain in DOMAINS
    for name, implementation in (("Quant", _quant), ("IntQuant", _quant), ("BipolarQuant", _bipolar))
}
