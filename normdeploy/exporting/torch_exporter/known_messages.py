"""What the exporter says about itself is silenced, message by message; everything else is heard."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import TextIO

# logger -> beginnings of its messages that are silenced, each with the reason
_LOG_LINES: dict[str, tuple[str, ...]] = {
    # operators of a package that the model does not use
    "torch.onnx._internal.exporter._registration": ("torchvision is not installed",),
    # onnxscript writes an empty list of axes, of integers as onnx_ir takes it to be (index_put)
    "onnx_ir._convenience": ("Attribute type is ambiguous because it is an empty sequence",),
    # said before an exception that we explain ourselves
    "torch.fx.experimental.symbolic_shapes": ("Unable to find user code corresponding to",),
    # likewise; where shapes are fixed after all, the trace succeeds
    "torch._subclasses.fake_tensor": ("failed while attempting to run meta for",),
}
_WARNINGS: tuple[str, ...] = (
    # torch.export copies its own deprecated class
    r".*LeafSpec.*",
    # the batch dimension of the second input has the first one's name: that is what was asked for
    r"# The axis name: .* will not be used",
    # trained tensors of plain objects become weights by their path, and the doctor tells of them
    r"A model attribute .* requires gradient",
    # torch calls its own deprecated check in the loops it writes for recurrent layers
    r"_check_is_size will be removed",
    # the second capture strategy repeats what the first one said
    r"While compiling, we found certain side effects",
)


class _WithoutGraphs:
    """A stream that passes everything on but the half-traced graphs torch.export prints before it raises."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._dropped = False

    def write(self, text: str) -> int:
        if "def forward(self, arg0_1" in text:
            self._dropped = True
            return len(text)
        if self._dropped and text == "\n":  # the end of that print
            self._dropped = False
            return 1
        self._dropped = False
        return self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextmanager
def _log_lines_dropped(name: str, beginnings: tuple[str, ...]) -> Iterator[None]:
    def wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(beginnings)

    logger = logging.getLogger(name)
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


@contextmanager
def _structured_events_left_to_torch() -> Iterator[None]:
    """Keep what torch logs for TORCH_TRACE, as empty lines with a payload, from handlers that others hung up there.

    pytest's hang on every logger that does not propagate: hundreds of empty lines stood below a test that failed.
    """
    logger = logging.getLogger("torch.__trace")
    others = [handler for handler in logger.handlers if not type(handler).__module__.startswith("torch.")]
    for handler in others:
        logger.removeHandler(handler)
    try:
        yield
    finally:
        for handler in others:
            logger.addHandler(handler)


@contextmanager
def known_messages_silenced() -> Iterator[None]:
    """Silence the exporter's own known messages within the block."""
    with ExitStack() as stack:
        for name, beginnings in _LOG_LINES.items():
            stack.enter_context(_log_lines_dropped(name, beginnings))
        stack.enter_context(_structured_events_left_to_torch())
        stack.enter_context(warnings.catch_warnings())
        for message in _WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        # a duck-typed stream: the stub asks for the full TextIO protocol
        stack.enter_context(redirect_stderr(_WithoutGraphs(sys.stderr)))  # type: ignore[type-var]
        yield
