"""Operators of evaluation that torch's second trace writes as one other, and how that one reads.

With x ``[batch, channels, height, width]``::

    batch_norm(x, w, b, m, v, training=False) = _native_batch_norm_legit_no_training(x, w, b, m, v)[0]
    adaptive_avg_pool2d(x, (1, 1)) = mean(x, (-1, -2), keepdim=True)
    dropout(x, p, train=False) = clone(x)
    lift_fresh_copy(constant) = clone(constant)

Where x lies with its channels last, torch also writes how the mean lies, one index for each element; this is left out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
BATCH_NORM = aten.batch_norm.default
_BATCH_NORM_ALONE = aten._native_batch_norm_legit_no_training.default
_BATCH_NORM_RESULTS = 3
"""Results of the operator in its place; torch counts a node for each, though only the first is read."""


@dataclass(frozen=True)
class Retraced:
    """An operator that another stands for.

    Args:
        holds: whether it does for a node.
        write: makes the node in its place, given the graph, the node and the number of such operators before it.
    """

    holds: Callable[[Any], bool]  # torch types a node's arguments as all that they may ever be
    write: Callable[[Graph, Any, int], Node]


def _call(graph: Graph, like: Node, target: Any, args: tuple[Any, ...], name: str | None = None) -> Node:
    node = graph.create_node("call_function", target, args, name=name or target._schema.name.partition("::")[2])
    node.meta = dict(like.meta)
    return node


def _batch_norm_holds(node: Any) -> bool:
    _, _, _, mean, variance, training, *_ = node.args
    return training is False and mean is not None and variance is not None


def _batch_norm(graph: Graph, node: Any, before: int) -> Node:
    x, weight, bias, mean, variance, _, momentum, eps, *_ = node.args
    whole = _call(graph, node, _BATCH_NORM_ALONE, (x, weight, bias, mean, variance, momentum, eps))
    value = node.meta["val"]
    whole.meta["val"] = (value, *[value.new_empty(0)] * (_BATCH_NORM_RESULTS - 1))
    name = f"getitem_{_BATCH_NORM_RESULTS * before}" if before else "getitem"
    return _call(graph, node, operator.getitem, (whole, 0), name)


def _pool_holds(node: Any) -> bool:
    return list(node.args[1:]) == [[1, 1]]


def _pool(graph: Graph, node: Any, _before: int) -> Node:
    return _call(graph, node, aten.mean.dim, (node.args[0], [-1, -2], True))


def _dropout_holds(node: Any) -> bool:
    return node.args[2] is False


def _dropout(graph: Graph, node: Any, _before: int) -> Node:
    return _call(graph, node, aten.clone.default, node.args[:1])


def _lifted(graph: Graph, node: Any, _before: int) -> Node:
    return _call(graph, node, aten.clone.default, node.args)


RETRACED: Mapping[Any, Retraced] = {
    BATCH_NORM: Retraced(_batch_norm_holds, _batch_norm),
    aten.adaptive_avg_pool2d.default: Retraced(_pool_holds, _pool),
    aten.dropout.default: Retraced(_dropout_holds, _dropout),
    aten.lift_fresh_copy.default: Retraced(lambda _: True, _lifted),
}
