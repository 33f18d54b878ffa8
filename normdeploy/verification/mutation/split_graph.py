"""Cut a graph at one value: what was computed there becomes an input, everything else stays in place.

The same value is found in two graphs of one origin by what it holds, not by its name: the first one, in graph order,
that equals it. Whatever is a mere copy of it lies behind the cut.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.graph import Evaluator, constant_tensor
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.verification.bounds.criteria import rms
from normdeploy.verification.sides.flat_values import Feeds

_CANDIDATES = 48
"""How far above a site its entries are looked for, in values."""


def dominators(value: ir.Value) -> list[str]:
    """Return the names of the values through which alone a graph's inputs reach ``value``, nearest first.

    A normalization written out reads its input more than once (x - mean, over a deviation of x); all of these pass
    through it.
    """
    above = [v for v in _ancestors(value, stop=None)[1 : _CANDIDATES + 1] if not v.is_graph_input()]
    return [str(v.name) for v in above if not any(a.is_graph_input() for a in _ancestors(value, stop=v))]


def _ancestors(value: ir.Value, stop: ir.Value | None) -> list[ir.Value]:
    """Return a value and all whose numbers it depends on (not only their shapes), nearest first, up to ``stop``."""
    seen: dict[ir.Value, None] = {value: None}
    queue = [value]
    for current in queue:
        producer = current.producer()
        for item in () if producer is None or producer.op_type in ("Shape", "Size") else producer.inputs:
            if item is not None and item is not stop and item not in seen and constant_tensor(item) is None:
                seen[item] = None
                queue.append(item)
    return list(seen)


def joined(value: ir.Value) -> ir.Value:
    """Return the first result below ``value`` that also depends on another computed value; the last one otherwise."""
    current = value
    while uses := list(current.uses()):
        user = uses[0].node
        others = [v for v in user.inputs if v is not None and v is not current and constant_tensor(v) is None]
        current = user.outputs[0]
        if others:
            break
    return current


def first_equal(evaluator: Evaluator, feeds: Feeds, wanted: Array, tolerance: float) -> str:
    """Return the name of the first value of a graph that equals ``wanted``; "" if none does or an input does."""
    return next(iter(all_equal(evaluator, feeds, wanted, tolerance)), "")


def all_equal(evaluator: Evaluator, feeds: Feeds, wanted: Array, tolerance: float) -> list[str]:
    """Return the names of the values of a graph that equal ``wanted``, in order; none if an input does.

    Args:
        evaluator: of the graph. feeds: its inputs. wanted: float64. tolerance: on RMS(difference) / RMS(value).
    """
    size = rms(wanted)
    found: list[str] = []

    def same(array: Array) -> bool:
        if array.shape != wanted.shape or size == 0:
            return False
        return rms(np.asarray(array, np.float64) - wanted) <= tolerance * size

    def hook(node: ir.Node, results: list[Tensor]) -> list[Tensor]:
        for output, result in zip(node.outputs, results, strict=False):
            if result.is_floating_point() and same(to_numpy(result)):
                found.append(str(output.name))
        return results

    if any(
        same(np.asarray(feeds[name])) for name in evaluator.input_names if np.asarray(feeds[name]).dtype.kind == "f"
    ):
        return []
    with torch.no_grad():
        evaluator.run(dict(feeds), hook=hook)
    return found


def with_input_at(model: ir.Model, name: str) -> ir.Model | None:
    """Return a copy of a graph in which a computed value is an input; None where it cannot be one.

    Args:
        model: left as it is. name: of a value computed in the main graph, a float32 tensor that is no output.
    """
    value = next((v for node in model.graph for v in node.outputs if v.name == name), None)
    if value is None or value.is_graph_output() or value.dtype not in (None, ir.DataType.FLOAT):
        return None
    graph = ir.convenience.extract(model.graph, [*model.graph.inputs, value], list(model.graph.outputs))
    entry = graph.inputs[-1]
    entry.dtype = ir.DataType.FLOAT
    return ir.Model(graph, ir_version=model.ir_version) if entry.uses() else None
