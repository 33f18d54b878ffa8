"""A network of many functions of one input: an export takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn


class Each(nn.Module):
    """Returns all that the functions make of one input, by the functions' names and the place among their results."""

    def __init__(self, functions: Mapping[str, Callable[[Tensor], Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, function in self.functions.items():
            result = function(x)
            parts = result if isinstance(result, tuple) else (result,)
            found |= {f"{name}_{number}": part for number, part in enumerate(parts)}
        return found
