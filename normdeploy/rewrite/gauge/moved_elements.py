"""What only moves elements is checked by what it moves where: f(s x + t) = f(s) f(x) + f(t), for every x.

The operator is run once on distinct numbers, and once only for all that move alike: layers repeat each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import RewriteError
from normdeploy.graph import FLOATS, constant_tensor, evaluate_region, module_path
from normdeploy.graph.traits import Trait, has
from normdeploy.rewrite.gauge.expression_rows import Floats
from normdeploy.rewrite.gauge.operator_edit import Edit, Solution
from normdeploy.rewrite.rewrite_context import TOLERANCE, RewriteContext


def only_moves(edit: Edit) -> bool:
    """Tell whether an operator stays as it is, and moves elements of computed values alone."""
    if edit.changes or not has(edit.node, Trait.MOVES | Trait.JOINS):
        return False
    constants = map(constant_tensor, edit.node.inputs)
    return not any(tensor is not None and tensor.dtype in FLOATS for tensor in constants)


def require_moved(
    context: RewriteContext, edit: Edit, drawn: Mapping[ir.Value, Tensor], results: Sequence[ir.Value]
) -> None:
    """Require that the gauges of what an operator writes are those of the elements that it writes.

    Args:
        context: remembers what was moved where.
        edit: of an operator that stays as it is.
        drawn: what it reads, of sizes that show all that the gauges tell apart.
        results: what is read of what it writes.

    Raises:
        RewriteError: they are not.
        GraphError: it cannot be evaluated.
        ValueError: a gauge has more cells than what was drawn.
    """
    node, at = edit.node, edit.at
    sources = {value: tensor for value, tensor in drawn.items() if tensor.is_floating_point()}
    key = (*_written(node), *(tuple(tensor.shape) if value in sources else tensor.numpy().tobytes()
                              for value, tensor in drawn.items()))  # fmt: skip
    places = context.moved.get(key)
    if places is None:
        starts = np.cumsum([0, *(tensor.numel() for tensor in sources.values())])
        numbered = {
            value: torch.arange(start, start + tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
            for start, (value, tensor) in zip(starts.tolist(), sources.items(), strict=False)
        }
        found = evaluate_region([node], {**drawn, **numbered}, results)
        places = context.moved[key] = [tensor.numpy().astype(np.int64) for tensor in found]
    read = [_spread(at, value, tuple(tensor.shape)) for value, tensor in sources.items()]
    scales, shifts = (np.concatenate([pair[side].reshape(-1) for pair in read]) for side in (0, 1))
    for value, taken in zip(results, places, strict=True):
        for own, moved in zip(_spread(at, value, taken.shape), (scales, shifts), strict=True):
            expected = moved[taken]
            with np.errstate(invalid="ignore"):
                apart = np.abs(own - expected)
            if not ((own == expected) | (apart <= TOLERANCE * np.abs(expected))).all():
                raise RewriteError(
                    f"gauge of {node.op_type}",
                    module_path(node),
                    f"{value.name} differs by {float(apart.max()):.3g}; expected the gauges of the elements it holds",
                )


def _spread(at: Solution, value: ir.Value, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return s and t of each element."""
    gauge = at.ties.of.get(value)
    if gauge is None:
        return np.ones(shape), np.zeros(shape)
    return np.broadcast_to(at.scale(gauge), shape), np.broadcast_to(at.shift(gauge), shape)


def _written(node: ir.Node) -> tuple[object, ...]:
    """Return what decides, beside the sizes, what an operator moves where."""
    attributes = ((name, str(attribute.value)) for name, attribute in sorted(node.attributes.items()))
    constants = (
        None if (tensor := constant_tensor(value)) is None else (tuple(tensor.shape), tensor.numpy().tobytes())
        for value in node.inputs
    )
    return (node.op_type, len(node.outputs), *attributes, *constants)
