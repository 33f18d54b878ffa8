"""New values of graphs with bodies have names of their own, around a body as within it.

onnx_ir names what has no name graph by graph, so that a body and the graph around it could both come to have a
``val_4``, which onnxruntime refuses. Names are looked through after each pass; one that a new value has, and another
value of the model too, is given up for a free one. The source's values keep theirs.
"""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.graph.edit import free_name, rename, share_names
from normdeploy.graph.walk import graphs_of


class NamesOfScopes:
    """The values of a model with bodies that have their names; of one without bodies nothing is looked at.

    Args:
        model: as it came.
    """

    def __init__(self, model: ir.Model) -> None:
        self._named: set[ir.Value] | None = None
        if len(graphs_of(model)) > 1 or model.functions:
            self._named = {value for graph in graphs_of(model) for value in _values(graph)}

    def settle(self, model: ir.Model) -> None:
        """Rename what came to have a name that another value has."""
        if self._named is None:
            return
        there = [(value, graph) for graph in graphs_of(model) for value in _values(graph)]
        taken = {value.name for value, _ in there if value in self._named}
        found = {value for value, _ in there}
        for value, graph in there:
            if value in self._named:
                continue
            if value.name in taken:
                share_names(model)
                rename(value, free_name(graph, str(value.name)))
            taken.add(value.name)
        self._named = found


def _values(graph: ir.Graph) -> list[ir.Value]:
    """Return what a graph is given, holds and computes."""
    computed = [value for node in graph for value in node.outputs]
    return list(dict.fromkeys([*graph.inputs, *graph.initializers.values(), *computed]))
