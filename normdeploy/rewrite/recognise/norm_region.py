"""Where a statistics-computing norm may stand: regions of the graph that depend on one value and on constants only.

A region grows around a *seed*, a node that reduces (ReduceMean, ReduceL2, ...) or is a norm already. Its input ``x`` is
an ancestor of the seed through which all of the seed's data passes; the values that depend on ``x`` and constants only
are its *closure*. The closure holds analytic operators only (no comparison, no branch, no clamp but ``max(., 0)`` of a
statistic), so that agreement at random points is not a coincidence of the points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.graph import FLOATS
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import bodies_of
from normdeploy.rewrite.recognise.norm_grammar import (
    AT_ZERO,
    CONTRACTIONS,
    REDUCTIONS,
    acts_at_zero,
    is_plain,
    is_root,
    keeps_precision,
    reached,
    rounds,
    takes_root,
)

MAX_CLOSURE = 96
"""Nodes that a closure may hold; a LayerNorm in its longest known spelling has 26."""

MAX_CHAIN = 8
"""How far above a seed the region's input is looked for."""


@dataclass(frozen=True)
class Region:
    """A value, all that depends on it and on constants only, and what the latter takes.

    Args:
        x: the region's input.
        seed: the reduction or norm it grew around.
        nodes: the closure in graph order.
        side: nodes that compute shapes and constant expressions the closure reads, in graph order.
        shape_nodes: the Shape and Size nodes among them that read values outside; they are fed, not run.
        candidates: outputs of ``nodes`` that depend on ``seed`` and have the type and rank of ``x``, in graph order.
    """

    x: ir.Value
    seed: ir.Node
    nodes: tuple[ir.Node, ...]
    side: tuple[ir.Node, ...]
    shape_nodes: tuple[ir.Node, ...]
    candidates: tuple[ir.Value, ...]

    def between(self, *wanted: ir.Value) -> list[ir.Node]:
        """Return the closure's nodes that lead to some values, in graph order."""
        needed = set(wanted)
        found: list[ir.Node] = []
        for node in reversed(self.nodes):
            if any(output in needed for output in node.outputs):
                found.append(node)
                needed.update(value for value in node.inputs if value is not None and value is not self.x)
        found.reverse()
        return found

    def freed(self, y: ir.Value) -> list[ir.Node]:
        """Return the nodes that nothing reads any more once ``y`` is computed otherwise, in graph order."""
        dead: set[ir.Node] = set()
        for node in reversed(self.between(y)):
            others = [output for output in node.outputs if output is not y]
            if all(_read_by_only(output, dead) for output in others):
                dead.add(node)
        return [node for node in self.nodes if node in dead]

    def extends(self, nearer: ir.Value, y: ir.Value) -> bool:
        """Tell whether nothing but the way to ``y`` reads ``nearer`` or what lies between the two."""
        before, inside = set(self.between(nearer)), set(self.between(y))
        if not before < inside or not _read_by_only(nearer, inside):
            return False
        return all(_read_by_only(v, inside) for node in inside - before for v in node.outputs if v is not y)


