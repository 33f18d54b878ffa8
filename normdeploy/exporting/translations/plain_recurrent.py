"""nn.RNN as ONNX's RNN, one operator a layer: torch's exporter writes each of the example's steps.

    h[t] = f(W x[t] + b + R h[t - 1] + c),  f = tanh or relu

https://onnx.ai/onnx/operators/onnx__RNN.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from normdeploy.exporting.translations.attention_translation import ints, op

aten = torch.ops.aten


def _translated(function: str) -> Callable[..., Any]:
    """Return the translation of a layer with a function of ONNX's name; a partial has no name, which torch asks for."""

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
    ) -> tuple[Any, Any]:
        """Translate aten.rnn_tanh.input and aten.rnn_relu.input.

        Args:
            input: T x B x features, B x T x features if batch_first.
            hx: the states before the first step, L D x B x width, layer by layer.
            params: of each layer and direction W, R, b and c; without biases W and R.

        Returns:
            The states of the last layer T x B x D width (B x T x D width if batch_first), and the last of each layer.
        """
        directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
        states, last = op.Transpose(input, perm=[1, 0, 2]) if batch_first else input, []
        for layer in range(num_layers):
            first = layer * directions
            ways = [params[at * each : (at + 1) * each] for at in range(first, first + directions)]
            weights = [op.Concat(*(op.Unsqueeze(way[at], ints(0)) for way in ways), axis=0) for at in range(2)]
            biases = [op.Unsqueeze(op.Concat(*way[2:], axis=0), ints(0)) for way in ways if has_biases]
            every, final = op.RNN(
                states,
                *weights,
                *([op.Concat(*biases, axis=0)] if biases else []),
                initial_h=op.Slice(hx, ints(first), ints(first + directions), ints(0)),
                activations=[function] * directions,
                direction="bidirectional" if bidirectional else "forward",
                hidden_size=hx.shape[2],
            )
            states = op.Reshape(op.Transpose(every, perm=[0, 2, 1, 3]), ints(0, 0, directions * hx.shape[2]))
            last.append(final)
        states = op.Transpose(states, perm=[1, 0, 2]) if batch_first else states
        return states, op.Concat(*last, axis=0)

    return rnn


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.rnn_tanh.input: _translated("Tanh"),
    aten.rnn_relu.input: _translated("Relu"),
}
