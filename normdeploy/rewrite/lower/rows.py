"""Values as rows: [..., K] under the shape [count, K], the same memory, and the Reshapes there and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from normdeploy.graph import constant_tensor
from normdeploy.graph.edit import free_name, put_constant, take_out, take_place
from normdeploy.graph.traits import is_standard
from normdeploy.rewrite.carried_values import Carried

Lead = tuple[int | None, ...]
"""Leading sizes, None where dynamic."""


def renames(node: ir.Node) -> bool:
    """Tell whether a node is a Reshape to numbers, none of which is a size of what it reads."""
    target = constant_tensor(node.inputs[1]) if is_standard(node, "Reshape") else None
    return target is not None and 0 not in target.numpy()


def before_reshapes(value: ir.Value) -> ir.Value:
    """Return what holds the elements of a value before Reshapes renamed them."""
    while (node := value.producer()) is not None and is_standard(node, "Reshape") and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def rows_there(value: ir.Value, lead: Lead, width: int) -> ir.Value | None:
    """Return what holds a value of known sizes as rows already; None where nothing does.

    Args:
        value: which. lead, width: its leading sizes and its last one.
    """
    first = before_reshapes(value)
    return first if all(lead) and first.shape == [math.prod(size or 0 for size in lead), width] else None


class Before:
    """Makes operators in front of another one.

    Args:
        graph: what they belong to. place: the other one.
    """

    def __init__(self, graph: ir.Graph, place: ir.Node) -> None:
        self.graph, self._place = graph, place
        self._stem = str(place.outputs[0].name)

    def add(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        role: str,
        name: str | None = None,
        attributes: Sequence[ir.Attr] = (),
        *,
        domain: str = "",
    ) -> ir.Value:
        """Add an operator; return its result, named by its role."""
        result = ir.Value(name=free_name(self.graph, f"{self._stem}_{role}"), type=self._place.outputs[0].type)
        node = ir.Node(domain, kind, inputs, attributes, outputs=[result], name=name or result.name)
        node.metadata_props.update(self._place.metadata_props)
        self.graph.insert_before(self._place, node)
        return result

    def integers(self, role: str, numbers: Sequence[int]) -> ir.Value:
        """Add a constant."""
        return put_constant(self.graph, numbers, f"{self._stem}_{role}")


@dataclass
class Rows:
    """Which values of a graph there are as rows, as operators are written over them in the graph's order.

    Args:
        carried: is told what rows stand for; None where nobody asks.
    """

    carried: Carried | None = None
    _known: dict[ir.Value, tuple[ir.Value, ir.Value]] = field(default_factory=dict)
    """A value: as rows, and a value of its leading sizes."""

    @property
    def shaped(self) -> list[ir.Value]:
        """The values that there are as rows."""
        return [value for value, (rows, _) in self._known.items() if rows is not value]

    def of(self, value: ir.Value, lead: Lead, width: int, new: Before) -> ir.Value:
        """Return a value as rows, through a Reshape where there are none yet.

        Args:
            value: which. lead, width: its leading sizes and its last one. new: makes the Reshape.
        """
        if value in self._known:
            return self._known[value][0]
        flat = value if len(lead) == 1 else rows_there(value, lead, width)
        if flat is None:
            flat = new.add("Reshape", [before_reshapes(value), new.integers("rows", [-1, width])], "in_rows")
            flat.type = value.type
        if all(lead):
            flat.shape = ir.Shape([math.prod(size or 0 for size in lead), width])
        self._known[value] = flat, value
        return flat

    def give_back(self, rows: ir.Value, old: ir.Value, source: ir.Value, lead: Lead, width: int, new: Before) -> None:
        """Let whoever reads a value read what was computed as rows, behind a Reshape where there are several sizes.

        Args:
            rows: what was computed. old: the value, whose name the Reshape's result takes.
            source: of the same leading sizes, :meth:`of` rows that are known. lead, width: sizes of the result.
            new: makes operators in front of the one that made it.
        """
        sized = self._known[source][1]
        if all(lead):
            rows.shape = ir.Shape([math.prod(size or 0 for size in lead), width])
        shaped = rows if len(lead) == 1 else new.add("Reshape", [rows, self._back(sized, lead, width, new)], "shaped")
        shaped.type = old.type
        self._known[shaped] = rows, sized
        take_place(shaped, old)
        if self.carried is not None and shaped is not rows:
            self.carried.same(rows, shaped)
        self._join_reshapes_behind(shaped, rows)

    def _join_reshapes_behind(self, value: ir.Value, rows: ir.Value) -> None:
        """Let each Reshape of a value that asks for none of its sizes read the rows, or be them."""
        for node, place in list(value.uses()):
            if place != 0 or value is rows or not renames(node):
                continue
            made = node.outputs[0]
            if rows.shape is not None and rows.shape == made.shape and not made.is_graph_output():
                if self.carried is not None:
                    self.carried.same(rows, made)
                take_place(rows, made, named=False)
                take_out([node])
            else:
                node.replace_input_with(0, rows)

    def _back(self, sized: ir.Value, lead: Lead, width: int, new: Before) -> ir.Value:
        """Return the sizes to come back to."""
        if lead.count(None) <= 1:
            return new.integers("whole", [-1 if size is None else size for size in (*lead, width)])
        ends = ir.AttrInt64("start", 0), ir.AttrInt64("end", -1)
        sizes = new.add("Shape", [sized], "lead", None, ends)
        last = new.integers("width", [width])
        back = new.add("Concat", [sizes, last], "sizes", None, [ir.AttrInt64("axis", 0)])
        sizes.type = back.type = ir.TensorType(ir.DataType.INT64)
        return back
