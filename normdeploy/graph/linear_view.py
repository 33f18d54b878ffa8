"""What linear operators are made of: one description for every room.

Each computes, for channel o of its result, with sums over the channels c of its data and, in convolutions, over taps::

    y[.., o, ..] = alpha sum W[.., c, .., o, ..] x[.., c, ..] + beta b[o]

Which input is which, which axes of the weight count c and o, and how groups cut them, follows from the operator alone
(:data:`_FORMS`, one row each). Conv: weight [O, I/g, k...]; input channel of column j in the group of row o is
group(o) I/g + j. ConvTranspose: weight [I, O/g, k...]; output channel of column j in the group of row i is
group(i) O/g + j, so that the second axis alone does not count it. LSTM, GRU, RNN: weight [directions, gates, I], and
nothing behind them is linear in it. Products: any operand may be the weight, and is where it alone is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Ints
from normdeploy.graph.operator_inputs import optional
from normdeploy.graph.traits import MICROSOFT, kind_of
from normdeploy.graph.weight import fixed_weight


class Form(Enum):
    """How a linear operator's weight meets its data."""

    CONVOLUTION = auto()
    TRANSPOSED = auto()
    """A transposed convolution."""
    PRODUCT = auto()
    """A matrix product, of stacks of matrices too."""
    RECURRENT = auto()
    """Its weight meets the input sequence; what follows is not linear."""


@dataclass(frozen=True)
class Steps:
    """Where an operator on integers reads what they stand for: scale (q - zero).

    Args:
        scale, zero: places among its inputs; None where it takes none (a scale of 1, a zero of 0).
    """

    scale: int | None = None
    zero: int | None = None


@dataclass(frozen=True)
class Channels:
    """Which channels each number of a weight connects.

    Args:
        read: input channel of each number, broadcast against the weight.
        written: output channel of each, likewise; None where nothing behind the operator is linear in it.
        ins, outs: how many there are.
        taps: the weight's axes that are summed over for one output channel.
        chosen: the weight's axis that gets steps where it has one step for all.
    """

    read: Ints
    written: Ints | None
    ins: int
    outs: int
    taps: tuple[int, ...]
    chosen: int


@dataclass(frozen=True)
class Linear:
    """A linear operator.

    Args:
        node: the operator.
        form: how the weight meets the data.
        data, weight: places among the inputs.
        bias: place of the bias, whether there is one or not; None where the operator takes none.
        addend: place of a further summand of the result's shape; None where the operator takes none.
        turned_data, turned_weight, turned_result: products: whether the last two axes are to be exchanged to read
            y[r, n] = alpha sum_k x[r, k] W[k, n] + beta b[r, n].
        data_steps, weight_steps, result_steps: what integers stand for; None for floats.
    """

    node: ir.Node
    form: Form
    data: int = 0
    weight: int = 1
    bias: int | None = 2
    addend: int | None = None
    turned_data: bool = False
    turned_weight: bool = False
    turned_result: bool = False
    data_steps: Steps | None = None
    weight_steps: Steps | None = None
    result_steps: Steps | None = None

    @property
    def groups(self) -> int:
        """Into how many the channels are cut."""
        return self.node.attributes.get_int("group", 1)

    @property
    def alpha(self) -> float:
        """Factor of the product."""
        return 1.0 if self.form is Form.RECURRENT else self.node.attributes.get_float("alpha", 1.0)

    @property
    def beta(self) -> float:
        """Factor of the bias."""
        return 1.0 if self.form is Form.RECURRENT else self.node.attributes.get_float("beta", 1.0)

    @property
    def activation(self) -> str:
        """Name of the function that the operator applies to its result; "" for none."""
        return self.node.attributes.get_string("activation", "")

    def value(self, place: int | None) -> ir.Value | None:
        """Return an input by its place; None where it is absent."""
        return None if place is None else optional(self.node, place)

    def input_axis(self, rank: int) -> int:
        """Return the axis of a weight of ``rank`` that counts input channels (of one group)."""
        if self.form is Form.PRODUCT:
            return rank - 1 if self.turned_weight or rank == 1 else rank - 2
        return {Form.CONVOLUTION: 1, Form.TRANSPOSED: 0, Form.RECURRENT: 2}[self.form]

    def output_axis(self, rank: int) -> int | None:
        """Return the axis of a weight of ``rank`` that counts output channels (of one group, in TRANSPOSED)."""
        if self.form is Form.PRODUCT:
            return None if rank == 1 else rank - 2 if self.turned_weight else rank - 1
        return {Form.CONVOLUTION: 0, Form.TRANSPOSED: 1, Form.RECURRENT: None}[self.form]

    def data_axis(self, rank: int) -> int:
        """Return the axis of data of ``rank`` that counts its channels."""
        if self.form is Form.PRODUCT:
            return rank - 2 if self.turned_data and rank > 1 else rank - 1
        return 2 if self.form is Form.RECURRENT else 1

    def result_axis(self, rank: int) -> int | None:
        """Return the axis of a result of ``rank`` that counts its channels; None where they are not the weight's."""
        if self.form is Form.PRODUCT:
            return rank - 2 if self.turned_result else rank - 1
        return None if self.form is Form.RECURRENT else 1

    def channels(self, shape: tuple[int, ...]) -> Channels:
        """Return what a weight of ``shape`` connects.

        Raises:
            ValueError: a product with a vector has no output channels.
        """
        if self.form is Form.RECURRENT:
            return Channels(np.arange(shape[2]).reshape(1, 1, -1), None, shape[2], 0, (2,), 1)
        if self.form is Form.PRODUCT:
            k, n = self.input_axis(len(shape)), self.output_axis(len(shape))
            if n is None:
                raise ValueError(f"{self.node.op_type} {self.node.name!r} has a vector for a weight; expected a matrix")
            return Channels(_along(shape, k), _along(shape, n), shape[k], shape[n], (k,), n)
        first, second, ones = np.arange(shape[0]), np.arange(shape[1]), (1,) * (len(shape) - 2)
        group = np.zeros(1, np.int64) if self.groups == 1 else first // max(shape[0] // self.groups, 1)
        crossed = (group[:, None] * shape[1] + second).reshape(len(group), shape[1], *ones)
        straight = first.reshape(-1, 1, *ones)
        if self.form is Form.CONVOLUTION:
            return Channels(crossed, straight, shape[1] * self.groups, shape[0], tuple(range(1, len(shape))), 0)
        return Channels(straight, crossed, shape[0], shape[1] * self.groups, (0, *range(2, len(shape))), 1)

    def terms(self, shape: tuple[int, ...]) -> int:
        """Return how many products are added up for one element of the result, with a weight of ``shape``.

        At borders, and between the strides of a transposed convolution, they are fewer. A recurrent operator adds the
        products of its state, taken for as many as those of its input.
        """
        if self.form is Form.CONVOLUTION:
            return math.prod(shape[1:])
        if self.form is Form.TRANSPOSED:
            return shape[0] // self.groups * math.prod(shape[2:])
        return shape[self.input_axis(len(shape))] * (2 if self.form is Form.RECURRENT else 1)


