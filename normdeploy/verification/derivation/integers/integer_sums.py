"""ConvInteger and MatMulInteger against the source's layer: its weights are the integers times a number per channel.

Source: y = W x + b with x = s (q - z). File: acc = sum (q - z) (u - v). If W = d (u - v), d of each output channel and
of either sign, then y = s d acc + b for every input; where borders are padded with zeros, both pad x = 0: q = z.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.verification.derivation.gauges import NOISE
from normdeploy.verification.derivation.integers.stepwise import Ints, Step, scaled
from normdeploy.verification.derivation.laws.linear_laws import Linear, linears
from normdeploy.verification.derivation.related.stored_rounding import Wrong
from normdeploy.verification.derivation.side.attributes import window
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.operands import inputs_of, kind

KINDS = ("ConvInteger", "MatMulInteger")
_FEW = 0.1
"""Share of other numbers up to which a weight is this one, and wrong."""


@dataclass(frozen=True)
class Sums:
    """The operator of the file.

    Args:
        node: it. data: the integers it reads. zero: what stands for 0 among them.
        weight: u - v, a row per output channel: (results, operands of a group, ...).
        groups: how many. form: all else that has to be the same as the layer's. bordered: zeros stand around.
        axis: of the result's channels, from the end.
    """

    node: ir.Node
    data: ir.Value
    zero: int
    weight: Ints
    groups: int
    form: object
    bordered: bool
    axis: int

    def range(self, low: int, high: int) -> tuple[Ints, Ints]:
        """Return the least and the largest sum of each channel, of integers from low to high."""
        rows = self.weight.reshape(len(self.weight), -1)
        products = np.stack([rows * (low - self.zero), rows * (high - self.zero)])
        least, most = products.min(0), products.max(0)
        if self.bordered:
            least, most = np.minimum(least, 0), np.maximum(most, 0)
        return least.sum(1), most.sum(1)


def sums_of(side: Side, node: ir.Node) -> Sums | None:
    """Describe an operator of the file; None where a weight or a zero point is no constant, or one per channel."""
    inputs = inputs_of(node)
    data, weight = inputs[0], side.constant(inputs[1])
    zeros = [side.constant(inputs[place]) if len(inputs) > place else np.zeros((), np.int64) for place in (2, 3)]
    if data is None or weight is None or any(zero is None or zero.size != 1 for zero in zeros):
        return None
    zero, offset = (int(array.reshape(())) for array in zeros if array is not None)
    whole = weight.astype(np.int64) - offset
    if kind(node) == "MatMulInteger":
        return Sums(node, data, zero, whole.T, 1, ("rows",), False, -1) if whole.ndim == 2 else None
    form = window(node, whole.shape[2:])
    if form is None or whole.ndim < 3:
        return None
    bordered = any(form.pads) or form.auto not in ("NOTSET", "VALID")
    return Sums(node, data, zero, whole, node.attributes.get_int("group", 1), form, bordered, 1 - whole.ndim)


@dataclass(frozen=True)
class Layer:
    """A layer of the source that an operator of the file sums for: value = steps(acc)."""

    value: ir.Value
    steps: tuple[Step, ...]
    wrong: Wrong | None = None


def layers(source: Side, sums: Sums, read: ir.Value, step: float, *, exact: bool) -> Iterator[Layer]:
    """Return the layers of the source that read a value and have the weights.

    Args:
        sums: of the file. read: the value of the source that is step (q - zero).
    """
    for usage in read.uses():
        node = usage.node
        if kind(node) not in ("Conv", "Gemm", "MatMul") or usage.idx != 0:
            continue
        layer = next((found for found in linears(source, node.outputs[0]) if found.node is node), None)
        if layer is None or not _same_form(sums, layer) or not np.isfinite(layer.bias).all():
            continue
        found = _units(layer.weight.astype(np.float64), sums.weight)
        if found is None:
            continue
        units, alike, wrong = found
        bias = inputs_of(node)[2] if len(inputs_of(node)) > 2 else None
        plain = bias is None or source.stored_in(bias) is not None
        plain &= node.attributes.get_float("beta", 1.0) == 1.0
        steps = (
            scaled(units, exact=alike),
            scaled(step, exact=exact),
            scaled(add=layer.bias, exact=plain),
        )
        yield Layer(node.outputs[0], steps, wrong)


def _same_form(sums: Sums, layer: Linear) -> bool:
    form = layer.form[1] if layer.form[0] == "Conv" else layer.form
    return form == sums.form and layer.groups == sums.groups and layer.weight.shape == sums.weight.shape


def _units(weight: Floats, whole: Ints) -> tuple[Floats, bool, Wrong | None] | None:
    """Return d of each row with weight = d whole, whether it is so without rounding, and a number that is another."""
    rows, integers = weight.reshape(len(weight), -1), whole.reshape(len(whole), -1)
    if not rows.size or not np.isfinite(rows).all():
        return None
    largest = np.abs(integers).argmax(1)[:, None]
    top = np.take_along_axis(integers, largest, 1)
    units = np.take_along_axis(rows, largest, 1) / np.where(top == 0, 1, top)
    short = units == units.astype(np.float32)  # its products with bytes are exact in float64
    exact = bool(short.all() and (rows == units * integers).all())
    if exact:
        return units[:, 0], True, None
    bad = np.abs(rows - units * integers) > NOISE * np.abs(rows).max(1, keepdims=True)
    if not bad.any():
        return units[:, 0], False, None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(integers == 0, np.nan, rows / integers)
    usual = np.nan_to_num(np.array([_usual(row) for row in ratios]))[:, None]
    bad = np.abs(rows - usual * integers) > NOISE * np.abs(rows).max(1, keepdims=True)
    if bad.mean() > _FEW:
        return None
    row, place = (int(part[0]) for part in np.nonzero(bad))
    want = rows[row, place] / usual[row, 0]
    text = (
        f"integer {int(integers[row, place])} of channel {row} stands for {want:.6g} steps ({bad.sum()} numbers differ)"
    )
    return usual[:, 0], False, Wrong(text)


def _usual(ratios: Floats) -> float:
    found = ratios[~np.isnan(ratios)]
    return float(np.median(found)) if found.size else 0.0
