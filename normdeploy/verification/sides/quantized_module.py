"""A module with quantizers in float64: weights on the integers that the module itself computes.

A quantizer of an activation is arithmetic, in float64 like everything else. One of a weight is not asked again: the
weight that lies on a tie in float32 (the largest do, by construction) may lie beside it in float64, and would be
another weight. So whatever is computed from parameters and buffers alone is computed in the model's own precision
beside its float64 value, and the integers are read off there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from normdeploy.exporting.quantized.quantizer_mode import QuantizerMode
from normdeploy.exporting.quantized.quantizers import Arithmetic, Grid, rounded, spread
from normdeploy.graph.walk import nodes_in


class _Constants(TorchFunctionMode):
    """Computes what depends on a module's tensors alone in its own precision, too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._own = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self._beside: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def native(self, value: Any) -> Tensor | None:
        """Return a constant in the model's own precision; None of what is no constant."""
        if id(value) in self._own:
            return self._own[id(value)]
        found = self._beside.get(id(value))
        return found[1] if found is not None and found[0]() is value else None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        natives = {id(tensor): self.native(tensor) for tensor in tensors}
        result = func(*args, **kwargs)
        if tensors and isinstance(result, Tensor) and all(native is not None for native in natives.values()):
            given = pytree.tree_map(lambda leaf: natives.get(id(leaf), leaf), (args, kwargs))
            with torch._C.DisableTorchFunction(), torch.no_grad():
                beside = func(*given[0], **given[1])
            if isinstance(beside, Tensor) and beside is not result:
                self.note(result, beside)
        return result

    def note(self, value: Tensor, native: Tensor) -> Tensor:
        """Note what a constant is in the model's own precision."""
        key = id(value)
        self._beside[key] = weakref.ref(value, lambda _: self._beside.pop(key, None)), native
        return value


class _Truth(Arithmetic):
    """The primitives in float64, constants on the integers that the module computes."""

    def __init__(self, constants: _Constants) -> None:
        self._constants = constants

    def quantized(self, x: Tensor, grid: Grid) -> Tensor:
        """Return the values of the grid nearest to x."""
        native = self._constants.native(x)
        if native is None:
            return super().quantized(x, grid)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            scale = spread(grid.scale, native, grid.axis)
            step = torch.as_tensor(scale, dtype=torch.float32)
            zero = spread(grid.zero, native, grid.axis)
            whole = torch.clamp(rounded(native.float() * (1.0 / step), zero), grid.low, grid.high) - zero
            value = whole.double() * step.double()
            return self._constants.note(value, (whole * step).to(native.dtype))


@contextmanager
def quantizers_in_double(model: nn.Module) -> Iterator[None]:
    """Compute a module's quantizers in the float64 of the mode around, its weights' integers as it computes them."""
    with _Constants(model) as constants, QuantizerMode(_Truth(constants)):
        yield


class WithoutQuantizers(Arithmetic):
    """The primitives without quantizers: what is stored in integers stays what it stands for.

    ``left_out`` is True from the first one that was met.
    """

    left_out = False

    def quantized(self, x: Tensor, grid: Grid) -> Tensor:
        """Return x."""
        del grid
        self.left_out = True
        return x


_SIGNS = frozenset({"QuantizeLinear", "DequantizeLinear", "Round"})


def quantizes(graph: ir.Model | None) -> bool:
    """Tell by its graph whether a module may quantize; where there is none, it may."""
    return graph is None or any(node.op_type in _SIGNS for node in nodes_in(graph.graph))
