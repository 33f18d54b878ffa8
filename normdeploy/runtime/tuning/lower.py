"""Variants of a model in lower precision: float16, and int8 with calibrated activations."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from normdeploy.errors import GraphError
from normdeploy.runtime.backend import Array
from normdeploy.runtime.machine import Machine
from normdeploy.runtime.tuning.equalize import equalize

_VNNI = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})


@dataclass(frozen=True)
class Int8Recipe:
    """How a network is quantized.

    Args:
        name: for the plan file.
        equalized: apply cross-layer equalization first.
        every_operator: quantize all operators that can be; otherwise only convolutions and matrix products.
    """

    name: str
    equalized: bool
    every_operator: bool


INT8_RECIPES = (
    Int8Recipe("int8", equalized=False, every_operator=True),
    Int8Recipe("int8, linear layers only", equalized=False, every_operator=False),
    Int8Recipe("int8, equalized", equalized=True, every_operator=True),
)


def inline(path: Path) -> onnx.ModelProto:
    """Return the model with all its weights inside: what every quantizer can read.

    Raises:
        GraphError: the weights do not fit into one protobuf message (2 GiB).
    """
    model = onnx.load(path, load_external_data=True)
    if model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF:
        raise GraphError(f"{path.name} is {model.ByteSize() / 2**30:.1f} GiB; expected less than 2 GiB to be converted")
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the converters' advice (it is about preprocessing that our graphs have had)."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)


def write_float16(path: Path, target: Path) -> None:
    """Write a variant that computes in float16, with the inputs and outputs of the original.

    Raises:
        GraphError: the conversion makes no valid graph.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quiet():
        converted = convert_float_to_float16(inline(path), keep_io_types=True)
    onnx.save(converted, target)


class _Reader:
    """Calibration rows for onnxruntime's quantizer."""

    def __init__(self, batches: Sequence[Mapping[str, Array]]) -> None:
        self._batches = batches
        self._next = iter(batches)

    def get_next(self) -> Mapping[str, Array] | None:
        return next(self._next, None)

    def rewind(self) -> None:
        self._next = iter(self._batches)


def write_int8(
    path: Path, target: Path, calibration: Sequence[Mapping[str, Array]], recipe: Int8Recipe, machine: Machine
) -> int:
    """Write a QDQ variant: int8 weights per output channel, uint8 activations with ranges seen on the user's rows.

    Processors without dot-product instructions multiply pairs of uint8 and int8 into 16 bits and saturate there;
    for them the weights are kept to 7 bits.

    Args:
        path: the float32 model.
        target: where to write.
        calibration: batches of the user's data.
        recipe: which operators, and whether to equalize first.
        machine: the processor it will run on.

    Returns:
        How many pairs of layers were equalized.

    Raises:
        GraphError: the model is too large for the quantizer.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    model = inline(path)
    pairs = equalize(model) if recipe.equalized else 0
    with tempfile.TemporaryDirectory() as folder, _quiet():
        source = Path(folder) / "inline.onnx"
        onnx.save(model, source)
        options: dict[str, Any] = {} if recipe.every_operator else {"op_types_to_quantize": ["Conv", "Gemm", "MatMul"]}
        quantize_static(
            str(source),
            str(target),
            _Reader(calibration),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            reduce_range=not _VNNI & set(machine.instructions),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            **options,
        )
    return pairs
