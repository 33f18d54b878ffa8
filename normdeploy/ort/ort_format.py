"""The ORT format: onnxruntime's own file of a graph that is optimized already, which its small builds for phones read.

The conversion is onnxruntime's tool (``onnxruntime.tools.convert_onnx_models_to_ort``): style "Fixed", for ARM, that is
without the layout of x86's convolutions. Beside the file it lists the operators that the graph needs, for a build that
has no others (``--include_ops_by_config``).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normdeploy.errors import GraphError, MissingDependencyError

ORT_FORMAT = "ORT format"
"""How a setting calls it: the file converted, then run by the CPU provider."""


@dataclass(frozen=True)
class Converted:
    """A model in the ORT format.

    Args:
        content: the file.
        operators: the list of operators it needs, as a build of onnxruntime reads it.
    """

    content: bytes
    operators: str


_KEPT: ContextVar[dict[str, Converted] | None] = ContextVar("normdeploy_converted", default=None)


@contextmanager
def conversions_kept() -> Iterator[None]:
    """Convert each model once inside the block: two conversions of one model differ in their bytes.

    So the file that is judged is the file that is written.
    """
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def converted(model: str | os.PathLike[str] | bytes) -> Converted:
    """Return an ONNX file, or its bytes, in the ORT format; nothing is written beside it.

    Raises:
        GraphError: it cannot be read, or onnxruntime cannot convert it.
        MissingDependencyError: what onnxruntime's tool imports is not here.
    """
    from normdeploy.onnxfile.endless import check_ends
    from normdeploy.onnxfile.model import whole_proto

    if not isinstance(model, bytes):
        check_ends(model)
    content: Any = model if isinstance(model, bytes) else whole_proto(model).SerializeToString()
    kept, digest = _KEPT.get(), hashlib.sha256(content).hexdigest()
    if kept is None:
        return _convert(content)
    if digest not in kept:
        kept[digest] = _convert(content)
    return kept[digest]


def _convert(content: bytes) -> Converted:
    try:
        tool = _tool()
    except ImportError as error:
        raise MissingDependencyError(
            f"onnxruntime's converter to the ORT format cannot be imported ({error}); expected what it needs: pip "
            "install flatbuffers"
        ) from error
    said = io.StringIO()  # it prints
    with tempfile.TemporaryDirectory(prefix="normdeploy-ort-") as folder:
        source = Path(folder) / "model.onnx"
        source.write_bytes(content)
        try:
            with contextlib.redirect_stdout(said), warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # it leaves files open
                tool.convert_onnx_models_to_ort(source, None, [tool.OptimizationStyle.Fixed], target_platform="arm")
        except Exception as error:  # it raises classes of its own, none of them public
            raise GraphError(
                f"onnxruntime cannot convert the model to the ORT format: {error}; expected operators that its CPU "
                "provider has"
            ) from error
        listed = source.with_suffix(".required_operators.config").read_text(encoding="utf-8").splitlines(keepends=True)
        # its comments name the temporary file
        operators = "".join(line for line in listed if not line.startswith("#"))
        return Converted(source.with_suffix(".ort").read_bytes(), operators)


def _tool() -> Any:
    """Import onnxruntime's converter; it gives the root logger a handler, which is taken away, and tells of each file.

    Raises:
        ImportError: it needs what is not here.
    """
    before = list(logging.root.handlers)
    from onnxruntime.tools import convert_onnx_models_to_ort as tool

    for handler in [handler for handler in logging.root.handlers if handler not in before]:
        logging.root.removeHandler(handler)
    logging.getLogger("ort_format_model.utils").setLevel(logging.WARNING)
    return tool
