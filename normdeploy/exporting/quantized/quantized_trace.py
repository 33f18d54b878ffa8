"""Quantizers as operators that torch.export keeps, and modules with quantizers made ready for it.

Three things stop a trace of a module that torch.ao made: its quantizers have no kernel for a trace or no translation;
they ask a tensor whether they are switched on, which no trace can answer; weights of converted layers lie in objects
that only torch's own kernels read. For the length of a trace the first are operators of ours (``normdeploy::quantized``
and its kin, which :mod:`.quantized_translations` writes as QuantizeLinear and DequantizeLinear), the second are plain
numbers, the third are buffers: ``weight`` (int8), ``weight_scale``, ``weight_zero_point``, ``bias``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.ao.nn.quantized as nnq
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normdeploy.exporting.eager import forward_replaced
from normdeploy.exporting.quantized.quantized_operators import Packed, packed
from normdeploy.exporting.quantized.quantizer_functions import is_quantizer
from normdeploy.exporting.quantized.quantizer_mode import QuantizerMode
from normdeploy.exporting.quantized.quantizers import Arithmetic, Grid, spread

_LIBRARY: Any = torch.library.Library("normdeploy", "DEF")  # type: ignore[no-untyped-call] # torch leaves it unannotated
_LIBRARY.define("quantized(Tensor x, float scale, int zero, int low, int high) -> Tensor")
_LIBRARY.define("quantized_by(Tensor x, Tensor scale, Tensor zero, int? axis, int low, int high) -> Tensor")
_LIBRARY.define("restored(Tensor integers, Tensor scale, Tensor zero, int? axis) -> Tensor")


def _quantized(x: Tensor, scale: float, zero: int, low: int, high: int) -> Tensor:
    return Arithmetic().quantized(x, Grid(scale, zero, None, low, high))


def _quantized_by(x: Tensor, scale: Tensor, zero: Tensor, axis: int | None, low: int, high: int) -> Tensor:
    return Arithmetic().quantized(x, Grid(scale, zero, axis, low, high)).to(x.dtype)


def _restored(integers: Tensor, scale: Tensor, zero: Tensor, axis: int | None) -> Tensor:
    steps, origin = spread(scale, integers, axis), spread(zero, integers, axis)
    return (integers.to(scale.dtype) - origin) * steps


for _name, _function in (("quantized", _quantized), ("quantized_by", _quantized_by), ("restored", _restored)):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"normdeploy::{_name}", _function, lib=_LIBRARY)

operators = torch.ops.normdeploy


class Traced:
    """The primitives as operators that a trace keeps."""

    def quantized(self, x: Tensor, grid: Grid) -> Tensor:
        """Return the values of the grid nearest to x."""
        if not isinstance(grid.scale, Tensor) and not isinstance(grid.zero, Tensor):
            return operators.quantized(x, float(grid.scale), int(grid.zero), grid.low, grid.high)  # type: ignore[no-any-return]
        scale, zero = _tensors(grid)
        axis = grid.axis if scale.numel() > 1 else None
        return operators.quantized_by(x, scale, zero, axis, grid.low, grid.high)  # type: ignore[no-any-return]

    def restored(self, integers: Tensor, grid: Grid) -> Tensor:
        """Return what integers stand for."""
        return operators.restored(integers, *_tensors(grid), grid.axis)  # type: ignore[no-any-return]


def _tensors(grid: Grid) -> tuple[Tensor, Tensor]:
    scale = grid.scale if isinstance(grid.scale, Tensor) else torch.tensor(grid.scale)
    return scale, grid.zero if isinstance(grid.zero, Tensor) else torch.tensor(grid.zero, dtype=torch.int32)


class QuantizersSeen(TorchFunctionMode):
    """Notes whether anything quantizes in its block: ``seen``."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.compiler.is_compiling():  # a body of torch.cond: the compiler cannot follow what comes below
            return func(*args, **(kwargs or {}))
        self.seen = self.seen or is_quantizer(func)
        return func(*args, **(kwargs or {}))


_FLAGS = ("fake_quant_enabled", "observer_enabled", "static_enabled", "learning_enabled")


