"""The traced graph with its stored constants moved by one rounding: what storing them in float32 may have changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array, Floats
from normdeploy.graph import FLOATS, Evaluator, ExactTensor, evaluate_node
from normdeploy.graph.declared import declared_attributes, default_of
from normdeploy.graph.evaluate import StandIn
from normdeploy.graph.walk import nodes_in
from normdeploy.verification.bounds.hashing import hashed_noise
from normdeploy.verification.bounds.noise import deviations
from normdeploy.verification.check_context import Context
from normdeploy.verification.sides.flat_values import UNIT_ROUNDOFF, Feeds, run_evaluator
from normdeploy.verification.sides.two_sides import EagerReference

_RUNS, _RUNS_HEAVY, _MOST = 3, 2, 8
"""Runs with moved constants, more than one since movements of several constants may cancel in an output.

Of two or three all may be small by chance, where one error goes through all outputs (a scale of each layer): more are
made, to the most, before noise is measured, which takes dozens.
"""


class MovedConstants:
    """The reference's graph with its stored constants moved by one rounding, made when it is first asked for."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._graphs: list[Evaluator] = []

    @property
    def enough(self) -> int:
        """How many runs are enough, if they explain a difference."""
        return _RUNS_HEAVY if self._context.heavy else _RUNS

    @cached_property
    def _names(self) -> list[str]:
        return _stored_constants(self._context)

    def _graph(self, seed: int) -> Evaluator:
        model = self._context.reference.graph
        assert model is not None
        while len(self._graphs) <= seed:
            self._graphs.append(MovedGraph(model, self._names, len(self._graphs)))
        return self._graphs[seed]

    def spreads(self, feeds: Feeds, traced: Sequence[Array]) -> Iterator[list[Floats]]:
        """Yield the pointwise RMS deviation from the outputs of the unmoved graph: 0, and what it is at least.

        It grows with each of the first runs: those that are left count as if nothing moved in them. Then it is that of
        all made so far.
        """
        yield [np.zeros(y.shape) for y in traced]
        reference = self._context.reference
        if reference.graph is None or not isinstance(reference, EagerReference):
            return  # an ONNX reference is its own graph: nothing was stored anew
        yield from deviations(traced, (self._run(seed, feeds) for seed in range(_MOST)), self.enough)

    def _run(self, seed: int, feeds: Feeds) -> Collection[Array]:
        self._context.effort.spend(1, feeds)
        return run_evaluator(self._graph(seed), feeds).values()


def _stored_constants(context: Context) -> list[str]:
    """Return the float initializers that are no weights of the eager model: Python numbers, tables made in forward."""
    if not isinstance(context.reference, EagerReference) or context.evaluator is None:
        return []
    known = set(context.reference.model.state_dict())
    return [
        name
        for name, value in context.evaluator.graph.initializers.items()
        if name not in known and value.const_value is not None and value.const_value.dtype in FLOATS
    ]


class MovedGraph(Evaluator):
    """The evaluator of a graph with each stored constant and float attribute moved by one rounding.

    Equal numbers are moved alike, as they were rounded: an epsilon or attention's scale is mostly one in all layers,
    and what is moved layer by layer cancels in outputs where their common error does not. Each moves as far as rounding
    can have moved it: few numbers of random size, or one, may all be small.

    Args:
        names: of the constants. seed: decides which way each number moves.
    """

    def __init__(self, model: ir.Model, names: Sequence[str], seed: int) -> None:
        super().__init__(model)
        self._numbers: dict[str, Tensor] = {}
        for name in names:
            tensor = self.graph.initializers[name].const_value
            assert tensor is not None
            self._numbers[name] = _moved(torch.from_numpy(np.array(tensor.numpy(), np.float64)), seed)
        imports = dict(self.graph.opset_imports)
        others = {node: _with_moved_attributes(node, imports, seed) for node in nodes_in(self.graph)}
        self._others: dict[ir.Node, StandIn] = {
            node: partial(_evaluated, other, imports) for node, other in others.items() if other is not None
        }

    def run(
        self,
        feeds: Mapping[str, Array | Tensor],
        *,
        replace: Mapping[str, Tensor] | None = None,
        stand_ins: Mapping[ir.Node, StandIn] | None = None,
        **options: Any,
    ) -> dict[str, Tensor]:
        """Evaluate the graph with these numbers and operators, but for what the caller puts in their place."""
        numbers, others = {**self._numbers, **(replace or {})}, {**self._others, **(stand_ins or {})}
        return super().run(feeds, replace=numbers, stand_ins=others, **options)


def _evaluated(node: ir.Node, imports: Mapping[str, int], values: Sequence[Tensor | None]) -> list[Tensor]:
    return evaluate_node(node, list(values), opset_imports=imports)


def _with_moved_attributes(node: ir.Node, imports: Mapping[str, int], seed: int) -> ir.Node | None:
    """Return an operator of no graph with its float attributes moved; None where it has none.

    Those that are absent are moved as well: the numbers of a Selu are float32's by declaration.
    """
    moved: dict[str, ir.Attr] = {}
    declared = declared_attributes(node, imports.get(node.domain, 1))
    defaults = {name: default_of(one) for name, one in declared.items() if name not in node.attributes}
    own = {**node.attributes, **{name: one for name, one in defaults.items() if one is not None}}
    for name, attribute in own.items():
        if attribute.type == ir.AttributeType.FLOAT:
            number = _moved(torch.tensor(attribute.value, dtype=torch.float64), seed)
            moved[name] = ir.AttrFloat32(name, float(number))
        elif attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in FLOATS:
            value = _moved(torch.from_numpy(np.array(attribute.value.numpy(), np.float64)), seed)
            exact = ExactTensor(partial(np.asarray, value.numpy()), attribute.value.dtype, tuple(value.shape))
            moved[name] = ir.AttrTensor(name, exact)
    if not moved:
        return None
    read = [None if value is None else ir.Value(name=value.name) for value in node.inputs]
    made = [ir.Value(name=value.name) for value in node.outputs]
    attributes = [*(one for name, one in node.attributes.items() if name not in moved), *moved.values()]
    return ir.Node(node.domain, node.op_type, read, attributes, outputs=made, version=node.version, name=node.name)


def _moved(value: Tensor, seed: int) -> Tensor:
    """Move floats by the largest rounding, up or down, but for those short enough to be what was written (1, 0.5)."""
    if not value.is_floating_point() or value.numel() == 0:
        return value
    short = value.to(torch.float32).view(torch.int32) & 0xFFF == 0
    return torch.where(short, value, value * (1 + UNIT_ROUNDOFF["float32"] * hashed_noise(value, seed).sign()))
