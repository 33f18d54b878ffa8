"""What one operator becomes under the gauges of its operands and results: new constants, collected, then applied.

Nothing of the graph changes before :meth:`Edit.apply`, so that a refusal found on the way leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import ExactTensor, Parts, constant_tensor
from normdeploy.graph.edit import constant_of, drop_if_unread, free_name, rename, standing_for, take_place
from normdeploy.rewrite.affine import bytes_moved as cost
from normdeploy.rewrite.affine.affine_node import forget_written
from normdeploy.rewrite.gauge.gauge import Gauge
from normdeploy.rewrite.gauge.ties import Ties


class Refused(Exception):
    """An operator cannot carry the gauges that were found for it.

    Args:
        node: the operator.
        reason: a clause without subject ("the weights of Conv 'head' would overflow float16").
    """

    def __init__(self, node: ir.Node, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


class UndoesZero(Refused):
    """It would have to make of 0 what a map made 0."""


@dataclass(frozen=True)
class Solution:
    """The gauges that were found.

    Args:
        ties: the unknowns.
        scales: value of every S. shifts: value of every T.
        shared: new constants that several operators want alike, by what they are made of.
        takers: who changes a constant, by the new one: the first edit, the old constant, and who reads the new one.
    """

    ties: Ties
    scales: Floats
    shifts: Floats
    shared: dict[Hashable, ir.Value] = field(default_factory=dict)
    takers: dict[Hashable, tuple[Edit, ir.Value, set[ir.Node]]] = field(default_factory=dict)
    _scales: dict[Gauge, Floats] = field(default_factory=dict)
    _shifts: dict[Gauge, Floats] = field(default_factory=dict)
    _identities: dict[Gauge, bool] = field(default_factory=dict)

    def settle_copies(self) -> None:
        """Take back the cost of one copy of each constant that nobody keeps as it was."""
        by_value: dict[ir.Value, list[tuple[Edit, set[ir.Node]]]] = {}
        for edit, value, readers in self.takers.values():
            by_value.setdefault(value, []).append((edit, readers))
        for value, taken in by_value.items():
            users = {usage.node for usage in value.uses()}
            if len(users) > 1 and users <= set().union(*(readers for _, readers in taken)):
                taken[0][0].cost -= cost.copy_bytes(value)

    @cached_property
    def parts(self) -> dict[ir.Node, list[ir.Node]]:
        """The operators that belong to each other one."""
        found: dict[ir.Node, list[ir.Node]] = {}
        for part, whole in self.ties.parts.items():
            found.setdefault(whole, []).append(part)
        return found

    def scale(self, gauge: Gauge) -> Floats:
        """Return s."""
        if gauge not in self._scales:
            self._scales[gauge] = np.asarray(self.scales[gauge.scale_of])
        return self._scales[gauge]

    def shift(self, gauge: Gauge) -> Floats:
        """Return t."""
        if gauge not in self._shifts:
            self._shifts[gauge] = np.asarray(gauge.factor * self.shifts[gauge.shift_of])
        return self._shifts[gauge]

    def is_identity(self, gauge: Gauge | None) -> bool:
        """Tell whether a value stays what it is."""
        if gauge is None:
            return True
        known = self._identities.get(gauge)
        if known is None:
            scaled, shifted = self._moved
            moved = scaled[gauge.scale_of].any() or (shifted[gauge.shift_of] & (gauge.factor != 0)).any()
            known = self._identities[gauge] = not moved
        return known

    @cached_property
    def _moved(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        return self.scales != 1, self.shifts != 0

    def touches(self, node: ir.Node) -> bool:
        """Tell whether anything that an operator reads or writes is computed otherwise."""
        read = (self.ties.of.get(value) for value in node.inputs if value is not None)
        written = [self.ties.of.get(value) for value in node.outputs]
        written += [self.ties.of.get(part.outputs[0]) for part in self.parts.get(node, ())]
        ports = (self.ties.ports.get((node, index)) for index in range(len(node.inputs)))
        return not all(self.is_identity(gauge) for gauge in (*read, *written, *ports))


@dataclass
class Edit:
    """The change of one operator.

    Args:
        node: the operator as it stands.
        at: the gauges.
        cost: bytes that the change adds to the graph's cost.
        absorbs: whether weights or constants of the operator change.
        notes: what the ledger has to say of the change.
    """

    node: ir.Node
    at: Solution
    cost: float = 0.0
    absorbs: bool = False
    notes: list[str] = field(default_factory=list)
    changed: list[ir.Node] = field(default_factory=list)
    made: list[ir.Node] = field(default_factory=list)
    _steps: list[Callable[[], None]] = field(default_factory=list)
    _read: list[ir.Value] = field(default_factory=list)
    _successors: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)

    @property
    def graph(self) -> ir.Graph:
        """The graph that holds the operator."""
        graph = self.node.graph
        assert isinstance(graph, ir.Graph)
        return graph

    @property
    def changes(self) -> bool:
        """Whether the operator becomes another one, and not the same on other values."""
        return bool(self._steps)

    def operand(self, index: int) -> tuple[Floats, Floats]:
        """Return s and t of an input that the rule asked for."""
        gauge = self.at.ties.operand(self.node, index, repeats=(self.node, index) not in self.at.ties.as_one_cell)
        return self.at.scale(gauge), self.at.shift(gauge)

    def result(self, index: int = 0, node: ir.Node | None = None) -> tuple[Floats, Floats]:
        """Return s and t of an output."""
        gauge = self.at.ties.of[(node or self.node).outputs[index]]
        return self.at.scale(gauge), self.at.shift(gauge)

    def constant(
        self,
        compute: Callable[[], Floats],
        shape: Sequence[int],
        dtype: ir.DataType,
        *,
        name: str,
        succeeds: ir.Value | None = None,
        parts: Parts | None = None,
        key: Hashable = None,
    ) -> ir.Value:
        """Return a new constant.

        Args:
            compute: its unrounded value, when it is needed.
            shape: its shape.
            dtype: what it is rounded to in the file.
            name: wanted name; made unique.
            succeeds: the constant whose name it takes over if that one is no longer read.
            parts: computes the same value piece by piece.
            key: what it is made of; another operator that makes the same of it reads the same constant.
        """
        if key is not None and key in self.at.shared:
            return self.at.shared[key]
        tensor = ExactTensor(compute, dtype, tuple(shape), name, parts=parts)
        value = constant_of(tensor, name)

        def register() -> None:
            rename(value, free_name(self.graph, name))
            self.graph.register_initializer(value)

        self._steps.append(register)
        if succeeds is not None:
            self._successors.append((value, succeeds))
        if key is not None:
            self.at.shared[key] = value
        return value

    def read(self, index: int, value: ir.Value | None, node: ir.Node | None = None) -> None:
        """Let an input be another value, absent ones in front of it included."""
        target = node or self.node
        if target not in self.changed:
            self.changed.append(target)

        def replace() -> None:
            if index >= len(target.inputs):
                target.resize_inputs(index + 1)
            old = target.inputs[index]
            if old is not None:
                self._read.append(old)
            target.replace_input_with(index, value)

        self._steps.append(replace)

    def attribute(self, attribute: ir.Attr | str) -> None:
        """Set an attribute, or remove the one of a name."""
        if self.node not in self.changed:
            self.changed.append(self.node)

        def change() -> None:
            if isinstance(attribute, str):
                self.node.attributes.pop(attribute, None)
            else:
                self.node.attributes[attribute.name] = attribute

        self._steps.append(change)

    def composed(self) -> None:
        """Note that an affine map is no longer the one that its author wrote."""
        self._steps.append(lambda: forget_written(self.node))

    def insert_before(self, make: Callable[[ir.Value], ir.Node], like: ir.Value) -> ir.Value:
        """Insert a new operator in front of the edited one; return its result, of the type and shape of ``like``."""
        result = ir.Value(shape=like.shape, type=like.type)

        def insert() -> None:
            node = make(result)
            self.made.append(node)
            self.graph.insert_before(self.node, node)

        self._steps.append(insert)
        return result

    def add_behind(self, compute: Callable[[], Floats], shape: Sequence[int], dtype: ir.DataType) -> None:
        """Add a constant to the operator's result; who read the result reads the sum."""
        node, result = self.node, self.node.outputs[0]
        bias = self.constant(compute, shape, dtype, name=f"{node.name or 'product'}.bias")
        self.cost += cost.bias_bytes(result)

        def insert() -> None:
            add, name = standing_for(node, "Add", [None, bias]), result.name
            add.name = None if node.name is None else f"{node.name}.add"
            take_place(add.outputs[0], result)
            result.name = free_name(self.graph, f"{name}.product")
            add.replace_input_with(0, result)  # which now nothing else reads
            self.made.append(add)
            self.graph.insert_after(node, add)

        self._steps.append(insert)

    def copies(self, value: ir.Value | None, readers: Sequence[ir.Node], key: Hashable = None) -> None:
        """Count the copy of a constant that others than ``readers`` keep as it is; one for all of the same key."""
        self.absorbs = True
        if value is None:
            return
        if key is not None and key in self.at.takers:
            self.at.takers[key][2].update(readers)
            return
        if key is not None:
            self.at.takers[key] = (self, value, set(readers))
        if any(usage.node not in readers for usage in value.uses()):
            self.cost += cost.copy_bytes(value)

    def grows(self, value: ir.Value, size: int) -> None:
        """Count what a constant grows by."""
        tensor = constant_tensor(value)
        if tensor is not None and size > tensor.size:
            self.cost += (size - tensor.size) * cost.itemsize(value)

    def apply(self) -> None:
        """Change the graph."""
        for step in self._steps:
            step()

    def tidy(self) -> None:
        """Drop constants that nothing reads any more; what took their place takes their names."""
        for value in dict.fromkeys(self._read):
            drop_if_unread(value)
        for value, old in self._successors:
            wanted = old.name
            free = wanted and not old.is_initializer() and wanted not in self.graph.initializers and not old.uses()
            if free and value.name != wanted and value.name in self.graph.initializers:
                rename(value, wanted)
