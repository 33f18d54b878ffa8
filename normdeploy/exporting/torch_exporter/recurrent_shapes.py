"""While a model is traced, a recurrent layer says of its results what shapes they have, and computes nothing.

A trace runs each operator on tensors without numbers to learn the shapes behind it. torch 2.13 runs a recurrent layer
step by step there, or by a loop that its exporter puts in the layer's place and that keeps the number of steps of the
process's first trace; either holds the example's number of a dynamic one. Nothing of them reaches the graph, which
calls the layer by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch._decomp import decomposition_table
from torch.export import _patches

from normdeploy.exporting.translations.layers_of_lengths import empty_results

_KEYS = (
    torch._C.DispatchKey.CompositeImplicitAutograd,
    torch._C.DispatchKey.Autograd,
    torch._C.DispatchKey.Meta,
)


@contextmanager
def recurrent_layers_by_their_shapes() -> Iterator[None]:
    """Let LSTM, GRU and RNN layers that are called in this block on tensors without numbers make shapes alone."""
    layers = [getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")]
    with ExitStack() as kept:
        for loop in ("register_lstm_while_loop_decomposition", "register_gru_while_loop_decomposition"):
            if hasattr(_patches, loop):  # of torch 2.13, and not public
                kept.enter_context(mock.patch.object(_patches, loop, nullcontext))
        for layer in layers:
            runs = {key: run for key in _KEYS if (run := layer.py_kernels.get(key)) is not None}
            kept.enter_context(mock.patch.dict(layer.py_kernels, {key: _by_shapes(run) for key, run in runs.items()}))
            if layer in decomposition_table:
                shapes = _by_shapes(decomposition_table[layer])
                kept.enter_context(mock.patch.dict(decomposition_table, {layer: shapes}))
            layer._dispatch_cache.clear()  # what was found there before
            kept.callback(layer._dispatch_cache.clear)
        yield


def _by_shapes(run: Callable[..., Any]) -> Callable[..., Any]:
    def results(data: torch.Tensor, hidden: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
        if type(data) in (torch.Tensor, torch.nn.Parameter):  # it has numbers
            return run(data, hidden, *rest)  # type: ignore[no-any-return] # torch's, untyped
        *_, bidirectional, batch_first = rest
        states = [hidden] if isinstance(hidden, torch.Tensor) else hidden
        steps, batch = (data.shape[1], data.shape[0]) if batch_first else (data.shape[0], data.shape[1])
        every, *last = empty_results(data, steps, batch, states, both=bidirectional)
        return every.transpose(0, 1) if batch_first else every, *last

    return results
