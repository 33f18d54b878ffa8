"""The numbers in tensors that a run may change in place, so that they can be given back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from normdeploy.nn.object_walk import Reached, Snapshot, unregistered_tensors


def state_of(model: nn.Module, reached: Iterable[Reached] | None = None) -> Iterator[Tensor]:
    """Yield what holds a model's state: its buffers, and tensors that are registered nowhere.

    Args:
        model: the model. reached: what is reached from it (`object_walk.walk`), where that is known.
    """
    yield from model.buffers()
    yield from unregistered_tensors(model, reached).values()


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors of one kind hold the same numbers, NaN beside NaN; sparse ones, in the same order.

    Tensors on the meta device hold none.
    """
    if _kind(one) != _kind(other):
        return False
    return all(map(_equal, _strided(one), _strided(other)))


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.is_meta or other.is_meta:
        return one.is_meta and other.is_meta
    if torch.equal(one, other):
        return True
    numbers = one.is_floating_point() or one.is_complex()
    return numbers and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _kind(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.layout, [part.shape for part in _strided(tensor)]


def _strided(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that hold what a tensor does."""
    tensor = tensor.detach()
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor.to_dense(),)


class Contents:
    """Copies of some tensors' numbers.

    Args:
        tensors: of them, each once.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._copies = {id(tensor): (tensor, tensor.detach().clone()) for tensor in tensors}

    @torch.no_grad()
    def restore(self) -> None:
        """Give every tensor back what it held, in place: others may share its memory."""
        for tensor, copy in self._copies.values():
            if same_numbers(tensor, copy):
                continue
            if _kind(tensor) != _kind(copy) or tensor.layout is torch._mkldnn:  # type: ignore[attr-defined] # not public
                tensor.data = copy.clone()
                continue
            for place, numbers in zip(_strided(tensor), _strided(copy), strict=True):
                place.copy_(numbers)


class Assigned:
    """What parameters hold, given back where a run assigned others to their ``data``; their numbers are not copied.

    Args:
        parameters: the model's.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._held = [(tensor, tensor.data) for tensor in parameters if tensor.layout is torch.strided]

    def restore(self) -> None:
        """Let every parameter hold what it held."""
        for tensor, held in self._held:
            if tensor.dtype != held.dtype or tensor.shape != held.shape or tensor.data_ptr() != held.data_ptr():
                tensor.data = held


class Before:
    """What a model holds before a run: its attributes, the numbers of its state, and the tensors of its parameters.

    Args:
        model: the model. reached: what is reached from it (`object_walk.walk`), which is walked through once for all.
    """

    def __init__(self, model: nn.Module, reached: Sequence[Reached]) -> None:
        self._held = (
            Snapshot(model, reached=reached),
            Contents(state_of(model, reached)),
            Assigned(model.parameters()),
        )

    def restore(self) -> None:
        """Give the model all of it back."""
        for held in self._held:
            held.restore()