class GraphRegions:
    """Finds seeds and regions in one graph.

    Args:
        graph: in topological order; constants are initializers (see ``weights.EvaluateConstants``).
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.order = {node: index for index, node in enumerate(graph)}
        self._side: dict[ir.Value, bool] = {}

    def seeds(self) -> list[ir.Node]:
        """Return the nodes that compute statistics of data, in graph order."""
        return [node for node in self.graph if self._is_seed(node)]

    def regions(self, seed: ir.Node) -> Iterator[Region]:
        """Yield the regions around a seed, the one with the nearest input first."""
        for x in self._inputs_above(seed):
            region = self._grow(x, seed)
            if region is not None:
                yield region

    def chain(self, x: ir.Value, nodes: list[ir.Node]) -> Region | None:
        """Return given nodes as a region from ``x`` to the first output of the last of them.

        Args:
            x: the region's input.
            nodes: in graph order; what they read besides must depend on constants and shapes only.

        Returns:
            None where a node reads other data.
        """
        known = {x, *(output for node in nodes for output in node.outputs)}
        if any(v is not None and v not in known and not self.is_side(v) for node in nodes for v in node.inputs):
            return None
        side, shape_nodes = self._side_nodes(tuple(nodes), known)
        return Region(x, nodes[-1], tuple(nodes), side, shape_nodes, (nodes[-1].outputs[0],))

    def _is_seed(self, node: ir.Node) -> bool:
        if not node.inputs or node.inputs[0] is None:
            return False
        if node.op_type in CONTRACTIONS:
            return self._is_weighted_sum(node)
        return (is_standard(node, *REDUCTIONS) or has(node, Trait.NORMALIZES)) and not self.is_side(node.inputs[0])

    def _is_weighted_sum(self, node: ir.Node) -> bool:
        """Tell whether a product with a constant vector may stand for a mean."""
        constants = [value for value in node.inputs if value is not None and self.is_side(value)]
        data = [value for value in node.inputs if value is not None and not self.is_side(value)]
        if node.op_type == "Einsum" and not constants:
            return bool(data) and len(set(data)) == 1
        if len(data) != 1 or len(constants) != 1 or constants[0].shape is None:
            return False
        dims = [dim for dim in constants[0].shape if dim != 1]
        return len(dims) <= 1

    def is_side(self, value: ir.Value) -> bool:
        """Tell whether a value depends on constants and shapes only."""
        stack = [value]
        while stack:
            current = stack[-1]
            if current in self._side:
                stack.pop()
                continue
            producer = current.producer()
            if current.is_initializer() and not current.is_graph_input():
                self._side[current] = True
            elif producer is None or producer not in self.order or bodies_of(producer):
                self._side[current] = False
            elif producer.op_type in ("Constant", "Shape", "Size"):
                source = producer.inputs[0] if producer.inputs else None
                self._side[current] = source is None or source.shape is not None
            elif has(producer, Trait.RANDOM):
                self._side[current] = False
            else:
                operands = [item for item in producer.inputs if item is not None]
                unknown = [item for item in operands if item not in self._side]
                if unknown:
                    stack.extend(unknown)
                    continue
                self._side[current] = all(self._side[item] for item in operands)
            stack.pop()
        return self._side[value]

    def _inputs_above(self, seed: ir.Node) -> Iterator[ir.Value]:
        data = {value for value in seed.inputs if value is not None and not self.is_side(value)}
        if len(data) != 1:
            return
        x = data.pop()
        for _ in range(MAX_CHAIN):
            if x.dtype in FLOATS and x.shape is not None:
                yield x
            node = x.producer()
            if node is None or node not in self.order or not is_plain(node):
                return
            data = {value for value in node.inputs if value is not None and not self.is_side(value)}
            if len(data) != 1 or not self._admits(node, data):
                return
            x = data.pop()

    def _admits(self, node: ir.Node, known: set[ir.Value]) -> bool:
        """Tell whether a node may be part of a closure whose values are ``known``."""
        if not is_standard(node):
            return False
        for value in node.inputs:
            if value is not None and value not in known and not self.is_side(value):
                return False
        if node.op_type in CONTRACTIONS:
            return self._is_weighted_sum(node)
        if node.op_type == "Cast":
            return keeps_precision(node)
        if node.op_type in AT_ZERO:
            return acts_at_zero(node, known)
        return is_plain(node) or node.op_type in REDUCTIONS

    def unshaped(self, seed: ir.Node) -> list[ir.Node]:
        """Return the nodes from a seed to the first root behind it, where the seed reads a value of unknown rank.

        Such a seed has no region; nothing can be said about what it computes. Empty where the rank is known or no root
        is taken.
        """
        x = seed.inputs[0]
        if x is None or x.shape is not None or seed.op_type in CONTRACTIONS:
            return []
        closure, _ = self._closure(x, seed)
        nodes = tuple(sorted(closure, key=self.order.__getitem__))
        behind = reached(nodes, seed)
        root = next((node for node in nodes if takes_root(node) and behind.intersection(node.inputs)), None)
        return [] if root is None else [node for node in nodes if self.order[node] <= self.order[root]]

    def _grow(self, x: ir.Value, seed: ir.Node) -> Region | None:
        closure, known = self._closure(x, seed)
        if seed not in closure or not any(is_root(node) for node in closure):
            return None
        nodes = tuple(sorted(closure, key=self.order.__getitem__))
        side, shape_nodes = self._side_nodes(nodes, known)
        candidates = tuple(value for value in _downstream(nodes, seed) if _same_kind(value, x))
        return Region(x, seed, nodes, side, shape_nodes, candidates) if candidates else None

    def _closure(self, x: ir.Value, seed: ir.Node) -> tuple[dict[ir.Node, None], set[ir.Value]]:
        """Return the nodes that depend on ``x`` and constants only, and the values known in them."""
        closure: dict[ir.Node, None] = {}
        known: set[ir.Value] = {x}
        waiting = {node for node in x.consumers() if node in self.order}
        seen: set[ir.Node] = set()
        while waiting and len(closure) < MAX_CLOSURE:
            node = min(waiting, key=self.order.__getitem__)
            waiting.discard(node)
            seen.add(node)
            if node is not seed and (rounds(node, x) or not self._admits(node, known)):
                continue
            if node is seed and any(v is not None and v not in known and not self.is_side(v) for v in node.inputs):
                continue
            closure[node] = None
            for output in node.outputs:
                known.add(output)
                waiting.update(user for user in output.consumers() if user in self.order and user not in seen)
        return closure, known

    def _side_nodes(
        self, nodes: tuple[ir.Node, ...], known: set[ir.Value]
    ) -> tuple[tuple[ir.Node, ...], tuple[ir.Node, ...]]:
        run: set[ir.Node] = set()
        fed: set[ir.Node] = set()
        stack = [value for node in nodes for value in node.inputs if value is not None and value not in known]
        while stack:
            node = stack.pop().producer()
            if node is None or node in run or node in fed:
                continue
            if node.op_type in ("Shape", "Size"):
                fed.add(node)
            else:
                run.add(node)
                stack.extend(value for value in node.inputs if value is not None)
        return tuple(sorted(run, key=self.order.__getitem__)), tuple(sorted(fed, key=self.order.__getitem__))


def _read_by_only(value: ir.Value, nodes: set[ir.Node]) -> bool:
    return not value.is_graph_output() and all(user in nodes for user in value.consumers())


def _downstream(nodes: tuple[ir.Node, ...], seed: ir.Node) -> list[ir.Value]:
    behind = reached(nodes, seed)
    return [value for node in nodes for value in node.outputs if value in behind]


def _same_kind(value: ir.Value, x: ir.Value) -> bool:
    if value.dtype != x.dtype or value.shape is None or x.shape is None or len(value.shape) != len(x.shape):
        return False
    return all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in zip(value.shape, x.shape, strict=True)
    )
