"""int8 variants of a model: onnxruntime's static quantization, calibrated once, written for any choice of operators.

Weights are int8 with one step per output channel, activations uint8 with the range seen on the user's rows, as
QuantizeLinear and DequantizeLinear pairs that onnxruntime and OpenVINO fuse into integer kernels. Dynamic
quantization is not used: its ranges are those of the batch at hand, so that a row's result would depend on its
companions.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph.onnx_files import strip_inner_shapes
from normdeploy.graph.shape_inference import infer_shapes
from normdeploy.onnxfile.model import whole_proto
from normdeploy.ort.byte_products import saturates
from normdeploy.ort.machine import Machine
from normdeploy.rewrite.lower.gemm_over_rows import join_biases
from normdeploy.runtime.tuning.equalize import equalize
from normdeploy.runtime.tuning.half_precision import quiet
from normdeploy.runtime.tuning.layer_statistics import Correction, Moments, moments_of, restore_moments
from normdeploy.runtime.tuning.plain_norms import move_affines

_LINEAR = ("Conv", "Gemm", "MatMul")
_FLOAT_OUTPUTS = ("Gemm", "MatMul")  # these have kernels that write float32, convolutions have none
_FIRST_OPSET = 13  # DequantizeLinear with a step per channel


@dataclass(frozen=True)
class Int8Recipe:
    """How a network is quantized.

    Args:
        name: for the plan file.
        equalized: apply cross-layer equalization first.
        every_operator: quantize all operators that can be; otherwise only convolutions and matrix products.
        joined: write matrix products with their bias as one Gemm first; gains through onnxruntime only.
        plain: move the scale and shift of normalizations into the linear layers behind them first; gains through
            OpenVINO.
        corrected: which statistics of the linear layers are brought back afterwards.
    """

    name: str
    equalized: bool
    every_operator: bool
    joined: bool = False
    plain: bool = False
    corrected: Correction = ""

    def with_correction(self, kind: Correction) -> Int8Recipe:
        """Return the same with statistics brought back."""
        return replace(self, name=f"{self.name}, {CORRECTIONS[kind]}", corrected=kind)

    def same_operators(self, other: Int8Recipe) -> bool:
        """Whether both quantize the same operators of the same weights."""
        return (self.equalized, self.every_operator) == (other.equalized, other.every_operator)

    @property
    def file_stem(self) -> str:
        """What a file of it is called, as far as the suffix."""
        return self.name.replace(", ", ".").replace(" ", "_")

    @property
    def nothing_to_do(self) -> str:
        """Why the variant would be another recipe's, where its preparation finds nothing to change."""
        if self.corrected:
            return "no quantized layer with a bias of its own"
        return "no two neighbouring layers to equalize" if self.equalized else "no MatMul followed by a bias"


CORRECTIONS: dict[Correction, str] = {"means": "biases corrected", "statistics": "statistics re-estimated"}
"""What is tried behind the quantizer, by the words of the plan file."""
INT8_RECIPES = (
    Int8Recipe("int8", equalized=False, every_operator=True),
    Int8Recipe("int8, linear layers only", equalized=False, every_operator=False, plain=True),
    Int8Recipe("int8, linear layers with their bias", equalized=False, every_operator=False, joined=True),
    Int8Recipe("int8, equalized", equalized=True, every_operator=True),
)


class _Reader:
    """Calibration rows for onnxruntime's calibrator."""

    def __init__(self, batches: Sequence[Mapping[str, Array]]) -> None:
        self._next = iter(batches)

    def get_next(self) -> Mapping[str, Array] | None:
        return next(self._next, None)


