"""``weight.data`` in a forward, read and assigned, followed while it is traced.

Networks that merge their branches for evaluation may do it at every call::

    self.merged.weight.data = merged(self.conv[0].weight.data, self.conv[1].weight.data)

What torch's trace reads there it takes for a constant without numbers, and gives up. Here reading is ``detach()``,
which it follows; a tensor that is assigned to stays as it is, and what was assigned stands for it in what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

_READ, _ASSIGN = torch.Tensor.data.__get__, torch.Tensor.data.__set__  # type: ignore[attr-defined] # a property there


class DataFollowed(TorchFunctionMode):
    """Follows the attribute ``data`` of tensors in its block."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Follow the attribute; hand everything else what was assigned in the place of its tensor."""
        del types
        kwargs = dict(kwargs or {})
        if self._values:
            first = args[:1] if func == _ASSIGN else ()
            args, kwargs = tree_map_only(Tensor, self._standing, (tuple(args), kwargs))
            args = (*first, *args[len(first) :])
        if func == _ASSIGN and isinstance(args[1], Tensor):
            self._values[id(args[0])] = args[0], args[1].detach()
            return None
        return args[0].detach() if func == _READ else func(*args, **kwargs)

    def _standing(self, tensor: Tensor) -> Tensor:
        return self._values.get(id(tensor), (tensor, tensor))[1]
