"""Of torch's two ways to trace a model, one at a time.

``torch.onnx.export`` runs the model with symbols for its sizes, and where that fails lets dynamo read its source, which
takes several times as long. What a model is asked anew with (another batch, sizes kept) is asked of the first alone.

What is exchanged here is torch 2.13's and not public; where it has moved, torch tries both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def traced_by(*, dynamo: bool) -> Iterator[None]:
    """Let ``torch.onnx.export`` in this block trace by dynamo alone, or without it."""
    try:
        from torch.onnx._internal.exporter import _capture_strategies

        first, *others = _capture_strategies.CAPTURE_STRATEGIES
    except (ImportError, AttributeError, ValueError):  # moved
        yield
        return
    with mock.patch.object(_capture_strategies, "CAPTURE_STRATEGIES", tuple(others) if dynamo and others else (first,)):
        yield
