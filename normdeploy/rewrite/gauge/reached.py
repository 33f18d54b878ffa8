"""The operators whose ties can matter to a map: those that values reach without an absorber between them.

What an absorber reads and what it writes have gauges that are free of each other, so that nothing is asked beyond it:
in a transformer, of most of the graph. What lies beyond stays what it is, whoever reads it. A product is no absorber
for what varies along its rows. That its ties tell (:attr:`.ties.Ties.passed`), or in front of it a map that stays
because what the product writes has one gauge for all rows; the search goes on there. Nor is one without a bias, where
a constant is added to what is made of its result: that one takes a shift, for which the product would need an Add.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from normdeploy.graph import FLOATS, constant_tensor, is_constant
from normdeploy.graph.edit import only_reader
from normdeploy.graph.linear_view import Form, linear_of
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.rewrite.affine.affine_node import is_affine
from normdeploy.rewrite.affine.replacement import reads_shape_only
from normdeploy.rewrite.gauge.rules import rule_of
from normdeploy.rewrite.gauge.rules.oriented_product import product_of
from normdeploy.rewrite.gauge.rules.stored_bias import stored_bias


class Reached:
    """What maps reach in a graph.

    Args:
        graph: the graph.
        around: values from which the search starts, rather than from every map: what hangs together with them.
    """

    def __init__(self, graph: ir.Graph, around: Collection[ir.Value] = ()) -> None:
        self.graph = graph
        self.nodes: set[ir.Node] = set()
        self.products: list[ir.Node] = []
        self.values: set[ir.Value] = set()
        self.reach(around or [value for node in graph if is_affine(node) for value in ends_of(node)])

    def reach(self, values: Iterable[ir.Value | None]) -> bool:
        """Go on from values; tell whether one of them was not reached."""
        queue = [value for value in values if value not in self.values]
        started = bool(queue)
        while queue:
            value = queue.pop()
            if value is None or value in self.values:
                continue
            self.values.add(value)
            if constant_tensor(value) is not None or (value.dtype is not None and value.dtype not in FLOATS):
                continue  # each operator has its own of a constant; sizes and places have no gauge
            producer = value.producer()
            for node in (*(usage.node for usage in value.uses()), *(() if producer is None else (producer,))):
                if node not in self.nodes and node.graph is self.graph and not reads_shape_only(node):
                    self.nodes.add(node)
                    queue += self._beyond(node)
        return started

    def _beyond(self, node: ir.Node) -> Sequence[ir.Value | None]:
        """Return the values whose gauges an operator can tie to others."""
        rule = rule_of(node)
        if rule is None:
            return []
        if is_affine(node):  # it may leave
            return ends_of(node)
        linear = linear_of(node) if rule.absorbs else None
        product = linear is not None and linear.form is Form.PRODUCT
        if rule.absorbs and (linear is None or stored_bias(linear) is None):
            if linear is None or not product:
                return []
            made = product_of(node)
            if made is not None:
                self.products.append(node)
                return [made.result] if made.addend is None and _is_biased_later(made.result) else []
        return [*node.inputs, *node.outputs]


def _is_biased_later(value: ir.Value) -> bool:
    """Tell whether a value is only moved before a constant is added to it, which can take up a shift."""
    reader = only_reader(value)
    while has(reader, Trait.MOVES) and reader is not None and reader.inputs[0] is value:
        value = reader.outputs[0]
        reader = only_reader(value)
    return reader is not None and is_standard(reader, "Add") and any(map(is_constant, reader.inputs))


def ends_of(node: ir.Node) -> list[ir.Value]:
    """Return what an operator has first among its inputs, and what it writes."""
    return [value for value in (*node.inputs[:1], *node.outputs) if value is not None]


def is_one_for_rows(value: ir.Value | None) -> bool:
    """Tell whether a value is written by a norm of each row, which cannot take what varies from row to row."""
    norm = None if value is None else value.producer()
    if not has(norm, Trait.BY_ROW) or value is None or value.shape is None:
        return False
    return norm.attributes.get_int("axis", -1) in (-1, value.shape.rank() - 1)
