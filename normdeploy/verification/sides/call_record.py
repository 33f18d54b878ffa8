"""The numbers that a run of a module hands to torch: what its norms are called with, what it multiplies by and adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from normdeploy.nn.wrapped import is_wrapped

_LARGEST = 1 << 16
"""Elements of an operand that is kept: a number per channel, or per place and channel."""


@dataclass(frozen=True)
class NormCall:
    """One call of a norm.

    Args:
        kind: ONNX's word for it. numbers: scale, shift and, of stored statistics, mean and variance; None where absent.
        epsilon: its epsilon. size: of what has statistics of its own; 0 where those are stored.
        groups: of a sample, each of which has statistics of its own (of InstanceNormalization its channels); 0 for the
            other norms.
    """

    kind: str
    numbers: tuple[Tensor | None, ...]
    epsilon: float
    size: int = 0
    groups: int = 0


def _batch_norm(given: Mapping[str, Any]) -> NormCall | None:
    mean, variance = given["running_mean"], given["running_var"]
    if given.get("training", False) or mean is None or variance is None:
        return None
    return NormCall("BatchNormalization", (*_affine(given), mean, variance), given.get("eps", 1e-5))


def _layer_norm(given: Mapping[str, Any]) -> NormCall | None:
    size = math.prod(given["normalized_shape"])
    return NormCall("LayerNormalization", _affine(given), given.get("eps", 1e-5), size) if size else None


def _group_norm(given: Mapping[str, Any]) -> NormCall | None:
    return _grouped("GroupNormalization", given, given["num_groups"])


def _instance_norm(given: Mapping[str, Any]) -> NormCall | None:
    x = given["input"]
    if not given.get("use_input_stats", True):
        return _batch_norm(given)
    return _grouped("InstanceNormalization", given, x.shape[1]) if _outlasts(x) and x.dim() > 2 else None


def _grouped(kind: str, given: Mapping[str, Any], groups: int) -> NormCall | None:
    x = given["input"]
    rows = x.shape[0] * groups if _outlasts(x) and x.dim() > 1 else 0  # of what is mapped over a sample is not known
    return NormCall(kind, _affine(given), given.get("eps", 1e-5), x.numel() // rows, groups) if rows else None


def _affine(given: Mapping[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    return given.get("weight"), given.get("bias")


_NORMS: Mapping[Any, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], NormCall | None]]] = {
    functional.batch_norm: (
        ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
        _batch_norm,
    ),
    functional.layer_norm: (("input", "normalized_shape", "weight", "bias", "eps"), _layer_norm),
    functional.group_norm: (("input", "num_groups", "weight", "bias", "eps"), _group_norm),
    functional.instance_norm: (
        ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps"),
        _instance_norm,
    ),
}
"""Torch's functions with the names of their arguments, in order."""

_CONVOLUTIONS = frozenset({functional.conv1d, functional.conv2d, functional.conv3d})
_PADDING = 4  # conv2d(input, weight, bias, stride, padding)

_SCALES = frozenset({"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"})
_DIVIDES = frozenset({"div", "div_", "true_divide", "divide"})
_SHIFTS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_SUBTRACTS = frozenset({"sub", "sub_", "subtract"})


class CallRecord(TorchFunctionMode):
    """Takes down the numbers of a module's calls in the order of the calls; changes nothing.

    Attributes:
        norms: its calls of norms. scales, shifts: what it multiplies by and adds, tensors or numbers; a division by a
            number is a scale, and of attention's scale the root is one twice. convolutions: their weights and paddings.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norms: list[NormCall] = []
        self.scales: list[Tensor | float] = []
        self.shifts: list[Tensor | float] = []
        self.convolutions: list[tuple[Tensor, tuple[int, ...]]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run ``func`` and take down what it was called with."""
        given = dict(kwargs or {})
        result = func(*args, **given)
        if func in _NORMS:
            names, read = _NORMS[func]
            call = read({**dict(zip(names, args, strict=False)), **given})
            self.norms += [] if call is None or not all(map(_outlasts, call.numbers)) else [call]
        elif func in _CONVOLUTIONS and len(args) > _PADDING and isinstance(args[_PADDING], tuple):
            self.convolutions += [(args[1], args[_PADDING])] if _outlasts(args[1]) else []
        elif func is functional.scaled_dot_product_attention:
            query, scale = args[0] if args else given["query"], given.get("scale")
            scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
            self.scales += [math.sqrt(scale)] * 2 if scale > 0 else []
        elif isinstance(result, Tensor) and not given:
            self._operands(getattr(func, "__name__", ""), args, result)
        return result

    def _operands(self, name: str, args: tuple[Any, ...], result: Tensor) -> None:
        if name == "addcmul" and len(args) == 3:
            self.shifts += [args[0]] if _kept(args[0], result) else []
            self.scales += [one for one in args[1:] if _kept(one, result)]
        if len(args) != 2:
            return
        if name in _SCALES:
            self.scales += [one for one in args if _kept(one, result)]
        elif name in _SHIFTS:
            self.shifts += [one for one in args if _kept(one, result)]
        elif name in _DIVIDES and isinstance(args[1], (int, float)) and args[1]:
            self.scales.append(1 / args[1])
        elif name in _SUBTRACTS and _kept(args[1], result):
            self.shifts.append(-args[1])


def _kept(operand: Any, result: Tensor) -> bool:
    """Tell whether an operand is a number, or has fewer elements than the result, as one per channel has."""
    if isinstance(operand, Tensor):
        return operand.is_floating_point() and operand.numel() <= min(_LARGEST, result.numel()) and _outlasts(operand)
    return isinstance(operand, (int, float)) and not isinstance(operand, bool)


def _outlasts(number: Tensor | None) -> bool:
    """Tell whether numbers can be looked at after the call: parts of what torch.func maps over cannot."""
    return number is None or not is_wrapped(number)
