"""A module that raises, and whose caller goes on: torch's trace takes all that follows for the module's inside.

    try:
        x = layer(x, lengths=lengths)
    except TypeError:  # it takes none
        x = layer(x)

is how toolkits for speech call layers of several kinds. The trace leaves the module on its stack, and stops later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.fx import Tracer
from torch.nn import Module


@contextmanager
def raising_modules_left() -> Iterator[None]:
    """Let traces in this block take a module from the stack of modules when it raises."""
    entered = Tracer.call_module

    def call_module(
        tracer: Tracer, module: Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        before = tuple(tracer.module_stack.items())
        try:
            return entered(tracer, module, forward, args, kwargs)
        except BaseException:
            tracer.module_stack.clear()
            tracer.module_stack.update(before)
            raise

    with mock.patch.object(Tracer, "call_module", call_module):
        yield
