"""Decisions inside a network: a comparison, a rounding to integers, the order of a TopK.

Where a margin is within rounding, either outcome is right: such elements of the outputs are ties and are left out. They
are found with noise of the criterion's own reach in which equal values get unequal noise, so that exact ties (scores
that saturate at 1) fall either way. S itself is measured with every decision held as the clean run makes it: a decision
that turns says nothing of rounding.

Arithmetic whose result the format holds makes no error at all (IEEE 754 rounds +, -, x, / and the root correctly): the
positions 0, 1, 2, ... halved and floored are the same everywhere, and no ties. In front of a decision such results get
no noise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.graph import constant64, constant_tensor
from normdeploy.graph.evaluate import StandIn
from normdeploy.graph.fixed_values import fixed_nodes
from normdeploy.graph.operator_evaluation import evaluate_node
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import bodies_of, nodes_in
from normdeploy.verification.bounds.accuracy import rounds
from normdeploy.verification.sides.exact_agreement import is_float
from normdeploy.verification.sides.flat_values import Feeds

if TYPE_CHECKING:
    from normdeploy.verification.bounds.noise import NoisyGraph

_TIE_RUNS = 24
_TIE_AMPLIFICATION = 24.0
"""A decision is a tie if noise of the criterion's own reach (8 times 3 S) can turn it."""

MOST_TIES = 0.25
"""Share of an output's elements up to which ties are left out one by one; beyond, the output is not judged at all in
that family, since what is left would be judged by accident."""

_STEPPED = ("QuantizeLinear", "DynamicQuantizeLinear")
"""Their steps are results, judged as such."""

_FLOAT32 = 2.0**-24

_WRITTEN = 2.0**-12
"""Constants of so few digits were written (0, 1, 2.5), not computed."""

_ROUNDED_ONCE = Trait.ROUNDED_ONCE | Trait.CONVERTS


def decides(graph: ir.Graph, computed: Collection[str] = ()) -> bool:
    """True where a graph takes decisions that rounding can turn: not by places and sizes alone, as a causal mask is.

    Nor by numbers that are computed from constants without an error, as the halves of 0, 1, 2, ... are.

    Args:
        computed: names of its inputs that are rounded.
    """
    deciding = [node for node in nodes_in(graph) if has(node, Trait.DECIDES)]
    if any(is_standard(node, "TopK") for node in deciding):
        return True  # of equal numbers any may come first
    constant = fixed_nodes(graph).by_constants.intersection(deciding)
    deciding = [node for node in deciding if node not in constant or not _is_exact(node)]
    fed = {value for value in graph.inputs if value.name not in computed}
    queue = [value for node in deciding for value in node.inputs if value is not None]
    seen = set(queue)
    for value in queue:
        node = value.producer()
        if value.dtype is None or value.dtype.is_floating_point():
            tensor = constant_tensor(value)
            if tensor is not None and tensor.size > 1:
                return True  # a table may be of computed numbers
            if tensor is None and value not in fed and (node is None or rounds(node) or bodies_of(node)):
                return True
        elif node is not None and bodies_of(node):
            return True
        read = [v for v in (() if node is None else node.inputs) if v is not None and v not in seen]
        queue += read
        seen.update(read)
    return False


def _is_exact(node: ir.Node) -> bool:
    """Tell whether what a decision by constants alone is taken on is computed without an error in float32."""
    known: dict[ir.Value, Tensor] = {}

    def value_of(value: ir.Value) -> Tensor | None:
        stored = constant64(value)
        if stored is not None:
            number = torch.from_numpy(stored)
            computed = number.is_floating_point() and not representable(number, _WRITTEN).all()
            return None if computed else number  # by the module, which has others in float64
        made = value.producer()
        if value not in known and made is not None:
            read = [None if one is None else value_of(one) for one in made.inputs]
            if any(one is not None and found is None for one, found in zip(made.inputs, read, strict=True)):
                return None
            known.update(zip(made.outputs, evaluate_node(made, read, opset_imports=_opsets(made)), strict=False))
        found = known.get(value)
        inexact = found is not None and found.is_floating_point() and not representable(found, _FLOAT32).all()
        return None if inexact else found

    try:
        return all(value is None or value_of(value) is not None for value in node.inputs)
    except GraphError:
        return False


def _opsets(node: ir.Node) -> Mapping[str, int]:
    graph = node.graph
    return dict(graph.opset_imports) if isinstance(graph, ir.Graph) else {}


