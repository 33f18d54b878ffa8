"""RNN, GRU and LSTM in torch, with every attribute: clip, activations, sequence lengths, both directions and layouts.

onnx's reference implementation ignores ``clip``, ``activations``, ``input_forget`` and the sequence lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from normdeploy.graph.operators.call import Call, Implementation, Inputs, need, optional

Function = Callable[[Tensor], Tensor]
_Scaled = Callable[[Tensor, float, float], Tensor]

_FUNCTIONS: dict[str, tuple[_Scaled, float | None, float | None]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, _: F.elu(x, a), 1.0, None),
    "hardsigmoid": (lambda x, a, b: (a * x + b).clamp(0, 1), 0.2, 0.5),
    "leakyrelu": (lambda x, a, _: F.leaky_relu(x, a), 0.01, None),
    "relu": (lambda x, *_: x.relu(), None, None),
    "scaledtanh": (lambda x, a, b: a * torch.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, *_: x.sigmoid(), None, None),
    "softplus": (lambda x, *_: F.softplus(x), None, None),
    "softsign": (lambda x, *_: F.softsign(x), None, None),
    "tanh": (lambda x, *_: x.tanh(), None, None),
    "thresholdedrelu": (lambda x, a, _: torch.where(x > a, x, 0.0), 1.0, None),
}
"""An activation by its name in lower case, with alpha and beta where it has them."""

_NONE = 99
"""The index of no input."""

_LSTM = 3
"""Activations of an LSTM; the last, that of the cell state, gets it unclipped, as in onnxruntime."""


@dataclass(frozen=True)
class _Cell:
    """One direction's weights and functions.

    Args:
        w, r: input and recurrent weights. wb, rb: their biases. peep: the LSTM's peepholes, in the order i, o, f.
        functions: the activations, each behind the clip.
    """

    w: Tensor
    r: Tensor
    wb: Tensor
    rb: Tensor
    peep: Tensor | None
    functions: list[Function]


_Step = Callable[[Call, _Cell, Tensor, list[Tensor]], list[Tensor]]
"""Computes the next state from an input [batch, size] and the state, whose first tensor is what is put out."""


def _functions(call: Call, defaults: list[str], directions: int) -> list[Function]:
    """Return the activations of all directions in order; each takes the alpha and beta that it has from the lists."""
    names = [str(name).lower() for name in call.attr("activations") or defaults * directions]
    alphas, betas = iter(call.attr("activation_alpha") or ()), iter(call.attr("activation_beta") or ())
    clip = float(call.attr("clip", 0.0))
    made: list[Function] = []
    for place, name in enumerate(names):
        bounded = 0.0 if call.node.op_type == "LSTM" and place % _LSTM == _LSTM - 1 else clip
        function, alpha, beta = _FUNCTIONS[name]
        a = 0.0 if alpha is None else float(next(alphas, alpha))
        b = 0.0 if beta is None else float(next(betas, beta))

        def apply(x: Tensor, function: _Scaled = function, a: float = a, b: float = b, c: float = bounded) -> Tensor:
            return function(x if not c else x.clamp(-c, c), a, b)

        made.append(apply if call.gates is None else _then(apply, partial(call.gates, name)))
    return made


def _then(first: Function, second: Function) -> Function:
    return lambda x: second(first(x))


def _rnn_step(_: Call, cell: _Cell, x: Tensor, state: list[Tensor]) -> list[Tensor]:
    return [cell.functions[0](x @ cell.w.T + state[0] @ cell.r.T + cell.wb + cell.rb)]


def _gru_step(call: Call, cell: _Cell, x: Tensor, state: list[Tensor]) -> list[Tensor]:
    f, g = cell.functions
    (h,) = state
    xz, xr, xh = (x @ cell.w.T + cell.wb).chunk(3, -1)
    rz, rr, rh = cell.r.chunk(3)
    bz, br, bh = cell.rb.chunk(3)
    z, r = f(xz + h @ rz.T + bz), f(xr + h @ rr.T + br)
    inner = r * (h @ rh.T + bh) if call.attr("linear_before_reset", 0) else (r * h) @ rh.T + bh
    return [(1 - z) * g(xh + inner) + z * h]


def _lstm_step(call: Call, cell: _Cell, x: Tensor, state: list[Tensor], taken: Function | None = None) -> list[Tensor]:
    f, g, h = cell.functions
    hidden, c = state
    hidden = hidden if taken is None else taken(hidden)
    i, o, forget, new = (x @ cell.w.T + hidden @ cell.r.T + cell.wb + cell.rb).chunk(4, -1)
    pi, po, pf = (0.0, 0.0, 0.0) if cell.peep is None else cell.peep.chunk(3)
    i = f(i + pi * c)
    forget = 1 - i if call.attr("input_forget", 0) else f(forget + pf * c)
    c = forget * c + i * g(new)
    o = f(o + po * c)
    return [o * h(c), c]


def _run(
    call: Call,
    inputs: Inputs,
    step: _Step,
    gates: int,
    defaults: list[str],
    states: list[int],
    peepholes: int = _NONE,
) -> list[Tensor]:
    """Run an operator over time, in each direction.

    Args:
        step: the cell. gates: how many. defaults: its activations.
        states: indices of the inputs that hold the initial states. peepholes: that of the peepholes, if it has any.
    """
    x, w, r = (need(inputs, i) for i in range(3))
    bias, lengths, peep = optional(inputs, 3), optional(inputs, 4), optional(inputs, peepholes)
    batch_first, direction = bool(call.attr("layout", 0)), call.attr("direction", "forward")
    x = x.transpose(0, 1) if batch_first else x
    directions, hidden = r.shape[0], r.shape[-1]
    functions = _functions(call, defaults, directions)
    per = len(functions) // directions
    outputs: list[Tensor] = []
    lasts: list[list[Tensor]] = []
    for k in range(directions):
        b = x.new_zeros(2 * gates * hidden) if bias is None else bias[k]
        wb, rb = b[: gates * hidden], b[gates * hidden :]
        cell = _Cell(w[k], r[k], wb, rb, None if peep is None else peep[k], functions[k * per : (k + 1) * per])
        given = [optional(inputs, index) for index in states]
        state = [x.new_zeros(x.shape[1], hidden) if s is None else (s[:, k] if batch_first else s[k]) for s in given]
        backwards = direction == "reverse" or k == 1
        y, last = _directed(call, cell, step, x, state, lengths, backwards=backwards)
        outputs.append(y)
        lasts.append(last)
    stacked = torch.stack(outputs, 1)  # [time, directions, batch, hidden]
    ends = [torch.stack(parts, 1 if batch_first else 0) for parts in zip(*lasts, strict=True)]
    return [stacked.permute(2, 0, 1, 3) if batch_first else stacked, *ends]


def _directed(
    call: Call, cell: _Cell, step: _Step, x: Tensor, state: list[Tensor], lengths: Tensor | None, *, backwards: bool
) -> tuple[Tensor, list[Tensor]]:
    """Run one direction; behind a sequence's end the output is zero and the state stays.

    Of sizes alone (torch's device "meta") one step says all.
    """
    times = range(min(len(x), 1) if x.is_meta else len(x))
    out: dict[int, Tensor] = {}
    for t in reversed(times) if backwards else times:
        new = step(call, cell, x[t], state)
        if lengths is None:
            out[t], state = new[0], new
            continue
        going = (lengths > t).unsqueeze(-1)
        out[t] = torch.where(going, new[0], 0.0)
        state = [torch.where(going, n, s) for n, s in zip(new, state, strict=True)]
    if out and not x.is_meta:
        return torch.stack([out[t] for t in times]), state
    each = out[0] if out else state[0]
    return each.new_zeros(len(x), *each.shape), state


def lstm(call: Call, inputs: Inputs, taken: Function | None = None) -> list[Tensor]:
    """Return an LSTM's results.

    Args:
        taken: makes of the state what is multiplied by the recurrent weights, at each step; the state itself if None.
    """
    step = partial(_lstm_step, taken=taken)
    return _run(call, inputs, step, 4, ["Sigmoid", "Tanh", "Tanh"], [5, 6], 7)


RECURRENT: dict[str, Implementation] = {
    "GRU": lambda call, inputs: _run(call, inputs, _gru_step, 3, ["Sigmoid", "Tanh"], [5]),
    "LSTM": lstm,
    "RNN": lambda call, inputs: _run(call, inputs, _rnn_step, 1, ["Tanh"], [5]),
}
