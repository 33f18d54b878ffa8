"""Operators on sequences of tensors, in torch.

torch's exporter writes ``x.split(sizes)`` as SplitToSequence and a SequenceAt per part; the parts may be of unequal
size. The evaluator passes tensors from node to node, so that a sequence travels as an empty one that carries its parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need, optional


class Parts(Tensor):
    """A sequence of tensors: an empty integer tensor, which nothing computes with, that carries them.

    Attributes:
        parts: the tensors, as they are (gradients flow through them).
    """

    parts: tuple[Tensor, ...]


def sequence(parts: Sequence[Tensor]) -> Parts:
    """Return tensors as a sequence."""
    made = torch.empty(0, dtype=torch.int64).as_subclass(Parts)
    made.parts = tuple(parts)
    return made


def _parts(inputs: Inputs) -> tuple[Tensor, ...]:
    value = need(inputs, 0)
    if not isinstance(value, Parts):
        raise ValueError("input 0 is a tensor; the operator takes a sequence")
    return value.parts


def _split_to_sequence(call: Call, inputs: Inputs) -> Tensor:
    x, split = need(inputs, 0), optional(inputs, 1)
    axis = call.attr("axis", 0)
    if split is None:
        parts = list(torch.split(x, 1, dim=axis))
        return sequence(parts if call.attr("keepdims", 1) else [part.squeeze(axis) for part in parts])
    sizes = int(split) if split.dim() == 0 else [int(size) for size in split.tolist()]
    return sequence(list(torch.split(x, sizes, dim=axis)))


def _sequence_at(_: Call, inputs: Inputs) -> Tensor:
    return _parts(inputs)[int(need(inputs, 1))]


def _sequence_construct(_: Call, inputs: Inputs) -> Tensor:
    return sequence([need(inputs, index) for index in range(len(inputs))])


def _place(inputs: Inputs, index: int, end: int, last: int) -> int:
    """Return a place in a sequence, the last one where none is given.

    Args:
        end: how many parts there are. last: the largest place that is one.
    """
    given = optional(inputs, index)
    place = last if given is None else int(given)
    if not -end <= place <= last:
        raise ValueError(f"place {place} of a sequence of {end}; expected one from {-end} to {last}")
    return place if place >= 0 else place + end


def _sequence_insert(_: Call, inputs: Inputs) -> Tensor:
    parts, tensor = _parts(inputs), need(inputs, 1)
    at = _place(inputs, 2, len(parts), len(parts))
    return sequence([*parts[:at], tensor, *parts[at:]])


def _sequence_erase(_: Call, inputs: Inputs) -> Tensor:
    parts = _parts(inputs)
    at = _place(inputs, 1, len(parts), len(parts) - 1)
    return sequence([*parts[:at], *parts[at + 1 :]])


def _sequence_length(_: Call, inputs: Inputs) -> Tensor:
    return torch.tensor(len(_parts(inputs)))


def _concat_from_sequence(call: Call, inputs: Inputs) -> Tensor:
    parts, axis = list(_parts(inputs)), call.attr("axis")
    return torch.stack(parts, dim=axis) if call.attr("new_axis", 0) else torch.cat(parts, dim=axis)


SEQUENCES: dict[str, Implementation] = {
    "SplitToSequence": _split_to_sequence,
    "SequenceAt": _sequence_at,
    "SequenceConstruct": _sequence_construct,
    "SequenceEmpty": lambda call, inputs: sequence([]),
    "SequenceErase": _sequence_erase,
    "SequenceInsert": _sequence_insert,
    "SequenceLength": _sequence_length,
    "ConcatFromSequence": _concat_from_sequence,
}
