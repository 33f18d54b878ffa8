r"""The float64 chain from the eager model to the stored numbers.

::

    eager, float64 --(1)-- traced graph, float64 --(2)-- numbers in the file

1. The trace stores the model's Python constants (an epsilon, a scale) as float32, and nothing else changes: the bound
   is the spread of float64 runs in which only these constants move by one rounding. Samples show it, here.
2. The file computes what the traced graph computes, each of its numbers rounded once: algebra shows it for every input
   (:mod:`normdeploy.verification.derivation.checker`).

Where both hold, an error far below float32's rounding of the whole network would have shown: in the file by algebra,
and between module and trace by as much as the two are seen to agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, Evaluator, ExactTensor, evaluate_node
from normdeploy.graph.evaluate import StandIn
from normdeploy.verification.bounds.criteria import Floats, judge, rms
from normdeploy.verification.bounds.hashing import hashed_noise
from normdeploy.verification.check_context import Context
from normdeploy.verification.family_case import Case
from normdeploy.verification.float64_chain import Chain, Links
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.record.measured import Ratios
from normdeploy.verification.sides.exact_agreement import is_float, nonfinite_problems
from normdeploy.verification.sides.flat_values import UNIT_ROUNDOFF, Array, Feeds, run_evaluator
from normdeploy.verification.sides.two_sides import EagerReference

_RUNS, _RUNS_HEAVY = 3, 2
"""Runs with moved constants, more than one since movements of several constants may cancel in an output."""

_ALWAYS = 2
"""Families on which the two are compared whatever that costs."""

SHARE = 0.5
"""Share of a level's work after which they are compared on no further family."""


def check_traced(context: Context) -> Links:
    """Hold the traced graph against the module; the chain is used by the sensitivity check only if both links hold."""
    if context.evaluator is None:
        return Links()
    if not context.reference.has_truth:
        context.not_checked.append("the traced graph against the module in float64 (the module does not run in it)")
        return Links(traced=False)
    constants = _MovedConstants(context)
    worst = 0.0
    left: list[str] = []
    for number, case in enumerate(context.cases):
        if number >= _ALWAYS and not context.effort.affords(SHARE):
            left.append(case.family.name)
            continue
        context.tell("traced", number / len(context.cases))
        try:
            traced = context.traced(case)
        except GraphError as error:
            text = (
                f"the float64 chain on {case.family.name!r}: the reference's graph cannot be evaluated there ({error})"
            )
            context.not_checked.append(text)
            continue
        case.chain = Chain(traced, constants.spreads(case.family.feeds, traced))
        for i, y in enumerate(traced):
            if is_float(y) and y.shape == case.truth[i].shape:
                worst = max(worst, _ratio(case, i, y))
        case.chain.resolution += [_relative(a, b) for a, b in zip(case.truth, traced, strict=True)]
    if left:
        context.leave_out(f"the traced graph against the module in float64 on {', '.join(left)}")
    tight = worst <= 1
    check = Check(
        Question.TRACED,
        Status.PASS if tight else Status.NOTE,
        "the traced graph is the reference in float64, but for the rounding of its constants"
        if tight
        else f"the traced graph differs from eager float64 by {worst:.3g} times what rounding its constants explains; "
        "float32's bound judges alone",
        Ratios(worst),
    )
    report = context.proven
    proven, nearly = (False, False) if report is None else (report.confirmed, report.nearly)
    return Links((check,), traced=tight, hold=tight and proven, nearly=tight and nearly and not proven)


def _ratio(case: Case, index: int, y: Array) -> float:
    """Return how many times the chain's bound the traced graph's output is away; elements that ties turn aside."""
    assert case.chain is not None
    ratio = _judged(case, index, y, spread=False)
    if ratio > 1:
        ratio = _judged(case, index, y, spread=True)
    while 1 < ratio < math.inf and case.chain.measure():  # no more runs than it takes: the spread only grows
        ratio = _judged(case, index, y, spread=True)
    if ratio > 1 and not case.rounding.measured:
        case.spread  # noqa: B018 # measured: eager's error may be small by chance
        ratio = _judged(case, index, y, spread=True)
    if ratio > 1 and case.noisy is not None and case.noisy.decides:
        if case.undecided(index):
            return 0.0
        ratio = _judged(case, index, np.where(case.ties(index), case.truth[index], y), spread=True)
    return ratio