@contextmanager
def quantizers_traceable(model: nn.Module) -> Iterator[None]:
    """Let a model that quantizes be traced, for the block."""
    with ExitStack() as stack:
        for module in list(model.modules()):
            stack.enter_context(_flags_as_numbers(module))
            if _packed_names(module) or any(_packed_names(child) for child in module.children()):
                stack.enter_context(_short_repr(module))
            stack.enter_context(_weights_as_buffers(module))
        original = model.forward

        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            with QuantizerMode(Traced()):
                return original(*args, **kwargs)

        stack.enter_context(forward_replaced(model, forward))
        yield


@contextmanager
def _flags_as_numbers(module: nn.Module) -> Iterator[None]:
    """Let what a quantizer's forward branches on, or hands to torch as a number, be numbers."""
    found = {
        name: tensor for name in (*_FLAGS, *_numbers(module)) if isinstance(tensor := module._buffers.get(name), Tensor)
    }
    for name, tensor in found.items():
        del module._buffers[name]
        vars(module)[name] = tensor.reshape(-1).tolist() if name in _FLAGS else tensor.item()
    fused = bool(found) and any(kind.__name__ == _FUSED for kind in type(module).__mro__)
    # its function takes the switches as tensors
    written = forward_replaced(module, functools.partial(_fake_quantize, module)) if fused else nullcontext()
    try:
        with written:
            yield
    finally:
        for name, tensor in found.items():
            vars(module).pop(name, None)
            module._buffers[name] = tensor


_FUSED = "FusedMovingAvgObsFakeQuantize"


def _fake_quantize(module: Any, x: Tensor) -> Tensor:
    """Compute what a fused observer and fake quantizer does with its observer off."""
    low, high = module.activation_post_process.quant_min, module.activation_post_process.quant_max
    if not module.fake_quant_enabled[0]:
        return x
    axis = module.ch_axis if module.is_per_channel else None
    return Traced().quantized(x, Grid(module.scale, module.zero_point, axis, low, high))


def _numbers(module: nn.Module) -> set[str]:
    """Return the buffers that a converted module hands to torch's functions as a step or a zero point."""
    if isinstance(module, torch.fx.GraphModule):
        quantizes = [node for node in module.graph.nodes if node.op == "call_function" and is_quantizer(node.target)]
        operands = [operand for node in quantizes for operand in (*node.args[1:], *node.kwargs.values())]
        names = {str(operand.target) for operand in operands if getattr(operand, "op", "") == "get_attr"}
        return {name for name in names if (found := module._buffers.get(name)) is not None and found.numel() == 1}
    return {"scale", "zero_point"} if isinstance(module, nnq.Quantize) else set()


class _Holder:
    """Stands for packed weights: they are read from the module's buffers, which a trace exchanges."""

    def __init__(self, module: nn.Module, kept: Packed) -> None:
        self._module, self._kept = module, kept

    @property
    def packed(self) -> Packed:
        """The weights as they are now."""
        found = self._module._buffers
        weight, scale, zero = found["weight"], found["weight_scale"], found["weight_zero_point"]
        assert weight is not None
        assert scale is not None
        assert zero is not None
        return replace(
            self._kept, weight=weight, bias=found.get("bias"), grid=replace(self._kept.grid, scale=scale, zero=zero)
        )


def _packed_names(module: nn.Module) -> list[str]:
    """Return the attributes of a module that hold packed weights."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, torch.ScriptObject) and str(value._type().qualified_name()).endswith("PackedParamsBase")
    ]


@contextmanager
def _short_repr(module: nn.Module) -> Iterator[None]:
    """Let ``repr`` of a converted layer not look into its weights: the exporter prints the model."""
    vars(module)["extra_repr"] = str
    try:
        yield
    finally:
        vars(module).pop("extra_repr", None)


@contextmanager
def _weights_as_buffers(module: nn.Module) -> Iterator[None]:
    """Let packed weights of a converted layer be buffers."""
    kept: dict[str, torch.ScriptObject] = {}
    added: list[str] = []
    for name in _packed_names(module):
        source = vars(module)[name]
        found = packed(source)
        kept[name] = source
        tensors = {
            "weight": found.weight, "weight_scale": found.grid.scale, "weight_zero_point": found.grid.zero,
            "bias": found.bias,
        }  # fmt: skip
        for key, tensor in tensors.items():
            if isinstance(tensor, Tensor):
                # not register_buffer: the layer has methods of these names
                module._buffers[key] = tensor
                added.append(key)
        vars(module)[name] = _Holder(module, found)
    try:
        yield
    finally:
        for name, source in kept.items():
            vars(module)[name] = source
        for key in added:
            module._buffers.pop(key, None)
