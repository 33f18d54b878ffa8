r"""Cross-layer equalization: move scale between neighbouring layers so that one int8 step serves all channels.

For a linear layer, a positively homogeneous activation f (f(s x) = s f(x) for s > 0) and a second linear layer::

    W2 f(W1 x + b1) = (W2 S) f(S^-1 W1 x + S^-1 b1),    S = diag(s),  s_i = sqrt(r1_i / r2_i)

with r1_i the range of output channel i of W1 and r2_i that of input channel i of W2. Both ranges become
sqrt(r1_i r2_i). Folding a normalization widens r1 (channels of small variance get large weights), and per-tensor
activation scales then waste their steps on few channels; this takes it back, exactly in real numbers.

Source: Nagel, van Baalen, Blankevoort, Welling, Data-Free Quantization Through Weight Equalization and Bias
Correction, 2019, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Floats = np.ndarray[Any, np.dtype[np.float64]]

_HOMOGENEOUS = frozenset(
    {"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Identity"}
)
_SWEEPS = 20
_ENOUGH = 1e-3


@dataclass(frozen=True)
class _Pair:
    first: onnx.NodeProto
    second: onnx.NodeProto


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


class _Weights:
    """Initializers in float64, written back with one rounding."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.uses: dict[str, int] = {}
        for node in graph.node:
            for name in node.input:
                self.uses[name] = self.uses.get(name, 0) + 1
        for value in (*graph.input, *graph.output):
            self.uses[value.name] = self.uses.get(value.name, 0) + 1
        self.values: dict[str, Floats] = {}

    def own(self, name: str) -> bool:
        """Whether ``name`` is a float32 initializer that only one node reads."""
        tensor = self._tensors.get(name)
        return tensor is not None and self.uses[name] == 1 and tensor.data_type == onnx.TensorProto.FLOAT

    def __getitem__(self, name: str) -> Floats:
        if name not in self.values:
            self.values[name] = numpy_helper.to_array(self._tensors[name]).astype(np.float64)
        return self.values[name]

    def write(self) -> None:
        for name, value in self.values.items():
            self._tensors[name].CopyFrom(numpy_helper.from_array(value.astype(np.float32), name))


def _is_linear(node: onnx.NodeProto, weights: _Weights) -> bool:
    if node.op_type == "Gemm":
        if _attribute(node, "alpha", 1.0) != 1 or _attribute(node, "beta", 1.0) != 1 or _attribute(node, "transA", 0):
            return False
    elif node.op_type != "Conv":
        return False
    return bool(node.input[1]) and all(weights.own(name) for name in node.input[1:] if name)


def _outputs_first(node: onnx.NodeProto, weight: Floats) -> Floats:
    """Return a view whose first axis counts output channels."""
    return weight.T if node.op_type == "Gemm" and not _attribute(node, "transB", 0) else weight


def _inputs_first(node: onnx.NodeProto, weight: Floats) -> Floats:
    """Return a view or copy-free arrangement [input channel, ...] of the weight; grouped convolutions by group."""
    if node.op_type == "Gemm":
        return _outputs_first(node, weight).T
    groups = _attribute(node, "group", 1)
    outputs, per_group = weight.shape[:2]
    # [groups, outputs per group, inputs per group, ...] -> [groups, inputs per group, outputs per group, ...]
    split = weight.reshape(groups, outputs // groups, per_group, *weight.shape[2:])
    return np.moveaxis(split, 2, 1)


def _input_ranges(node: onnx.NodeProto, weight: Floats) -> Floats:
    arranged = _inputs_first(node, weight)
    if node.op_type == "Gemm":
        return np.asarray(np.abs(arranged).max(axis=1))
    return np.asarray(np.abs(arranged).max(axis=tuple(range(2, arranged.ndim))).reshape(-1))


def _scale_inputs(node: onnx.NodeProto, weight: Floats, scale: Floats) -> Floats:
    arranged = _inputs_first(node, weight)
    if node.op_type == "Gemm":
        scaled = (arranged * scale[:, None]).T
        return scaled.T if not _attribute(node, "transB", 0) else scaled
    shape = (arranged.shape[0], arranged.shape[1]) + (1,) * (arranged.ndim - 2)
    return np.ascontiguousarray(np.moveaxis(arranged * scale.reshape(shape), 1, 2).reshape(weight.shape))


def _scale_outputs(node: onnx.NodeProto, weight: Floats, scale: Floats) -> Floats:
    view = _outputs_first(node, weight)
    scaled = view * scale.reshape((-1,) + (1,) * (view.ndim - 1))
    return scaled.T if node.op_type == "Gemm" and not _attribute(node, "transB", 0) else scaled


def _bias_ok(node: onnx.NodeProto, weights: _Weights) -> bool:
    """Whether the bias is absent or one number per output channel."""
    if len(node.input) < 3 or not node.input[2]:
        return True
    channels = _outputs_first(node, weights[node.input[1]]).shape[0]
    return bool(weights[node.input[2]].shape == (channels,))


def _pairs(graph: onnx.GraphProto, weights: _Weights) -> list[_Pair]:
    """Find two linear layers with nothing but homogeneous operators between them, each read once."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    pairs = []
    for node in graph.node:
        if not _is_linear(node, weights) or not _bias_ok(node, weights):
            continue
        channels = _outputs_first(node, weights[node.input[1]]).shape[0]
        current, pooled = node, False
        while True:
            name = current.output[0]
            if weights.uses.get(name, 0) != 1 or len(readers.get(name, [])) != 1:
                break
            following = readers[name][0]
            # a Flatten keeps one value per channel only after global pooling
            if following.op_type in _HOMOGENEOUS or (following.op_type == "Flatten" and pooled):
                pooled |= following.op_type.startswith("Global")
                current = following
                continue
            if (
                following.input[0] == name
                and _is_linear(following, weights)
                and len(_input_ranges(following, weights[following.input[1]])) == channels
            ):
                pairs.append(_Pair(node, following))
            break
    return pairs


def equalize(model: onnx.ModelProto) -> int:
    """Equalize ``model`` in place.

    Args:
        model: float32 weights inside the proto; the computed function stays the same in real numbers.

    Returns:
        How many pairs of layers were equalized.
    """
    weights = _Weights(model.graph)
    pairs = _pairs(model.graph, weights)
    for _ in range(_SWEEPS):
        moved = 0.0
        for pair in pairs:
            name1, name2 = pair.first.input[1], pair.second.input[1]
            first = _outputs_first(pair.first, weights[name1])
            range1 = np.abs(first).reshape(first.shape[0], -1).max(axis=1)
            range2 = _input_ranges(pair.second, weights[name2])
            usable = (range1 > 0) & (range2 > 0)
            scale = np.where(usable, np.sqrt(range1 / np.where(range2 > 0, range2, 1.0)), 1.0)
            scale = np.where(scale > 0, scale, 1.0)
            moved = max(moved, float(np.abs(np.log(scale)).max(initial=0.0)))
            weights.values[name1] = _scale_outputs(pair.first, weights[name1], 1 / scale)
            weights.values[name2] = _scale_inputs(pair.second, weights[name2], scale)
            if len(pair.first.input) > 2 and pair.first.input[2]:
                weights.values[pair.first.input[2]] = weights[pair.first.input[2]] / scale
        if moved < _ENOUGH:
            break
    if pairs:
        weights.write()
    return len(pairs)
