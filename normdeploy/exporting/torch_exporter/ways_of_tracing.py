"""Of torch's two ways to trace a model, the first alone.

``torch.onnx.export`` runs the model with symbols for its sizes, and where that fails lets dynamo read its source, which
takes several times as long. Dynamo cannot follow the forward that stands in for the model's own, which puts back what
a call changed: it was never of help, of no module, and its attempt was most of what a refusal took.

What is exchanged here is torch 2.13's and not public; where it has moved, torch tries both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def traced_by_running() -> Iterator[None]:
    """Let ``torch.onnx.export`` in this block trace by running the model, and not by dynamo."""
    try:
        from torch.onnx._internal.exporter import _capture_strategies

        running = _capture_strategies.CAPTURE_STRATEGIES[:1]
    except (ImportError, AttributeError, TypeError):  # moved
        yield
        return
    with mock.patch.object(_capture_strategies, "CAPTURE_STRATEGIES", running):
        yield
