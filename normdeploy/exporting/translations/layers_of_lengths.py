"""Recurrent layers on padded sequences of their own lengths, as operators that a trace keeps.

Behind the end of a sequence they return zeros, its last states are those at its end, and the way back begins there:
what torch computes of packed sequences, and ONNX's recurrent operators of ``sequence_lens``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import _VF, Tensor

_LIBRARY: Any = torch.library.Library("normdeploy", "FRAGMENT")  # type: ignore[no-untyped-call] # torch's, unannotated
_LAYER = "(Tensor padded, Tensor lengths, Tensor[] states, Tensor[] weights, bool biases, int layers, bool both) -> "
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Recurrent layers, by what torch calls their operators."""


def empty_results(data: Tensor, steps: Any, batch: Any, states: Sequence[Tensor], *, both: bool) -> tuple[Tensor, ...]:
    """Return empty results of a recurrent layer: its states steps x batch x ..., and each state at the end.

    Args:
        data: of their type. steps, batch: sizes, which may be symbols.
        states: before the first step, each layers directions x B x width; an LSTM's second is that of its cells.
        both: the layer runs both ways.
    """
    every = data.new_empty(steps, batch, states[0].shape[2] * (2 if both else 1))
    return every, *(data.new_empty(state.shape) for state in states)


def _shapes(padded: Tensor, lengths: Tensor, states: list[Tensor], *rest: Any) -> tuple[Tensor, ...]:  # noqa: ARG001
    return empty_results(padded, padded.shape[0], padded.shape[1], states, both=rest[-1])


def _run(kind: str) -> Callable[..., Any]:
    """Return what computes a layer: torch's own on packed sequences, longest first."""

    def run(
        padded: Tensor,
        lengths: Tensor,
        states: list[Tensor],
        weights: list[Tensor],
        biases: bool,
        layers: int,
        both: bool,
    ) -> tuple[Tensor, ...]:
        order = lengths.argsort(descending=True)
        back = order.argsort()
        data, sizes = _VF._pack_padded_sequence(padded.index_select(1, order), lengths[order].cpu(), False)
        begin = [state.index_select(1, order) for state in states]
        first = begin if kind == "lstm" else begin[0]
        every, *last = getattr(_VF, kind)(data, sizes, first, weights, biases, layers, 0.0, False, both)
        every, _ = _VF._pad_packed_sequence(every, sizes, False, 0.0, padded.shape[0])
        return tuple(result.index_select(1, back) for result in (every, *last))

    return run


for _kind in KINDS:
    _results = "(Tensor, Tensor, Tensor)" if _kind == "lstm" else "(Tensor, Tensor)"
    _LIBRARY.define(f"{_kind}_of_lengths{_LAYER}{_results}")
    _LIBRARY.impl(f"{_kind}_of_lengths", _run(_kind), "CompositeExplicitAutograd")
    torch.library.register_fake(f"normdeploy::{_kind}_of_lengths", _shapes, lib=_LIBRARY)
