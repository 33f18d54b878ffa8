"""What evaluating a network costs, from the sizes of its operators alone: the unit of the verifier's budgets.

Work is counted in billions of multiply-adds. An element that an operator stores counts as :data:`PER_ELEMENT` of them
(float64 noise is passes over memory), an operator as :data:`PER_OPERATOR` (Python, and torch's own call). What a level
affords is a number of such units, so that what is checked depends on the network and never on the machine or its load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.graph import Evaluator
from normdeploy.graph.evaluate import Hook
from normdeploy.graph.linear_view import linear_of
from normdeploy.graph.traits import is_standard
from normdeploy.verification.bounds.accuracy import reduction_length
from normdeploy.verification.sides.flat_values import Feeds, run_evaluator

SINGLE = 0.4
"""A run in float32, by torch or by the runtime, over one in float64."""

NOISY, NOISY_SINGLE = 2.0, 1.0
"""A run with rounding noise over one in float64, if it is in float64 itself and if it is in float32."""

UNPROVEN = 16.0
"""Where algebra does not confirm a file for every input, samples are all there is: so many times as much of them."""

DECIDING = 0.5
"""Work per operator, at any level but the thorough one, that feeding sites directly may take, and searching for inputs
after it: what decides between a pass and "not exercised", besides what the level affords."""

PER_ELEMENT = 40.0
PER_OPERATOR = 1e6


class Counter:
    """A hook for :class:`normdeploy.graph.Evaluator` that adds up the work of a run; nodes of bodies count as they run.

    Attributes:
        products: multiply-adds. elements: stored by all operators. operators: how many ran.
    """

    def __init__(self, feeds: Feeds) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {name: tuple(np.shape(a)) for name, a in feeds.items()}
        self.products = self.elements = self.operators = 0

    def __call__(self, node: ir.Node, results: list[Tensor]) -> None:
        """Count one operator's results."""
        for output, result in zip(node.outputs, results, strict=False):
            self._shapes[str(output.name)] = tuple(result.shape)
        self.operators += 1
        if node.op_type == "Constant":
            return
        self.elements += sum(result.numel() for result in results)
        if results and (linear_of(node) is not None or is_standard(node, "Einsum")):
            self.products += results[0].numel() * reduction_length(node, self._shapes, tuple(results[0].shape))

    def forget(self, guessed: Iterable[ir.Value]) -> None:
        """Take the shapes of results for unknown."""
        for value in guessed:
            self._shapes.pop(str(value.name), None)

    @property
    def work(self) -> float:
        """The run's work in billions of multiply-adds."""
        return (self.products + PER_ELEMENT * self.elements + PER_OPERATOR * self.operators) / 1e9


@dataclass(frozen=True)
class Counted:
    """One counted run.

    Args:
        work: in billions of multiply-adds. operators: how many ran. outputs: what it returned, in order.
    """

    work: float
    operators: int
    outputs: list[Array] = field(default_factory=list)


def counted_by_sizes(graph: ir.Graph, feeds: Feeds) -> Counted:
    """Return the work of evaluating a network once by the sizes that its graph states.

    Where it states none, a result is taken to be as large as what its operator reads, and its shape for unknown; what
    computes shapes is no work.

    Args:
        graph: of the network. feeds: its inputs.
    """
    named: dict[str, int] = {}
    known: dict[ir.Value | None, list[int]] = {}
    for value in graph.inputs:
        known[value] = list(np.shape(feeds.get(str(value.name), ())))
        for dim, size in zip(value.shape or (), known[value], strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value:
                named[dim.value] = size
    counter = Counter(feeds)
    for node in graph:
        read = None if is_standard(node, "Shape", "Size") else next((v for v in node.inputs if v in known), None)
        guessed: list[ir.Value] = []
        for value in node.outputs:
            sizes = _sizes(value, named)
            if sizes is not None:
                known[value] = sizes
            elif read is not None:
                known[value] = known[read]
                guessed.append(value)
        counter(node, [torch.empty(known[value], device="meta") for value in node.outputs if value in known])
        counter.forget(guessed)
    return Counted(counter.work, counter.operators)


def _sizes(value: ir.Value, named: Mapping[str, int]) -> list[int] | None:
    """Return a value's sizes, with some for the dimensions that have a name; None where one is unknown."""
    if value.shape is None:
        return None
    found = [dim if isinstance(dim, int) else named.get(str(dim.value)) for dim in value.shape]
    sizes = [size for size in found if size is not None]
    return sizes if len(sizes) == len(found) else None


def counted(evaluator: Evaluator, feeds: Feeds, *, hook: Hook | None = None) -> Counted:
    """Return the work of evaluating a network once.

    Args:
        evaluator: of the network's graph. feeds: its inputs. hook: sees each operator's results besides.

    Raises:
        GraphError: it cannot be evaluated.
    """
    counter = Counter(feeds)

    def both(node: ir.Node, results: list[Tensor]) -> None:
        counter(node, results)
        if hook is not None:
            hook(node, results)

    outputs = run_evaluator(evaluator, feeds, hook=both)
    return Counted(counter.work, counter.operators, list(outputs.values()))


@dataclass
class Effort:
    """Work that a verification may spend on what it could also leave out.

    Args:
        limit: all of it, in billions of multiply-adds. once: the work of one evaluation of the example in float64.
        size: elements of the example's inputs: larger inputs cost in proportion.
        deciding: work that each thing may take besides which decides between a pass and "not exercised".
    """

    limit: float
    once: float = 0.0
    size: int = 1
    deciding: float = math.inf
    spent: float = field(default=0.0, init=False)

    def spend(self, evaluations: float, feeds: Feeds | None = None) -> None:
        """Count some evaluations of the network, optional or not.

        Args:
            feeds: their inputs; the example's size by default.
        """
        self.spent += evaluations * self.work(feeds)

    def work(self, feeds: Feeds | None = None) -> float:
        """Return the work of one evaluation in float64 on some inputs; on the example's by default."""
        return self.once * self._scale(feeds)

    def affords(self, share: float = 1.0) -> bool:
        """True while less than a share of the limit is spent."""
        return self.spent < share * self.limit

    def last(self) -> float:
        """Return what may be spent in all by the end of something that decides and begins now."""
        return self.spent + self.deciding

    def _scale(self, feeds: Feeds | None) -> float:
        return 1.0 if feeds is None else max(1.0, elements(feeds) / max(self.size, 1))


def elements(feeds: Feeds) -> int:
    """Return the number of elements of all inputs."""
    return sum(int(np.size(a)) for a in feeds.values())
