r"""Statistics of linear layers, brought back behind quantized weights.

Rounding weights and activations moves the mean of each channel that a layer writes, and widens or narrows it; what
stands behind was trained for the statistics of the float network. Per layer, in the order of the graph, with everything
in front of it corrected already::

    y'  =  r (y - mean_q) + mean_f,      r = 1 (bias correction)   or   deviation_f / deviation_q (statistics)

mean_f is the channel's mean in the float network over the calibration rows, mean_q in the quantized one. That is what
re-estimating the statistics of a BatchNorm under quantized weights does, for one that was folded: the bias takes the
means, and r goes into the channel's step, so that the integers stay.

Source: Nagel, van Baalen, Blankevoort, Welling, Data-Free Quantization Through Weight Equalization and Bias
Correction, 2019, section 4.2 and appendix D; Sun et al., Hybrid 8-bit training, 2019, section 3.2 (statistics).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.graph import Evaluator, constant64
from normdeploy.graph.edit import put_constant
from normdeploy.graph.linear_view import Linear, layer_of
from normdeploy.graph.traits import is_standard

Correction = Literal["", "means", "statistics"]
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class _Moments:
    """Per channel of a layer's result, over rows and places: mean and deviation; float64."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, y: Tensor) -> _Moments:
        axes = [axis for axis in range(y.dim()) if axis != 1]
        y = y.double()
        return cls(y.mean(axes), y.std(axes, correction=0))


Moments = Mapping[str, _Moments]
"""By the layer's name."""


def moments_of(model: ir.Model, rows: Mapping[str, Array]) -> Moments:
    """Return the statistics of every layer of a float network.

    Args:
        model: nodes named. rows: what is run, in one call.
    """
    found: dict[str, _Moments] = {}

    def hook(node: ir.Node, results: list[Tensor]) -> None:
        if layer_of(node) is not None:
            found[str(node.name)] = _Moments.of(results[0])

    with torch.no_grad():
        Evaluator(model, dtype=torch.float32).run(dict(rows), hook=hook)
    return found


def restore_moments(model: ir.Model, wanted: Moments, rows: Mapping[str, Array], kind: Correction) -> int:
    """Give every quantized layer the statistics it had in the float network, in place.

    Args:
        model: QuantizeLinear and DequantizeLinear around layers of the float network's names.
        wanted: the float network's.
        rows: as they were taken on.
        kind: "means" alone, or "statistics".

    Returns:
        How many layers were corrected.
    """
    made: list[tuple[Linear, ir.Node, Tensor, Tensor, Tensor]] = []

    def hook(node: ir.Node, results: list[Tensor]) -> list[Tensor] | None:
        target, layer = wanted.get(str(node.name)), layer_of(node)
        if target is None or layer is None or layer.turned_result or not layer.alpha == layer.beta == 1:
            return None
        steps = _steps(layer.value(layer.weight))
        if steps is None:
            return None
        now, (y,) = _Moments.of(results[0]), results
        ratio = torch.ones_like(now.mean)
        channels = now.mean.numel()
        if kind == "statistics" and _own_step_per_channel(steps, channels):
            usable = (now.deviation > 0) & (target.deviation > 0)
            ratio = torch.where(usable, target.deviation / now.deviation, ratio)
        made.append((layer, steps, ratio, now.mean, target.mean))
        shape = [-1 if axis == 1 else 1 for axis in range(y.dim())]
        moved = ratio.reshape(shape) * (y - now.mean.reshape(shape)) + target.mean.reshape(shape)
        return [moved.to(y.dtype)]

    with torch.no_grad():
        Evaluator(model, dtype=torch.float32).run(dict(rows), hook=hook)
    for layer, steps, ratio, before, after in made:
        _write(layer, steps, ratio.numpy(), before.numpy(), after.numpy())
    return len(made)


def _steps(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear of stored integers that computes a value."""
    node = None if value is None else value.producer()
    if node is None or not is_standard(node, "DequantizeLinear") or constant64(node.inputs[0]) is None:
        return None
    return node if constant64(node.inputs[1]) is not None else None


def _own_step_per_channel(steps: ir.Node, channels: int) -> bool:
    scale = steps.inputs[1]
    alone = scale is not None and len(scale.uses()) == 1 and len(steps.outputs[0].uses()) == 1
    found = constant64(scale)
    return alone and found is not None and found.shape == (channels,)


def _write(layer: Linear, steps: ir.Node, ratio: Array, before: Array, after: Array) -> None:
    """Write one layer's steps and bias."""
    node = layer.node
    assert isinstance(node.graph, ir.Graph)
    assert layer.bias is not None
    if (ratio != 1).any():
        _set(steps.inputs[1], constant64(steps.inputs[1]) * ratio)
    given = layer.value(layer.bias)
    stored = _steps(given)
    if stored is not None:
        integers, scale = constant64(stored.inputs[0]), constant64(stored.inputs[1])
        assert integers is not None
        assert scale is not None
        bias = ratio * (integers * scale - before) + after
        alone = all(value is not None and len(value.uses()) == 1 for value in (*stored.inputs[:2], stored.outputs[0]))
        if alone and scale.size in (1, ratio.size):
            step = scale * ratio if scale.size == ratio.size else scale
            whole = np.clip(np.rint(bias / step), _INT32.min, _INT32.max)
            if scale.size == ratio.size:
                _set(stored.inputs[1], step)
            _set(stored.inputs[0], whole)
            return
    else:
        old = constant64(given)
        bias = ratio * ((0.0 if old is None else old) - before) + after
    value = put_constant(node.graph, bias, f"{node.name}_corrected_bias", ir.DataType.FLOAT)
    node.resize_inputs(max(len(node.inputs), layer.bias + 1))
    node.replace_input_with(layer.bias, value)


def _set(value: ir.Value | None, array: Array) -> None:
    """Store other numbers of the same type and shape in a constant."""
    assert value is not None
    assert value.const_value is not None
    dtype = value.const_value.dtype
    value.const_value = ir.tensor(
        array.reshape(value.const_value.shape.numpy()).astype(dtype.numpy()), dtype=dtype, name=value.name
    )