class Quantizer:
    """Writes int8 variants of one model; the ranges of its activations are taken once.

    Args:
        path: the float32 model.
        calibration: batches of the user's data.
        machine: the processor the variants will run on.

    Raises:
        GraphError: the model is too large for the quantizer.
    """

    def __init__(self, path: Path, calibration: Sequence[Mapping[str, Array]], machine: Machine) -> None:
        model = whole_proto(path)
        for index, node in enumerate(model.graph.node):
            node.name = node.name or f"{node.op_type}_{index}"  # the quantizer chooses nodes by name
        opset = next(entry.version for entry in model.opset_import if not entry.domain)
        if opset < _FIRST_OPSET:
            model = onnx.version_converter.convert_version(model, _FIRST_OPSET)
        self.plain = infer_shapes(model)
        self._calibration = calibration
        self._reduce = saturates(machine)
        self._ready: dict[tuple[bool, bool, bool], tuple[onnx.ModelProto, Any, int]] = {}
        self._statistics: dict[tuple[bool, bool, bool], Moments] = {}

    def operators(self, recipe: Int8Recipe) -> list[str]:
        """Return the names of the nodes that ``recipe`` quantizes, in the order of the graph."""
        types = set(_types(recipe))
        return [node.name for node in self.plain.graph.node if node.op_type in types]

    def is_linear(self, name: str) -> bool:
        """Whether the node of that name is a convolution or matrix product: where the time goes."""
        return any(node.op_type in _LINEAR for node in self.plain.graph.node if node.name == name)

    def write(self, target: Path, recipe: Int8Recipe, *, only: Sequence[str] = (), keep: Sequence[str] = ()) -> int:
        """Write a variant.

        Args:
            target: where.
            recipe: which kinds of operators, and whether to equalize first.
            only: names of the nodes to quantize; all of the recipe's kinds where empty.
            keep: names of nodes that stay in float32.

        Returns:
            How many places the recipe's preparation changed: pairs of layers equalized, products joined, norms made
            plain, layers whose statistics were brought back.
        """
        from onnxruntime.quantization import QDQQuantizer, QuantType

        model, ranges, changed = self._prepared(recipe)
        with quiet():
            quantizer = QDQQuantizer(
                copy.deepcopy(model),
                True,  # per channel
                self._reduce,
                QuantType.QInt8,  # weights
                QuantType.QUInt8,  # activations
                copy.deepcopy(ranges),
                list(only),
                list(keep),
                _types(recipe),
                # between float32 operators, a result in 8 bits would be rounded and converted for nothing
                {} if recipe.every_operator else {"OpTypesToExcludeOutputQuantization": list(_FLOAT_OUTPUTS)},
            )
            quantizer.quantize_model()
            strip_inner_shapes(quantizer.model.model)
            quantizer.model.save_model_to_file(str(target))
        if not recipe.corrected:
            return changed
        graph = ir.load(target)
        found = restore_moments(graph, self._moments(recipe, model), self._rows(), recipe.corrected)
        onnx.save(ir.to_proto(graph), target)
        return changed + found

    def _rows(self) -> Mapping[str, Array]:
        """Return the calibration rows as one batch, the first one of a model that insists on a number of rows."""
        insists = any(
            value.type.tensor_type.shape.dim and value.type.tensor_type.shape.dim[0].HasField("dim_value")
            for value in self.plain.graph.input
        )
        first, *others = self._calibration
        if insists:
            return first
        return {name: np.concatenate([first[name], *(batch[name] for batch in others)]) for name in first}

    def _moments(self, recipe: Int8Recipe, model: onnx.ModelProto) -> Moments:
        """Return the statistics of the float layers as the recipe prepares them."""
        key = recipe.equalized, recipe.joined, recipe.plain
        if key not in self._statistics:
            self._statistics[key] = moments_of(ir.from_proto(model), self._rows())
        return self._statistics[key]

    def _prepared(self, recipe: Int8Recipe) -> tuple[onnx.ModelProto, Any, int]:
        """Return the model as the recipe prepares it, the ranges of its activations, and how many places changed."""
        key = recipe.equalized, recipe.joined, recipe.plain
        if key not in self._ready:
            graph = ir.from_proto(self.plain)
            changed = equalize(graph) if recipe.equalized else 0
            changed += move_affines(graph) if recipe.plain else 0
            changed += join_biases(graph) if recipe.joined else 0
            model = infer_shapes(ir.to_proto(graph)) if changed else self.plain
            self._ready[key] = (model, self._ranges(model), changed)
        return self._ready[key]

    def _ranges(self, model: onnx.ModelProto) -> Any:
        from onnxruntime.quantization import CalibrationMethod, create_calibrator

        with tempfile.TemporaryDirectory() as folder, quiet():
            source = Path(folder) / "model.onnx"
            onnx.save(model, source)
            calibrator = create_calibrator(
                source,
                None,
                augmented_model_path=str(Path(folder) / "augmented.onnx"),
                calibrate_method=CalibrationMethod.MinMax,
            )
            calibrator.collect_data(_Reader(self._calibration))
            return calibrator.compute_data()


def _types(recipe: Int8Recipe) -> list[str]:
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    return sorted({*QDQRegistry, *QLinearOpsRegistry}) if recipe.every_operator else list(_LINEAR)