def held_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes of the main graph whose decisions can be held."""
    return [node for node in graph if has(node, Trait.DECIDES) and node.op_type not in _STEPPED]


def arithmetic_before(nodes: Sequence[ir.Node]) -> tuple[set[ir.Node], set[str]]:
    """Return the correctly rounded operators through which alone numbers reach decisions, and the initializers there.

    Args:
        nodes: the deciding nodes.
    """
    found: set[ir.Node] = set()
    tables: set[str] = set()
    queue, seen = [v for node in nodes for v in node.inputs], set[ir.Value]()
    while queue:
        value = queue.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is None:
            tables |= {str(value.name)} if value.is_initializer() else set()
        elif has(node, _ROUNDED_ONCE) or not rounds(node):
            found |= {node} if has(node, _ROUNDED_ONCE) else set()
            queue += node.inputs
    return found, tables


def representable(values: Tensor, roundoff: float) -> Tensor:
    """Return where a format with unit roundoff ``roundoff`` holds a float64 exactly (its exponents left aside)."""
    mantissa = torch.frexp(values).mantissa / roundoff
    return mantissa == mantissa.round()


def held(nodes: Sequence[ir.Node], clean: Mapping[str, Sequence[Tensor]]) -> dict[ir.Node, StandIn]:
    """Return what decides as a clean run did.

    Args:
        nodes: the deciding nodes. clean: their results in the clean run, by name of the first output.
    """
    return {node: _holding(node, clean[str(node.outputs[0].name)]) for node in nodes}


def _holding(node: ir.Node, results: Sequence[Tensor]) -> Callable[[Sequence[Tensor | None]], list[Tensor]]:
    if node.op_type != "TopK":
        return lambda _: list(results)
    axis = node.attributes.get_int("axis", -1)

    def top(inputs: Sequence[Tensor | None]) -> list[Tensor]:
        x = inputs[0]
        assert x is not None
        return [torch.take_along_dim(x, results[1], axis), results[1]]

    return top


def shuffling(nodes: Sequence[ir.Node], seed: int) -> dict[ir.Node, StandIn]:
    """Return TopKs that order exactly equal values at random: torch promises no order, ONNX that of the indices."""
    generator = torch.Generator().manual_seed(seed)
    return {node: _shuffled(node, generator) for node in nodes if node.op_type == "TopK"}


def _shuffled(node: ir.Node, generator: torch.Generator) -> Callable[[Sequence[Tensor | None]], list[Tensor]]:
    axis = node.attributes.get_int("axis", -1)

    def top(inputs: Sequence[Tensor | None]) -> list[Tensor]:
        x = inputs[0]
        assert x is not None
        order = torch.randperm(x.shape[axis], generator=generator)
        values, places = evaluate_node(node, [x.index_select(axis, order), *inputs[1:]])
        return [values, order[places]]

    return top


class Ties:
    """The elements of each output that turn under noise as large as the bound, found run by run.

    They only become more: an output of which too many turned is not judged, whatever further runs would show.

    Args:
        noisy: the reference's graph; None where there is none, and nothing is known to turn.
        feeds: the inputs. truth: outputs on them. roundoff, floor: of the precision judged. seed: of the noise.

    Attributes:
        runs: how many were made. found: the elements of each output that turned in one of them.
    """

    def __init__(
        self,
        noisy: NoisyGraph | None,
        feeds: Feeds,
        truth: Sequence[Array],
        *,
        roundoff: float,
        floor: float,
        seed: int,
    ) -> None:
        self._noisy, self._feeds, self._truth = noisy, feeds, truth
        self._roundoff, self._floor, self._seed = roundoff, floor, seed
        self.runs = 0
        self.found = [np.zeros(np.shape(t), bool) for t in truth]

    def too_many(self, index: int) -> bool:
        """Tell whether so much of an output turned that it is not judged."""
        return bool(self.found[index].sum() > MOST_TIES * max(self.found[index].size, 4))

    def look(self, spread: Sequence[Array]) -> bool:
        """Make one more run; False where all were made.

        Args:
            spread: S of each output.
        """
        if self._noisy is None or self.runs >= _TIE_RUNS:
            return False
        self.runs += 1
        one = self._seed + 7919 * self.runs
        outputs = self._noisy.run(
            self._feeds,
            roundoff=_TIE_AMPLIFICATION * self._roundoff,
            floor=self._floor,
            seed=one,
            distinct=True,
            exact=self._roundoff,
            decisions=shuffling(self._noisy.deciding, one),
        ).values()
        for mask, y, n, s in zip(self.found, self._truth, outputs, spread, strict=True):
            if y.shape != n.shape:
                mask[...] = True
            elif is_float(y):
                # A jump far beyond proportional noise is another branch taken, not rounding
                typical = _typical(s) + self._roundoff * _typical(y)
                with np.errstate(invalid="ignore"):
                    mask |= np.abs(n - y) > 100 * _TIE_AMPLIFICATION * typical
            else:
                mask |= n != y
        return True


def _typical(values: Array) -> float:
    """Return the median size of what is not 0: a Relu makes most elements 0, which say nothing of the others' size."""
    sizes = np.abs(values[values != 0])
    return float(np.median(sizes)) if sizes.size else 0.0
