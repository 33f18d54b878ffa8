r"""Cross-layer equalization: move scale between neighbouring layers so that one int8 step serves all channels.

For a linear layer, a positively homogeneous activation f (f(s x) = s f(x) for s > 0) and a second linear layer::

    W2 f(W1 x + b1) = (W2 S) f(S^-1 W1 x + S^-1 b1),    S = diag(s),  s_i = sqrt(r1_i / r2_i)

with r1_i the range of output channel i of W1 and r2_i that of input channel i of W2. Both ranges become
sqrt(r1_i r2_i). Folding a normalization widens r1 (channels of small variance get large weights), and per-tensor
activation scales then waste their steps on few channels; this takes it back, exactly in real numbers.

S is a gauge (:mod:`normdeploy.rewrite.gauge`): which channels are free to have a scale of their own, which have to
share one, and what lies between the layers is the engine's to say. Where several layers write a channel, or read it (a
residual stream), r is the largest of their ranges. A scale that all channels share is left alone: each tensor
has its own step anyhow.

Source: Nagel, van Baalen, Blankevoort, Welling, Data-Free Quantization Through Weight Equalization and Bias
Correction, 2019, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats, Ints
from normdeploy.graph.linear_view import Form, linear_of
from normdeploy.graph.weight import fixed_weight
from normdeploy.rewrite.gauge.equations.substitute import roots, values
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.operator_edit import Solution
from normdeploy.rewrite.gauge.regauge import regauge
from normdeploy.rewrite.gauge.ties import Ties
from normdeploy.rewrite.infer import infer_missing_types
from normdeploy.rewrite.rewrite_context import RewriteContext

_SWEEPS = 20
_ENOUGH = 1e-3


@dataclass
class _Layer:
    """A linear layer.

    Args:
        sizes: largest weight from each input channel (rows) to each output channel (columns).
        reads, writes: free unknown of each input channel's and output channel's scale; 0 for a scale that is fixed.
    """

    sizes: Floats
    reads: Ints
    writes: Ints

    def ranges(self, scales: Floats) -> Floats:
        """Return the sizes under a choice of scales."""
        found: Floats = self.sizes * scales[self.reads][:, None] / scales[self.writes]
        return found


def equalize(model: ir.Model) -> int:
    """Equalize ``model`` in place.

    Args:
        model: float32 weights with it; the computed function stays the same in real numbers.

    Returns:
        How many groups of channels were given scales: values between linear layers, or streams that several share.
    """
    infer_missing_types(model)
    groups = 0

    def choice(ties: Ties) -> Solution:
        nonlocal groups
        solution, groups = _chosen(ties)
        return solution

    return groups if regauge(RewriteContext(), model.graph, choice) else 0


def _chosen(ties: Ties) -> tuple[Solution, int]:
    layers = _layers(ties)
    scales, groups = np.ones(ties.scales.size), _groups(layers)
    for _ in range(_SWEEPS):
        moved = 0.0
        for group in groups:
            change = _balance(layers, group, scales)
            scales[group] *= change
            moved = max(moved, float(np.abs(np.log(change)).max(initial=0.0)))
        if moved < _ENOUGH:
            break
    found = values(ties.scales, scales)
    return Solution(ties, found, values(ties.shifts, np.zeros(ties.shifts.size))), len(groups)


def _layers(ties: Ties) -> list[_Layer]:
    root, power, _ = roots(ties.scales)
    plain = (root > 0) & (power == 1)  # a scale that is one unknown, no quotient or product of several

    def unknowns(gauge: Gauge | None, axis: int, count: int) -> Ints:
        if gauge is None:
            return np.zeros(count, np.int64)
        first = gauge.scale_of[tuple(slice(None) if at == axis % gauge.rank else 0 for at in range(gauge.rank))]
        return np.broadcast_to(np.where(plain[first], root[first], 0), (count,))

    found = []
    for node in ties.graph:
        linear = linear_of(node)
        weight = None if linear is None else fixed_weight(linear.value(linear.weight))
        if linear is None or weight is None or weight.quantized is not None or len(weight.shape) < 2:
            continue
        if linear.form is Form.RECURRENT or linear.activation:
            continue
        channels = linear.channels(weight.shape)
        assert channels.written is not None
        front, behind = ties.ports.get((node, -1)), ties.ports.get((node, -2))  # a product's, as its weight sees them
        if linear.form is Form.PRODUCT:
            reads, writes = unknowns(front, -1, channels.ins), unknowns(behind, -1, channels.outs)
        else:
            data = linear.value(linear.data)
            reads = unknowns(None if data is None else ties.of.get(data), 1, channels.ins)
            writes = unknowns(ties.of.get(node.outputs[0]), 1, channels.outs)
        sizes = np.zeros((channels.ins, channels.outs))
        array = np.abs(weight.array())
        np.maximum.at(sizes, (_wide(channels.read, array), _wide(channels.written, array)), array)
        found.append(_Layer(sizes, reads, writes))
    return found


def _wide(index: Ints, array: Floats) -> Ints:
    return np.broadcast_to(index, array.shape)


def _groups(layers: list[_Layer]) -> list[Ints]:
    """Return sets of unknowns that one layer writes for several channels, and that some layer reads."""
    read = np.unique(np.concatenate([layer.reads for layer in layers])) if layers else np.zeros(0, np.int64)
    found: dict[bytes, Ints] = {}
    for layer in layers:
        group = np.unique(layer.writes[layer.writes > 0])
        group = group[np.isin(group, read)]
        if len(group) > 1 or (len(group) == 1 and len(layer.writes) == 1):
            found[group.tobytes()] = group
    return list(found.values())


def _balance(layers: list[_Layer], group: Ints, scales: Floats) -> Floats:
    """Return the factors for the scales of a group that make written and read ranges equal."""
    written, read = (_log_range(layers, group, scales, reads=reads) for reads in (False, True))
    usable = np.isfinite(written) & np.isfinite(read)
    return np.exp(np.where(usable, 0.5 * (np.where(usable, written, 0.0) - np.where(usable, read, 0.0)), 0.0))


def _log_range(layers: list[_Layer], group: Ints, scales: Floats, *, reads: bool) -> Floats:
    """Return the logarithm of each unknown's largest range; infinite where all weights are zeros, or none is there."""
    largest = np.zeros(len(scales))
    for layer in layers:
        unknowns = layer.reads if reads else layer.writes
        if np.isin(unknowns, group).any():
            np.maximum.at(largest, unknowns, layer.ranges(scales).max(axis=1 if reads else 0, initial=0.0))
    with np.errstate(divide="ignore"):
        found: Floats = np.log(largest[group])
    return found
