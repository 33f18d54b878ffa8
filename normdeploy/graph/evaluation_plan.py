"""Which operators a run of a graph evaluates, in order: worked out once for the runs that ask for the same values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from normdeploy.graph.fixed_values import fixed_nodes
from normdeploy.graph.walk import bodies_of

_MOST = 16
"""Plans of one evaluator that are kept."""


@dataclass(frozen=True, slots=True)
class Step:
    """An operator of a run.

    Args:
        node: the operator. inputs, outputs: its own when the plan was made.
        reads: the names that it reads, those that its bodies read included.
        fixed: it reads constants, and nothing else.
    """

    node: ir.Node
    inputs: Sequence[ir.Value | None]
    outputs: Sequence[ir.Value]
    reads: list[str]
    fixed: bool


class Plans:
    """The plans of an evaluator. A graph may be changed between runs: what was planned of it then is planned anew."""

    def __init__(self) -> None:
        self._made: dict[tuple[ir.Graph, tuple[str, ...], frozenset[str]], tuple[list[ir.Node], list[Step]]] = {}

    def of(self, graph: ir.Graph, wanted: Sequence[str], overridden: Collection[str]) -> list[Step]:
        """Return the steps of a graph that some names depend on.

        Args:
            graph: the graph, or a body. wanted: the names. overridden: names whose values are given.
        """
        key, nodes = (graph, tuple(wanted), frozenset(overridden)), list(graph)
        made = self._made.get(key)
        if made is not None and made[0] == nodes and all(_stands(step) for step in made[1]):
            return made[1]
        if len(self._made) >= _MOST:
            self._made.clear()
        steps = needed(nodes, wanted, overridden, fixed_nodes(nodes).by_constants)
        self._made[key] = nodes, steps
        return steps


def _stands(step: Step) -> bool:
    return step.node.inputs is step.inputs and step.node.outputs is step.outputs


def needed(
    among: Sequence[ir.Node], wanted: Iterable[str], overridden: Collection[str], fixed: Collection[ir.Node] = ()
) -> list[Step]:
    """Return those of some nodes that names depend on, in order.

    Args:
        among: the nodes, in order. wanted: the names. overridden: names that need no producer.
        fixed: nodes that read nothing but constants.
    """
    required = {name for name in wanted if name not in overridden}
    steps: list[Step] = []
    for node in reversed(among):
        for output in node.outputs:
            if output.name in required:
                names = read_names(node)
                steps.append(Step(node, node.inputs, node.outputs, names, bool(names) and node in fixed))
                required.update([name for name in names if name not in overridden] if overridden else names)
                break
    steps.reverse()
    return steps


def read_names(node: ir.Node) -> list[str]:
    """Return what a node reads, its subgraphs' outer values included."""
    names = [value.name for value in node.inputs if value is not None and value.name]
    for inner in bodies_of(node):
        own = {value.name for value in inner.inputs} | set(inner.initializers)
        for child in inner:
            names += [name for name in read_names(child) if name not in own]
            own |= {output.name for output in child.outputs}
        names += [value.name for value in inner.outputs if value.name and value.name not in own]
    return names
