"""torch's transformers look at the numbers of a mask to choose a kernel, which no trace can follow.

``nn.TransformerEncoder`` and ``nn.TransformerDecoder`` compare a mask with a causal one where the caller does not say
whether it is (``is_causal=None``), and branch on the result. The answer is a hint alone: with either one, what the
mask says is what is computed (torch's documentation of ``is_causal``). A trace is told no: the graph holds the mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

_HINTS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.TransformerEncoder, "is_causal"),
    (nn.TransformerDecoder, "tgt_is_causal"),
)


@contextmanager
def causal_hints_given(model: nn.Module) -> Iterator[None]:
    """Answer for each of torch's transformers in a model whether its mask is causal, where the call leaves it open.

    Args:
        model: the model; it is given back without the hooks.
    """
    with ExitStack() as hooks:
        for module in model.modules():
            for kind, hint in _HINTS:
                if isinstance(module, kind) and hint in inspect.signature(module.forward).parameters:
                    handle = module.register_forward_pre_hook(_Answer(hint), with_kwargs=True)
                    hooks.callback(handle.remove)
        yield


class _Answer:
    def __init__(self, hint: str) -> None:
        self.hint = hint

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        call = inspect.signature(module.forward).bind(*args, **kwargs)
        if call.arguments.get(self.hint) is not None:
            return None
        call.arguments[self.hint] = False
        return call.args, call.kwargs
