"""New nodes beside the old ones they replace: built, checked in float64 on random inputs, then put in their place.

What merging branches and norming tables changes is decided first; then the new nodes are built beside the old ones,
both are evaluated, and the old ones leave the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
from torch import Tensor

from normdeploy.array_types import Floats
from normdeploy.graph import Parts, constant_tensor
from normdeploy.graph.edit import put_exact, rename, standing_for, take_out, take_place
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.rewrite_context import RewriteContext


@dataclass
class Region:
    """New nodes beside the old ones that they will replace.

    Args:
        graph: the graph that holds both.
    """

    graph: ir.Graph
    before: list[ir.Node] = field(default_factory=list)
    after: list[ir.Node] = field(default_factory=list)
    pairs: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)
    _successors: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def replace(self, old: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Node:
        """Make a node in place of ``old``: other inputs, the same attributes, as many outputs."""
        node = ir.Node(
            old.domain,
            old.op_type,
            list(inputs),
            list(old.attributes.values()),
            overload=old.overload,
            version=old.version,
            outputs=[ir.Value(shape=value.shape, type=value.type) for value in old.outputs],
            name=old.name,
            metadata_props=dict(old.metadata_props),
        )
        return self.adopt(node, after=old)

    def insert(self, op_type: str, inputs: Sequence[ir.Value | None], *, after: ir.Node, like: ir.Value) -> ir.Node:
        """Make one more standard operator behind ``after``; its result has the type and shape of ``like``."""
        node = standing_for(after, op_type, inputs, like=like)
        node.name = None if after.name is None else f"{after.name}.{op_type.lower()}"
        self.graph.insert_after(after, node)
        self.after.append(node)
        return node

    def adopt(self, node: ir.Node, *, after: ir.Node) -> ir.Node:
        """Insert a ready-made node behind ``after``."""
        self.graph.insert_after(after, node)
        self.after.append(node)
        return node

    def constant(
        self,
        compute: Callable[[], Floats],
        shape: Sequence[int],
        dtype: ir.DataType,
        *,
        name: str,
        succeeds: ir.Value | None = None,
        parts: Parts | None = None,
    ) -> ir.Value:
        """Register a constant computed in float64 on demand.

        Args:
            compute: returns the unrounded value.
            shape: its shape.
            dtype: what it is rounded to in the file.
            name: wanted name; made unique.
            succeeds: the constant whose name it takes over if that one is no longer read.
            parts: computes the same value piece by piece.
        """
        value = put_exact(self.graph, compute, shape, dtype, name, parts)
        if succeeds is not None:
            self._successors[value] = succeeds
        return value

    def same(self, old: ir.Value, new: ir.Value) -> None:
        """State that ``new`` equals ``old`` and shall replace it everywhere."""
        self.pairs.append((old, new))

    def commit(self, context: RewriteContext, rule: str, site: str, feeds: Mapping[ir.Value, Tensor]) -> None:
        """Check the region in float64, then put the new nodes in the place of the old.

        Args:
            context: makes the check.
            rule: the rewrite's name, for the error.
            site: module path or node name, for the error.
            feeds: inputs of the check, as small as shows everything; what is not among them is drawn in its own size.

        Raises:
            RewriteError: the region's results changed.
        """
        self.before, self.after = in_order(self.before), in_order(self.after)
        outside = _read_from_outside(self.before, self.after)
        inputs = list(dict.fromkeys([*outside, *feeds]))
        context.check_region(rule, site, self.before, self.after, inputs, self.pairs, feeds=feeds)
        for old, new in self.pairs:
            take_place(new, old)
        take_out(self.before)
        for new, old in self._successors.items():
            name = old.name
            if name and not old.is_initializer() and name not in self.graph.initializers and new.is_initializer():
                rename(new, name)

    def discard(self) -> None:
        """Take the new nodes and constants out again."""
        take_out(self.after)


def reads_shape_only(node: ir.Node) -> bool:
    """Tell whether an operator looks at its input's shape only, which no affine map changes."""
    return is_standard(node, "Shape", "Size")


def in_order(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return nodes with each behind those whose results it reads."""
    pending = dict.fromkeys(nodes)
    made = {output: node for node in pending for output in node.outputs}
    order: list[ir.Node] = []
    done: set[ir.Node] = set()
    for start in pending:
        stack = [start]
        while stack:
            node = stack[-1]
            waits = [made[value] for value in node.inputs if value is not None and value in made]
            waits = [item for item in waits if item not in done]
            if waits:
                stack.extend(waits)
                continue
            stack.pop()
            if node not in done:
                done.add(node)
                order.append(node)
    return order


def _read_from_outside(*groups: Sequence[ir.Node]) -> list[ir.Value]:
    made = {output for nodes in groups for node in nodes for output in node.outputs}
    found: dict[ir.Value, None] = {}
    for nodes in groups:
        for node in nodes:
            for value in node.inputs:
                if value is not None and value not in made and constant_tensor(value) is None:
                    found[value] = None
    return list(found)
