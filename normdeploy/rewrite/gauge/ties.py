"""What operators state about the gauges of a graph's values: who ties which cells, and how."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import FLOATS, constant_tensor
from normdeploy.graph.operator_inputs import optional
from normdeploy.rewrite.affine.axes import Dims, dims_of
from normdeploy.rewrite.gauge.equations.expression_rows import Ints, Rows
from normdeploy.rewrite.gauge.equations.system import Mark, System
from normdeploy.rewrite.gauge.gauge import Gauge

Marks = tuple[Mark, Mark]
"""What holds of scales and of shifts at some time."""


@dataclass(frozen=True)
class Tie:
    """Who states a tie or a restriction.

    Args:
        node: the operator; None for the graph itself.
        clause: what it asks, to follow its name in a sentence ("needs a shift of 0"); empty for a mere tie.
        subject: who asks, where it is not an operator ("the graph output 'y'").
    """

    node: ir.Node | None
    clause: str = ""
    subject: str = ""


class Unfollowed(Exception):
    """An operator's rule cannot follow it where it stands.

    Args:
        clause: why, to follow its name in a sentence ("has a weight that is computed at run time").
    """

    def __init__(self, clause: str = "") -> None:
        super().__init__(clause)
        self.clause = clause


def known_dims(value: ir.Value, clause: str = "") -> Dims:
    """Return a value's dimensions.

    Raises:
        Unfollowed: its rank is not known.
    """
    dims = dims_of(value)
    if dims is None:
        raise Unfollowed(clause)
    return dims


@dataclass
class Ties:
    """The gauges of a graph's values, and what ties them.

    Args:
        graph: the graph.
        of: the gauge of each value that has one. ports: those of constant operands, by operator and input.
        parts: operators that belong to another one: the Add of a bias behind a MatMul.
        pads: Pads of zeros whose gauge shall be one number for all ("uniform"), rather than have no shift; or Pads that
            restrict nothing ("loose"), since the channels may happen to send what is padded to one number; Clips at 0
            that shall be no Relus (either); and layers whose bias, stored in integers, may take shifts of whole steps
            ("whole steps").
        stiff: why an operator that has a rule cannot be followed where it stands.
        unscaled, unshifted: why an operator writes without a scale, without a shift. above_zero: why a scale is to be.
        asked: the operands, by operator and input, whose gauge a rule asked for.
        moved: what operators move where (:mod:`.numbered_elements`).
        leaving: the equations of scales and of shifts by which maps disappear, as far as they were asked.
        halved: of maps that stay, what was stated to be nothing: "scale", "shift", or both.
        repeated: the axis along which a value's gauge begins again, as often as only the run tells: heads that were
            merged with the samples. as_one_cell: gauges of such values where an operator reads them, by operator and
            input, which are one number along that axis.
        nodes: the operators that are asked. passed: what products write that pass on what varies along their rows.
    """

    graph: ir.Graph
    scales: System = field(default_factory=lambda: System(multiplicative=True))
    shifts: System = field(default_factory=lambda: System(multiplicative=False))
    of: dict[ir.Value, Gauge] = field(default_factory=dict)
    ports: dict[tuple[ir.Node, int], Gauge] = field(default_factory=dict)
    parts: dict[ir.Node, ir.Node] = field(default_factory=dict)
    stiff: dict[ir.Node, str] = field(default_factory=dict)
    unscaled: dict[ir.Node, str] = field(default_factory=dict)
    unshifted: dict[ir.Node, str] = field(default_factory=dict)
    above_zero: dict[ir.Node, str] = field(default_factory=dict)
    asked: set[tuple[ir.Node, int]] = field(default_factory=set)
    nodes: list[ir.Node] = field(default_factory=list)
    passed: list[ir.Value] = field(default_factory=list)
    pads: Mapping[ir.Node, str] = field(default_factory=dict)
    moved: dict[Hashable, list[Ints]] = field(default_factory=dict)
    leaving: dict[ir.Node, tuple[Rows, Rows]] = field(default_factory=dict)
    halved: set[tuple[ir.Node, str]] = field(default_factory=set)
    repeated: dict[ir.Value, int] = field(default_factory=dict)
    as_one_cell: dict[tuple[ir.Node, int], Gauge] = field(default_factory=dict)

    @cached_property
    def order(self) -> dict[ir.Node, int]:
        """Where each operator stands in the graph."""
        return {node: index for index, node in enumerate(self.graph)}

    def mark(self) -> Marks:
        """Return what holds now, to which :meth:`rollback` returns."""
        return self.scales.mark(), self.shifts.mark()

    def rollback(self, marks: Marks) -> None:
        """Take back what was stated since; marks after these are void."""
        self.scales.rollback(marks[0])
        self.shifts.rollback(marks[1])

    # -- making gauges

    def fresh(self, cells: Sequence[int], *, slack: bool = False) -> Gauge:
        """Return a gauge of unknowns of its own.

        Args:
            cells: size along each axis; of size 0 one gets a cell all the same, so that it has a first one.
            slack: an operator with weights writes the value, and takes up what others ask for.
        """
        size = tuple(max(count, 1) for count in cells)
        return Gauge(self.scales.new(size, slack=slack), self.shifts.new(size, slack=slack), np.ones(size))

    def fresh_scale(self, cells: Sequence[int]) -> Gauge:
        """Return a gauge of which the scales are unknowns of their own, without a shift."""
        size = tuple(max(count, 1) for count in cells)
        return Gauge(self.scales.new(size), np.zeros(size, np.int64), np.zeros(size))

    def fresh_shift(self, scaled: Gauge) -> Gauge:
        """Return a gauge that has the scales of another one, and of which the shifts are unknowns of their own."""
        return Gauge(scaled.scale_of, self.shifts.new(scaled.cells), np.ones(scaled.cells))

    def operand(
        self,
        node: ir.Node,
        index: int,
        cells: Sequence[int] = (),
        *,
        grows: bool = False,
        repeats: bool = False,
        clause: str = "",
    ) -> Gauge:
        """Return the gauge of an input.

        Args:
            node: the operator.
            index: of its inputs.
            cells: the cells wanted of a constant, aligned at the last axis; one cell by default.
            grows: the constant may become larger where it is broadcast.
            repeats: the rule knows of :attr:`repeated`; for any other one what begins again is one cell.
            clause: why the operator cannot be followed where the input has no gauge.

        Returns:
            a computed value's own gauge; for a float constant a gauge of this input alone, since what the operator
            reads there can be computed anew.

        Raises:
            Unfollowed: the input has no gauge (no float, unknown rank, absent).
        """
        value = optional(node, index)
        self.asked.add((node, index))
        tensor = constant_tensor(value)
        if value is not None and tensor is None and value in self.of:
            if repeats or not self.repeats(value):
                return self.of[value]
            if (node, index) not in self.as_one_cell:
                why = Tie(node, "treats alike what is merged along an axis whose size is not known")
                self.as_one_cell[node, index] = self.along(self.of[value], [self.repeated[value]], why)
            return self.as_one_cell[node, index]
        if tensor is None or tensor.dtype not in FLOATS:
            raise Unfollowed(clause)
        if (node, index) not in self.ports:
            shape = tuple(tensor.shape.numpy())
            if grows:
                shape = (*(1,) * (len(cells) - len(shape)), *shape)
                shape = tuple(
                    max(pair) for pair in zip(shape, ((1,) * len(shape) + tuple(cells))[len(cells) :], strict=True)
                )
            wanted = ((1,) * len(shape) + tuple(cells))[len(cells) :]
            size = tuple(own if own > 1 and asked > 1 else 1 for own, asked in zip(shape, wanted, strict=True))
            self.ports[node, index] = self.fresh(size, slack=True)
        return self.ports[node, index]

    def repeats(self, value: ir.Value) -> bool:
        """Tell whether a value's gauge begins again along an axis."""
        return value in self.repeated and self.of[value].cells[self.repeated[value]] > 1

    # -- ties; none of these fails before a map is asked to go

    def refuse(self, node: ir.Node, clause: str) -> None:
        """Note why an operator lets nothing pass ("computes in bodies of its own")."""
        self.stiff[node] = clause

    def along(self, gauge: Gauge, axes: Sequence[int], tie: Tie) -> Gauge:
        """Tie the cells along axes, and return the gauge with size 1 there."""
        first = gauge.first(axes)
        if first is not gauge:
            self.same(gauge, first, tie)
        return first

    def along_scale(self, gauge: Gauge, axes: Sequence[int], tie: Tie) -> None:
        """Tie the scales of the cells along axes."""
        self.same_scale(gauge, gauge.first(axes), tie)

    def along_shift(self, gauge: Gauge, axes: Sequence[int], tie: Tie) -> None:
        """Tie the shifts of the cells along axes."""
        self.same_shift(gauge, gauge.first(axes), tie)

    def same(self, left: Gauge, right: Gauge, tie: Tie) -> None:
        """Tie two gauges of one rank, cell by cell."""
        self.same_scale(left, right, tie)
        self.same_shift(left, right, tie)

    def same_scale(self, left: Gauge, right: Gauge, tie: Tie) -> None:
        """State s_left = s_right."""
        self.scales.state(Rows.of((left.scale_of, 1.0), (right.scale_of, -1.0), constant=1.0), tie)

    def same_shift(self, left: Gauge, right: Gauge, tie: Tie) -> None:
        """State t_left = t_right."""
        self.shifts.state(self.shift_rows(left, right, 1.0, 0.0), tie)

    @staticmethod
    def scale_rows(left: Gauge, right: Gauge, scale: Floats | float) -> Rows:
        """Return s_left = scale * s_right."""
        return Rows.of((left.scale_of, 1.0), (right.scale_of, -1.0), constant=1.0 / np.asarray(scale, np.float64))

    @staticmethod
    def shift_rows(left: Gauge, right: Gauge, scale: Floats | float, shift: Floats | float) -> Rows:
        """Return t_left = scale * t_right + shift."""
        moved = -np.asarray(scale) * right.factor
        return Rows.of((left.shift_of, left.factor), (right.shift_of, moved), constant=-np.asarray(shift))

    def product(self, result: Gauge, factors: Sequence[tuple[Gauge, float]], tie: Tie) -> None:
        """State s_result = product of s ** exponent."""
        terms = [(gauge.scale_of, np.float64(-exponent)) for gauge, exponent in factors]
        self.scales.state(Rows.of((result.scale_of, np.float64(1)), *terms, constant=1.0), tie)

    def narrowed(self, gauge: Gauge) -> Gauge:
        """Return the gauge with size 1 along axes on which what was stated leaves it one: products multiply cells."""
        if gauge.scale_of.size == 1:
            return gauge
        found = self.scales.reduce(Rows.of((gauge.scale_of, 1.0), constant=1.0))
        parts = found.unknowns, found.coefficients, found.constant
        scales = [array.reshape(*gauge.cells, -1) for array in parts]
        for axis in range(gauge.rank):
            first = [array.take([0], axis) for array in scales]
            apart = (one != whole for one, whole in zip(first, scales, strict=True))
            if not gauge.varies(axis, scale=False) and not any(differs.any() for differs in apart):
                gauge, scales = gauge.first([axis]), first
        return gauge

    def alike(self, left: Sequence[Gauge], right: Sequence[Gauge], tie: Tie) -> bool:
        """State product of s on the left = product of s on the right; tell whether that was not known."""
        sides = (left, 1.0), (right, -1.0)
        rows = Rows.of(*((one.scale_of, power) for side, power in sides for one in side), constant=1.0)
        told = len(rows) > 0 and bool(self.scales.reduce(rows).coefficients.any())
        if told:
            self.scales.state(rows, tie)
        return told

    def total(self, result: Gauge, terms: Sequence[tuple[Gauge, float]], tie: Tie) -> None:
        """State t_result = sum of factor * t."""
        parts = [(result.shift_of, result.factor), *((gauge.shift_of, -f * gauge.factor) for gauge, f in terms)]
        self.shifts.state(Rows.of(*parts, constant=0.0), tie)

    def no_shift(self, gauge: Gauge, tie: Tie) -> Gauge:
        """State t = 0, and return the gauge without its shift."""
        self.shifts.state(Rows.of((gauge.shift_of, gauge.factor), constant=0.0), tie)
        if tie.node is not None and tie.clause:
            self.unshifted[tie.node] = tie.clause
        return gauge.unshifted

    def no_scale(self, gauge: Gauge, tie: Tie) -> Gauge:
        """State s = 1, and return the gauge without its scale."""
        self.scales.state(Rows.of((gauge.scale_of, np.float64(1)), constant=1.0), tie)
        if tie.node is not None and tie.clause:
            self.unscaled[tie.node] = tie.clause
        return gauge.unscaled

    def pinned(self, gauge: Gauge, tie: Tie) -> None:
        """State s = 1, t = 0."""
        self.scales.state(Rows.of((gauge.scale_of, 1.0), constant=1.0), tie)
        self.shifts.state(Rows.of((gauge.shift_of, gauge.factor), constant=0.0), tie)

    def positive(self, gauge: Gauge, tie: Tie) -> None:
        """State s > 0."""
        self.scales.state(Rows.of((gauge.scale_of, np.float64(1)), constant=1.0), tie, positive=True)
        if tie.node is not None and tie.clause:
            self.above_zero[tie.node] = tie.clause