def _along(shape: tuple[int, ...], axis: int) -> Ints:
    return np.arange(shape[axis]).reshape([-1 if at == axis else 1 for at in range(len(shape))])


@dataclass(frozen=True)
class _Row:
    """An operator of :data:`_FORMS`: the fields of :class:`Linear` that do not depend on the node."""

    form: Form
    weight: int = 1
    bias: int | None = 2
    addend: int | None = None
    either: bool = False
    """Any of the two operands may be the weight."""
    data_steps: Steps | None = None
    weight_steps: Steps | None = None
    result_steps: Steps | None = None


_FORMS: dict[tuple[str, str], _Row] = {
    ("", "Conv"): _Row(Form.CONVOLUTION),
    ("", "ConvTranspose"): _Row(Form.TRANSPOSED),
    ("", "DeformConv"): _Row(Form.CONVOLUTION, bias=3),
    ("", "MatMul"): _Row(Form.PRODUCT, bias=None, either=True),
    ("", "Gemm"): _Row(Form.PRODUCT, either=True),
    ("", "LSTM"): _Row(Form.RECURRENT, bias=3),
    ("", "GRU"): _Row(Form.RECURRENT, bias=3),
    ("", "RNN"): _Row(Form.RECURRENT, bias=3),
    ("", "ConvInteger"): _Row(Form.CONVOLUTION, bias=None, data_steps=Steps(None, 2), weight_steps=Steps(None, 3)),
    ("", "MatMulInteger"): _Row(Form.PRODUCT, bias=None, data_steps=Steps(None, 2), weight_steps=Steps(None, 3)),
    ("", "QLinearConv"): _Row(
        Form.CONVOLUTION, 3, 8, data_steps=Steps(1, 2), weight_steps=Steps(4, 5), result_steps=Steps(6, 7)
    ),
    ("", "QLinearMatMul"): _Row(
        Form.PRODUCT, 3, None, data_steps=Steps(1, 2), weight_steps=Steps(4, 5), result_steps=Steps(6, 7)
    ),
    (MICROSOFT, "FusedConv"): _Row(Form.CONVOLUTION, addend=3),
    (MICROSOFT, "FusedGemm"): _Row(Form.PRODUCT, either=True),
    (MICROSOFT, "FusedMatMul"): _Row(Form.PRODUCT, bias=None, either=True),
    (MICROSOFT, "QGemm"): _Row(
        Form.PRODUCT, 3, 6, data_steps=Steps(1, 2), weight_steps=Steps(4, 5), result_steps=Steps(7, 8)
    ),
    (MICROSOFT, "DynamicQuantizeMatMul"): _Row(Form.PRODUCT, bias=4, weight_steps=Steps(2, 3)),
    (MICROSOFT, "MatMulIntegerToFloat"): _Row(Form.PRODUCT, bias=6, data_steps=Steps(2, 4), weight_steps=Steps(3, 5)),
}

LINEAR = frozenset(_FORMS)
"""The linear operators, by domain and name."""


def layer_of(node: ir.Node) -> Linear | None:
    """Describe a linear layer, an operator of ONNX's own on floats that adds a bias; None for any other.

    A recurrent operator is none: what lies behind its bias is not linear.
    """
    linear = None if node.domain else linear_of(node)
    if linear is None or linear.bias is None or linear.form is Form.RECURRENT or linear.data_steps is not None:
        return None
    return linear


def linear_of(node: ir.Node) -> Linear | None:
    """Describe a linear operator; None for any other.

    The weight of a product of two operands is the one that is known before run time (a constant, or integers with
    steps), the second where both are or none is.
    """
    row = _FORMS.get(kind_of(node))
    if row is None or len(node.inputs) <= row.weight:
        return None
    steps = row.data_steps, row.weight_steps, row.result_steps
    if row.form is not Form.PRODUCT:
        return Linear(node, row.form, 0, row.weight, row.bias, row.addend, False, False, False, *steps)
    turned, weight_turned = (bool(node.attributes.get_int(name, 0)) for name in ("transA", "transB"))
    first = row.either and fixed_weight(node.inputs[0]) is not None and fixed_weight(node.inputs[1]) is None
    if not first:
        return Linear(node, row.form, 0, row.weight, row.bias, row.addend, turned, weight_turned, False, *steps)
    return Linear(node, row.form, 1, 0, row.bias, row.addend, not weight_turned, not turned, True, *steps)