def _judged(case: Case, index: int, y: Array, *, spread: bool) -> float:
    if nonfinite_problems(case.truth[index], case.eager[index], y, case.names[index])[0]:
        return float("inf")
    bounds = case.chain_bounds(index, spread=spread, least=True)
    keep = bounds.keep & np.isfinite(y)
    return judge(np.where(keep, y, 0.0), replace(bounds, keep=keep)).ratio


def _relative(a: Array, b: Array) -> float:
    """Return RMS(a - b) / RMS(a) over what is finite on both sides; infinity for other shapes, 0 for integers."""
    if a.shape != b.shape:
        return float("inf")
    if not is_float(a):
        return 0.0
    keep = np.isfinite(a) & np.isfinite(b)
    difference = rms(a[keep] - b[keep])
    return difference / (rms(a[keep]) or 1.0)


class _MovedConstants:
    """The reference's graph with its stored constants moved by one rounding, made when it is first asked for."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._graphs: list[Evaluator] = []

    @cached_property
    def _names(self) -> list[str]:
        return _stored_constants(self._context)

    def _graph(self, seed: int) -> Evaluator:
        model = self._context.reference.graph
        assert model is not None
        while len(self._graphs) <= seed:
            self._graphs.append(with_moved_constants(model, self._names, len(self._graphs)))
        return self._graphs[seed]

    def spreads(self, feeds: Feeds, traced: Sequence[Array]) -> Iterator[list[Floats]]:
        """Yield the pointwise RMS deviation from the outputs of the unmoved graph: 0, and what it is at least.

        It grows with each run: those that are left count as if nothing moved in them.
        """
        squares = [np.zeros(y.shape) for y in traced]
        yield [np.sqrt(s) for s in squares]
        reference, runs = self._context.reference, _RUNS_HEAVY if self._context.heavy else _RUNS
        if reference.graph is None or not isinstance(reference, EagerReference):
            return  # an ONNX reference is its own graph: nothing was stored anew
        for seed in range(runs):
            self._context.effort.spend(1, feeds)
            for i, n in enumerate(run_evaluator(self._graph(seed), feeds).values()):
                if is_float(n) and n.shape == squares[i].shape:
                    with np.errstate(invalid="ignore"):
                        squares[i] += np.nan_to_num(np.square(n - traced[i]), nan=0.0, posinf=0.0, neginf=0.0)
            yield [np.sqrt(s / runs) for s in squares]


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


class _Moved(Evaluator):
    """The evaluator of a graph with other numbers in the place of some constants, and operators of other attributes."""

    def __init__(self, model: ir.Model, names: Sequence[str], seed: int) -> None:
        super().__init__(model)
        self._numbers: dict[str, Tensor] = {}
        for name in names:
            tensor = self.graph.initializers[name].const_value
            assert tensor is not None
            self._numbers[name] = _moved(torch.from_numpy(np.array(tensor.numpy(), np.float64)), seed)
        others = {node: _with_moved_attributes(node, seed) for node in self.graph.all_nodes()}
        imports = dict(self.graph.opset_imports)
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


def with_moved_constants(model: ir.Model, names: Sequence[str], seed: int) -> Evaluator:
    """Return an evaluator of the graph with each stored constant and float attribute moved by one rounding.

    Equal numbers are moved alike, as they were rounded: an epsilon or attention's scale is mostly one in all layers,
    and what is moved layer by layer cancels in outputs where their common error does not. Each moves as far as rounding
    can have moved it: few numbers of random size, or one, may all be small.
    """
    return _Moved(model, names, seed)


def _evaluated(node: ir.Node, imports: Mapping[str, int], values: Sequence[Tensor | None]) -> list[Tensor]:
    return evaluate_node(node, list(values), opset_imports=imports)


def _with_moved_attributes(node: ir.Node, seed: int) -> ir.Node | None:
    """Return an operator of no graph with its float attributes moved; None where it has none."""
    moved: dict[str, ir.Attr] = {}
    for name, attribute in node.attributes.items():
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
    attributes = [moved.get(name, attribute) for name, attribute in node.attributes.items()]
    return ir.Node(node.domain, node.op_type, read, attributes, outputs=made, version=node.version, name=node.name)


def _moved(value: Tensor, seed: int) -> Tensor:
    """Move floats by the largest rounding, up or down, but for those short enough to be what was written (1, 0.5)."""
    if not value.is_floating_point() or value.numel() == 0:
        return value
    short = value.to(torch.float32).view(torch.int32) & 0xFFF == 0
    return torch.where(short, value, value * (1 + UNIT_ROUNDOFF["float32"] * hashed_noise(value, seed).sign()))
