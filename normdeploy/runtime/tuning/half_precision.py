"""What every converter needs, and the ways to run in float16."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from normdeploy.graph.onnx_files import strip_inner_shapes
from normdeploy.onnxfile.model import whole_proto
from normdeploy.ort.providers import float32_options
from normdeploy.ort.settings import CPU, CUDA, TENSORRT, Settings
from normdeploy.runtime.tuning.candidates import Candidate, named


@contextlib.contextmanager
def quiet() -> Iterator[None]:
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


def half_candidates(model: Path, target: Path, fast: Settings, usable: set[str]) -> Iterator[Candidate]:
    """Write a variant in float16; yield the ways to run it, or to let TensorRT make its own.

    Args:
        model: in float32. target: where the variant goes. fast: settings of the CPU. usable: providers.

    Raises:
        Exception: whatever the converter raises on a graph that it does not know.
    """
    write_float16(model, target)
    where = CUDA if CUDA in usable else CPU
    yield named(replace(fast, provider=where, options=float32_options(where)), target, "float16", "float16")
    if TENSORRT in usable:
        half = (("trt_fp16_enable", "1"),)
        yield named(Settings(TENSORRT, options=half), model, "float16", "float16")


def write_float16(path: Path, target: Path) -> None:
    """Write a variant that computes in float16, with the inputs and outputs of the original.

    A LayerNormalization whose mean or inverse deviation is read stays in float32: these come out in float32 whatever
    its input, and the converter takes them for float16.

    Raises:
        GraphError: the conversion makes no valid graph.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = whole_proto(path)
    stay = []
    for index, node in enumerate(model.graph.node):
        if node.op_type == "LayerNormalization" and any(node.output[1:]):
            node.name = node.name or f"{node.op_type}_{index}"
            stay.append(node.name)
    with quiet():
        converted = convert_float_to_float16(model, keep_io_types=True, node_block_list=stay)
    ordered = ir.from_proto(converted)
    ordered.graph.sort()  # the converter puts casts of inputs behind what reads them, which ONNX does not allow
    converted = ir.to_proto(ordered)
    strip_inner_shapes(converted)
    onnx.save(converted, target)
