"""While a model is traced, a packed sequence is a padded one beside its lengths.

``pack_padded_sequence`` writes what varies from run to run into the shapes of its result, which no trace can follow.
ONNX's recurrent operators take a padded sequence and its lengths instead, and compute the same: behind the end of a
sequence zeros, its last states at its end, and the way back from there on. Sequences need not be sorted for that.

What is packed is known by its class alone. A model that looks into it (``packed.data``) is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FunctionType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from normdeploy.exporting.translations.delegated import NoTranslationError, require_no_projection


class Padded(PackedSequence):
    """A padded sequence in the place of a packed one.

    Args:
        padded: T x B x features. lengths: of the B sequences.
        ended: behind the end of each sequence are zeros.
    """

    padded: Tensor
    lengths: Tensor
    ended: bool

    def __new__(cls, padded: Tensor, lengths: Tensor, *, ended: bool) -> Padded:
        """Make one; a packed sequence is a tuple, and this one an empty one."""
        found: Padded = tuple.__new__(cls, (None, None, None, None))
        found.padded, found.lengths, found.ended = padded, lengths, ended
        return found

    def _is_looked_into(self) -> Any:
        raise NoTranslationError(
            "what is inside of a packed sequence (data, batch_sizes, its order) has no ONNX form: compute on what "
            "pad_packed_sequence returns"
        )

    data = batch_sizes = sorted_indices = unsorted_indices = property(_is_looked_into)


@contextmanager
def packed_sequences_padded() -> Iterator[None]:
    """Let packing and unpacking, and recurrent layers between them, be what ONNX has a form for, in this block."""
    with ExitStack() as stack:
        stack.enter_context(_run_instead(rnn.pack_padded_sequence, _pack_call, _pack))
        stack.enter_context(_run_instead(rnn.pad_packed_sequence, _pad_call, _pad))
        for layer in (nn.LSTM, nn.GRU, nn.RNN):
            stack.enter_context(mock.patch.object(layer, "forward", _of_padded(layer.forward)))
        yield


@contextmanager
def _run_instead(function: Any, call: Any, instead: Callable[..., Any]) -> Iterator[None]:
    """Let a function of torch run another one, under whatever name a module has imported it."""
    assert isinstance(function, FunctionType)
    own = function.__code__
    with mock.patch.dict(function.__globals__, {f"_normdeploy{call.__name__}": instead}):
        function.__code__ = call.__code__
        try:
            yield
        finally:
            function.__code__ = own


def _pack_call(input, lengths, batch_first=False, enforce_sorted=True):  # type: ignore[no-untyped-def] # noqa: A002, ARG001
    return _normdeploy_pack_call(input, lengths, batch_first)  # type: ignore[name-defined] # noqa: F821 - put there above


def _pad_call(sequence, batch_first=False, padding_value=0.0, total_length=None):  # type: ignore[no-untyped-def]
    return _normdeploy_pad_call(sequence, batch_first, padding_value, total_length)  # type: ignore[name-defined] # noqa: F821


def _pack(data: Tensor, lengths: Any, batch_first: bool) -> Padded:
    lengths = torch.as_tensor(lengths).to(torch.int64)
    return Padded(data.transpose(0, 1) if batch_first else data, lengths, ended=False)


def _pad(packed: Any, batch_first: bool, padding_value: float, total_length: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(packed, Padded):
        raise NoTranslationError(
            "a packed sequence that pack_padded_sequence did not make has no ONNX form: begin with a padded one and "
            "its lengths"
        )
    padded, lengths = packed.padded, packed.lengths
    steps = padded.shape[0]
    if padding_value != 0 or not packed.ended:
        within = torch.arange(steps, device=padded.device)[:, None] < lengths[None, :]
        within = within.reshape(*within.shape, *[1] * (padded.ndim - 2))
        padded = torch.where(within, padded, padding_value)
    if total_length is None:
        longest = lengths.max().item()
        torch._check(longest >= 0)  # type: ignore[no-untyped-call] # torch leaves it unannotated
        torch._check(longest <= steps)  # type: ignore[no-untyped-call] # likewise
        padded = padded[:longest]
    elif not statically_known_true(total_length == steps):  # asked otherwise, the answer would fix the steps
        padded = nn.functional.pad(padded, [0, 0] * (padded.ndim - 1) + [0, total_length - steps], value=padding_value)
    return (padded.transpose(0, 1) if batch_first else padded), lengths


def _of_padded(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(self: Any, input: Any, hx: Any = None) -> Any:  # noqa: A002 - torch's name
        if not isinstance(input, Padded):
            return forward(self, input, hx)
        require_no_projection(self.proj_size)
        two = isinstance(self, nn.LSTM)
        if hx is None:
            rows = self.num_layers * (2 if self.bidirectional else 1)
            zeros = input.padded.new_zeros(rows, input.padded.shape[1], self.hidden_size)
            hx = (zeros, zeros) if two else zeros
        operator = getattr(torch.ops.normdeploy, f"{self.mode.lower()}_of_lengths")
        every, *last = operator(
            input.padded, input.lengths, list(hx) if two else [hx], self._flat_weights, self.bias, self.num_layers,
            self.bidirectional,
        )  # fmt: skip
        return Padded(every, input.lengths, ended=True), tuple(last) if two else last[0]

    return run
