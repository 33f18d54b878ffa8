"""``clamp`` between a whole number and one that is not: ``x.clamp(1e-6, 1)``, ``x.clamp(0.0, width - 1)``.

torch 2.13 puts a tensor in the place of a bound that changes its type, and then finds that no ``clamp`` takes a number
and a tensor (docs/upstream/torch-onnx.md). Numbers are written as floats here. Where one is a size of the run's::

    clamp(x, a, b) = clamp_max(clamp_min(x, a), b)

What is exchanged here is not public; where it has moved, torch's own error stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten


@contextmanager
def bounds_of_one_kind() -> Iterator[None]:
    """Let ``torch.onnx.export`` in this block translate ``clamp`` between bounds of two kinds."""
    try:
        from torch.onnx._internal.exporter import _fx_passes

        torchs = _fx_passes.insert_type_promotion_nodes
    except (ImportError, AttributeError):  # moved
        yield
        return

    def prepared(graph_module: GraphModule) -> None:
        for module in graph_module.modules():
            if isinstance(module, GraphModule):
                _of_one_kind(module)
        torchs(graph_module)

    with mock.patch.object(_fx_passes, "insert_type_promotion_nodes", prepared):
        yield


def _of_one_kind(module: GraphModule) -> None:
    for node in module.graph.find_nodes(op="call_function", target=aten.clamp.default):
        x, low, high = (*node.args, None, None)[:3]
        low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
        if low is None or high is None or isinstance(_value(low), _WHOLE) == isinstance(_value(high), _WHOLE):
            continue
        if not isinstance(low, Node) and not isinstance(high, Node):
            node.args, node.kwargs = (x, float(low), float(high)), {}
            continue
        with module.graph.inserting_before(node):
            inner = module.graph.call_function(aten.clamp_min.default, (x, low))
        inner.meta = dict(node.meta) | {"val": aten.clamp_min.default(_value(x), _value(low))}
        node.target, node.args, node.kwargs = aten.clamp_max.default, (inner, high), {}


_WHOLE = (int, torch.SymInt)


def _value(of: Any) -> Any:
    return of.meta["val"] if isinstance(of, Node) else of
