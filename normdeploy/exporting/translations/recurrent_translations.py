"""Recurrent layers as one ONNX operator a layer: nn.RNN, of which torch's exporter writes each step, and LSTM, GRU and
RNN on sequences of their own lengths.

    h[t] = f(W x[t] + b + R h[t - 1] + c),  f = tanh or relu

https://onnx.ai/onnx/operators/onnx__RNN.html, and LSTM and GRU there. ONNX has another order of gates than torch: an
LSTM's are input, output, forget, cell; a GRU's update, reset, new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch

from normdeploy.exporting.translations.attention_translation import ints, op
from normdeploy.exporting.translations.layers_of_lengths import KINDS

aten = torch.ops.aten


@dataclass(frozen=True)
class _Kind:
    """A recurrent operator. Args: name: ONNX's. gates: torch's, in ONNX's order. attributes: of it."""

    name: str
    gates: tuple[int, ...] = (0,)
    function: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


_OF = {
    "lstm": _Kind("LSTM", (0, 3, 1, 2)),
    "gru": _Kind("GRU", (1, 0, 2), attributes={"linear_before_reset": 1}),
    "rnn_tanh": _Kind("RNN", function="Tanh"),
    "rnn_relu": _Kind("RNN", function="Relu"),
}


def _layers(
    kind: _Kind,
    data: Any,
    states: Sequence[Any],
    params: Sequence[Any],
    lengths: Any,
    *,
    biases: bool,
    count: int,
    both: bool,
) -> tuple[Any, ...]:
    """Write recurrent layers one behind the other.

    Args:
        data: T x B x features. states: before the first step, each L D x B x width, layer by layer.
        params: of each layer and direction W, R, b and c; without biases W and R.
        lengths: of the B sequences, int32; None where all are T steps long.

    Returns:
        The states of the last layer T x B x D width, and each state at the end of each layer.
    """
    directions, each, width = 2 if both else 1, 4 if biases else 2, states[0].shape[2]
    last: list[list[Any]] = [[] for _ in states]
    for layer in range(count):
        first = layer * directions
        ways = [
            [_gates(kind, one) for one in params[at * each : (at + 1) * each]]
            for at in range(first, first + directions)
        ]
        weights = [op.Concat(*(op.Unsqueeze(way[at], ints(0)) for way in ways), axis=0) for at in range(2)]
        added = [op.Unsqueeze(op.Concat(*way[2:], axis=0), ints(0)) for way in ways if biases]
        begin = [op.Slice(state, ints(first), ints(first + directions), ints(0)) for state in states]
        functions = {"activations": [kind.function] * directions} if kind.function else {}
        every, *final = getattr(op, kind.name)(
            data,
            *weights,
            op.Concat(*added, axis=0) if biases else None,
            lengths,
            *begin,
            direction="bidirectional" if both else "forward",
            hidden_size=width,
            **functions,
            **kind.attributes,
        )
        data = op.Reshape(op.Transpose(every, perm=[0, 2, 1, 3]), ints(0, 0, directions * width))
        for ends, end in zip(last, final, strict=False):  # an LSTM's cells are the third result, and a GRU has none
            ends.append(end)
    return data, *(op.Concat(*ends, axis=0) for ends in last)


def _gates(kind: _Kind, weight: Any) -> Any:
    """Return a weight or bias with its gates in ONNX's order."""
    if len(kind.gates) == 1:
        return weight
    parts = op.Split(weight, num_outputs=len(kind.gates), axis=0)
    return op.Concat(*(parts[at] for at in kind.gates), axis=0)


def _plain(kind: _Kind) -> Callable[..., Any]:
    """Return the translation of nn.RNN's operator of a function."""

    def rnn(
        input: Any,  # noqa: A002 - torch's name: the exporter passes arguments by name
        hx: Any,
        params: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,  # noqa: ARG001 - of training
        train: bool,  # noqa: ARG001 - it is not
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Any, ...]:
        """Translate aten.rnn_tanh.input and aten.rnn_relu.input; data and results are B x T x ... if batch_first."""
        data = op.Transpose(input, perm=[1, 0, 2]) if batch_first else input
        every, *last = _layers(
            kind, data, [hx], params, None, biases=has_biases, count=num_layers, both=bidirectional
        )  # fmt: skip
        return op.Transpose(every, perm=[1, 0, 2]) if batch_first else every, *last

    return rnn


def _of_lengths(kind: _Kind) -> Callable[..., Any]:
    """Return the translation of a layer on sequences of their own lengths."""

    def layer(
        padded: Any, lengths: Any, states: Sequence[Any], weights: Sequence[Any], biases: bool, layers: int, both: bool
    ) -> tuple[Any, ...]:
        """Translate the operators of `normdeploy.exporting.translations.layers_of_lengths`."""
        narrow = op.Cast(lengths, to=ir.DataType.INT32)
        return _layers(kind, padded, states, weights, narrow, biases=biases, count=layers, both=both)

    return layer


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.rnn_tanh.input: _plain(_OF["rnn_tanh"]),
    aten.rnn_relu.input: _plain(_OF["rnn_relu"]),
    **{getattr(torch.ops.normdeploy, f"{kind}_of_lengths").default: _of_lengths(_OF[kind]) for kind in KINDS},
}
