"""Tensors in plain attributes of modules, registered as buffers while the model is traced.

torch.export lifts such a tensor as an anonymous constant, and fails (with a bare StopIteration) where forward assigns
the attribute to itself, as hand-written BatchNorms that return their moving averages do even in evaluation. A
registered buffer may be assigned, and has a name in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class PlainTensor:
    """A tensor in a plain attribute of a module.

    Args:
        module: who holds it.
        name: in which attribute.
        tensor: the tensor.
    """

    module: nn.Module
    name: str
    tensor: Tensor

    def unchanged(self) -> bool:
        """Tell whether the attribute still holds this tensor, or a detached view of the whole of it."""
        now = vars(self.module).get(self.name)
        return isinstance(now, Tensor) and now.shape == self.tensor.shape and now.data_ptr() == self.tensor.data_ptr()


def module_tensors(model: nn.Module) -> list[PlainTensor]:
    """List the tensors in plain attributes of the modules that ``model`` registers.

    Left out are those whose class has an attribute of that name (``anchors = torch.empty(0)``): Python would find it in
    place of a buffer.
    """
    return [
        PlainTensor(module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and not hasattr(type(module), name)
    ]


@contextmanager
def plain_tensors_registered(tensors: Sequence[PlainTensor]) -> Iterator[None]:
    """Register ``tensors`` as buffers; put the very tensors back after.

    Args:
        tensors: those of :func:`module_tensors` that forward leaves :meth:`~PlainTensor.unchanged`. What it computes
            anew at each call (a cache) must stay plain: as a buffer it would be state of the graph.
    """
    for plain in tensors:
        vars(plain.module).pop(plain.name)
        plain.module._buffers[plain.name] = plain.tensor
    try:
        yield
    finally:
        for plain in tensors:
            plain.module._buffers.pop(plain.name, None)
            vars(plain.module)[plain.name] = plain.tensor
