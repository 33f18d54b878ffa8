"""Every call into torch that quantizes, or computes on what is quantized, written with the primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from normdeploy.exporting.quantized.quantized_operators import of_quantized, operator_of
from normdeploy.exporting.quantized.quantizer_functions import function_of
from normdeploy.exporting.quantized.quantizers import OnGrids


class QuantizerMode(OnGrids, TorchFunctionMode):
    """Write every quantizer that runs under it with the primitives.

    Args:
        primitives: how they are computed.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch, or what stands for it here."""
        kwargs = dict(kwargs or {})
        written = function_of(func) or operator_of(func)
        if written is not None:
            return written(self, *args, **kwargs)
        grids = [grid for leaf in pytree.tree_leaves((args, kwargs)) if (grid := self.grid_of(leaf)) is not None]
        return of_quantized(self, func, args, kwargs, grids[0]) if grids else func(*args, **kwargs)
