"""What every converter needs, and the variant in float16."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx

from normdeploy.errors import GraphError


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


def write_float16(path: Path, target: Path) -> None:
    """Write a variant that computes in float16, with the inputs and outputs of the original.

    Raises:
        GraphError: the conversion makes no valid graph.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with quiet():
        converted = convert_float_to_float16(inline(path), keep_io_types=True)
    onnx.save(converted, target)
