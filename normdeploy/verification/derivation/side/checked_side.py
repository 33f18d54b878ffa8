"""One of the two graphs as the checker sees it: constants in float64, sizes at a few assignments, types, copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array, Shape
from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, constant_tensor, evaluate_node
from normdeploy.graph.inlining import inline_functions
from normdeploy.graph.operator_evaluation import as_constant, as_operand, opset_of
from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import of_fixed_sizes
from normdeploy.verification.derivation.side.beyond import decides
from normdeploy.verification.derivation.side.body_graphs import (
    Body,
    bodies_of,
    fed,
    opened,
    stacked,
    states_of,
    turns_of,
)
from normdeploy.verification.derivation.side.following import Following, with_lengths
from normdeploy.verification.derivation.side.kept_constants import KeptConstants
from normdeploy.verification.derivation.side.narrowing import as_stored
from normdeploy.verification.derivation.side.operands import inputs_of, is_sequence, kind
from normdeploy.verification.derivation.side.result_sizes import Sizes
from normdeploy.verification.derivation.side.result_types import result_type
from normdeploy.verification.derivation.side.settled import is_open
from normdeploy.verification.derivation.side.tables_by_size import partly_read, picked

_SHAPES = frozenset({"Shape", "Size"})


class Side:
    """A graph.

    Args:
        model: the graph; functions are inlined in a copy.
        assignments: shape of each input (or the input itself, as sizes), by name, at each of a few assignments.
        beside: the other graph, if it is known: operators of the same sizes are not evaluated twice.

    Attributes:
        followed: the assignments at which most of the graph could be followed; others are left out.
        runs: each value at each of these: floats as sizes alone.
        one_size: whether the graph is run at one assignment alone, as its inputs declare.
        opened: values whose shapes depend on what is fed; their shapes here are those where zeros are, or lengths.
    """

    def __init__(
        self, model: ir.Model, assignments: Sequence[Mapping[str, Shape | Tensor]], *, beside: Side | None = None
    ) -> None:
        if model.functions:
            model = model.clone()
            inline_functions(model)
        self.graph = model.graph
        self.one_size = of_fixed_sizes(model.graph) and len(assignments) == 1
        self.imports = dict(model.graph.opset_imports)
        self._sizes: Sizes = Sizes(self.imports, None if beside is None else beside._sizes)
        self.nodes = list(model.graph)
        self.places = {node: place for place, node in enumerate(self.nodes)}
        self._constants: set[ir.Value] = set()
        self._sized: set[ir.Value] = set()
        self._folded = KeptConstants()
        self._types: dict[ir.Value, ir.DataType] = {v: v.dtype for v in self.graph.inputs if v.dtype is not None}
        self._tensors: dict[ir.Value, ir.TensorProtocol | None] = {}
        self._shapes: dict[ir.Value, tuple[Shape, ...]] = {}
        self.steps: dict[ir.Value, Any] = {}  # what :func:`.affine_laws.step_of` found
        self.behind: dict[ir.Value, list[Any]] = {}  # what :func:`.affine_laws.back` found
        self.decided: dict[ir.Value, bool] = {}  # what :func:`.beyond.decides` found
        self.twins: dict[ir.Value, tuple[ir.Value, ...]] | None = None  # what :func:`.twins.twins_of` found
        self.cut, self.cut_known = set[ir.Value](), False
        self.opened: set[ir.Value] = set()
        for node in self.nodes:
            self._classify(node)
        self._resized: bool = len(assignments) > 1 or (beside is not None and beside._resized)
        self._partly: set[ir.Value] = set()
        follow = Following(self, self._sizes, self._constants, self._sized, self._with_bodies)
        runs = [self._fullest(follow, shapes) for shapes in assignments]
        most = max((len(run) for _, run in runs), default=0)
        self.followed = [shapes for shapes, run in runs if len(run) == most]
        self.runs = [run for _, run in runs if len(run) == most]
        if self._resized:
            self._partly = partly_read(self.nodes, self._sized, self._stays)

    def _fullest(
        self, follow: Following, shapes: Mapping[str, Shape | Tensor]
    ) -> tuple[Mapping[str, Shape | Tensor], dict[ir.Value, Tensor]]:
        """Return an assignment and each value at it; where shapes depend on integers, with those that say most."""
        best = shapes, follow.at(shapes)
        made = [value for node in self.nodes for value in node.outputs if value.uses()] if self.opened else []
        if any(value not in best[1] and not self.is_constant(value) for value in made):
            tried = [(lengths, follow.at(lengths)) for lengths in with_lengths(self.graph, shapes)]
            best = max([best, *tried], key=lambda pair: len(pair[1]))
        return best

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return what a constant is stored as (:func:`normdeploy.graph.constant_tensor`), looked up once."""
        if value is None:
            return None
        if value not in self._tensors:
            self._tensors[value] = constant_tensor(value)
        return self._tensors[value]

    def opset(self, node: ir.Node) -> int:
        """Return the version of the operator set that gives a node its meaning."""
        return opset_of(node, self.imports)

    def is_constant(self, value: ir.Value | None) -> bool:
        """Tell whether a value is the same whatever is fed."""
        return value is not None and (value in self._constants or self.tensor(value) is not None)

    def is_sized(self, value: ir.Value) -> bool:
        """Tell whether a value follows from the sizes of the inputs alone, and from all of each constant in it."""
        return (value in self._sized and value not in self._partly) or self.is_constant(value)

    def follows(self, value: ir.Value) -> bool:
        """Tell whether a value follows from the sizes of the inputs alone."""
        return value in self._sized or self.is_constant(value)

    def picks(self, node: ir.Node) -> bool:
        """Tell whether sizes that vary decide which part of a constant an operator reads."""
        return node.outputs[0] in self._partly and picked(node, self._stays)

    def _stays(self, value: ir.Value) -> bool:
        """Tell whether a value is a constant, or the same at each assignment of sizes."""
        return self.is_constant(value) or (len(self.runs) > 1 and self.fixed(value) is not None)

    def type_of(self, value: ir.Value) -> ir.DataType | None:
        """Return what numbers of a value are stored in."""
        tensor = self.tensor(value)
        return tensor.dtype if tensor is not None else self._types.get(value)

    def stored_in(self, value: ir.Value | None) -> ir.DataType | None:
        """Return what a constant's numbers are stored in, where they are stored and at most moved; None otherwise."""
        while value is not None:
            tensor, node = self.tensor(value), value.producer()
            if tensor is not None:
                return tensor.dtype
            if not self.is_sized(value) or not has(node, Trait.MOVES):
                return None
            value = node.inputs[0]
        return None

    def constant(self, value: ir.Value | None) -> Array | None:
        """Return a constant, floats in float64; None where it is none, or cannot be computed."""
        if value is None or not self.is_constant(value) or is_sequence(value):
            return None
        known = self._folded.get(value)
        if known is not None:
            return known
        tensor = self.tensor(value)
        try:
            found = self._fold(value) if tensor is None else as_constant(tensor, torch.float64)
        except (GraphError, TypeError, ValueError):
            return None
        if tensor is not None and tensor.dtype == ir.DataType.STRING:
            return None
        array = found.numpy()
        self._folded.keep(value, array)
        return array

    def _fold(self, value: ir.Value) -> Tensor:
        node = value.producer()
        assert node is not None
        operands: list[Tensor | None] = []
        for index, operand in enumerate(inputs_of(node)):
            if operand is None or is_sequence(operand):
                operands.append(None if operand is None else self._fold(operand))
                continue
            typed = kind(node) == "CastLike" and index == 1  # its type alone is read
            array = None if typed and self.type_of(operand) in FLOATS else self.constant(operand)
            if typed and array is None:
                array = self._one_of(operand)
            if array is None:
                raise GraphError(f"constant {operand.name!r} cannot be computed")
            operands.append(as_operand(array))
        found = evaluate_node(node, as_stored(node, operands, self.type_of), opset_imports=self.imports)
        return found[value.index() or 0]

    def _one_of(self, value: ir.Value) -> Array | None:
        dtype = self.type_of(value)
        return None if dtype is None else np.zeros(1, np.float64 if dtype in FLOATS else dtype.numpy())

    def shapes(self, value: ir.Value) -> tuple[Shape, ...]:
        """Return a value's shape at each assignment; () where it is not known."""
        if value not in self._shapes:
            tensor, found = self.tensor(value), [run.get(value) for run in self.runs]
            computed = self.constant(value) if tensor is None else None  # runs leave constants out
            shape = tensor.shape.numpy() if tensor is not None else None if computed is None else computed.shape
            if shape is not None:
                self._shapes[value] = (tuple(map(int, shape)),) * max(len(self.runs), 1)
            else:
                known = [tuple(t.shape) for t in found if t is not None]
                self._shapes[value] = tuple(known) if len(known) == len(found) else ()
        return self._shapes[value]

    def shapes_by_name(self) -> dict[str, tuple[Shape, ...]]:
        """Return the shapes of what operators compute; without those that hang on what is fed, and sequences."""
        made = [value for node in self.nodes for value in node.outputs if value not in self.opened]
        return {str(v.name): self.shapes(v) for v in made if not self.is_constant(v) and not is_sequence(v)}

    def numbers(self, value: ir.Value) -> tuple[Array, ...] | None:
        """Return what a value that follows from sizes is at each assignment."""
        constant = self.constant(value)
        if constant is not None:
            return (constant,) * max(len(self.runs), 1)
        if not self.is_sized(value) or not self.runs:
            return None
        found = [run.get(value) for run in self.runs]
        if any(t is None or t.device.type == "meta" for t in found):
            return None
        return tuple(t.numpy() for t in found if t is not None)

    def fixed(self, value: ir.Value | None) -> Array | None:
        """Return a constant, or what is the same at each assignment of those that follow from sizes."""
        found = None if value is None or decides(self, value) else self.numbers(value)
        if found is None:
            return None
        others = [a for a in found[1:] if a is not found[0]]  # a constant is one array at all of them
        if any(a.shape != found[0].shape or not np.array_equal(a, found[0]) for a in others):
            return None
        return found[0]

    @property
    def assignments(self) -> int:
        """How many assignments of sizes the graph could be followed at."""
        return len(self.runs)

    def _classify(self, node: ir.Node) -> None:
        inputs = [value for value in inputs_of(node) if value is not None]
        if is_open(self, node):
            self.opened.update(node.outputs)
        if node.op_type != "Constant" and not bool(bodies_of(node)) and not has(node, Trait.RANDOM):
            moved = inputs[:1] if kind(node) == "CastLike" and self.type_of(inputs[-1]) is not None else inputs
            if inputs and all(self.is_constant(value) for value in moved):
                self._constants.update(node.outputs)
            elif (kind(node) in _SHAPES and inputs[0] not in self.opened) or (inputs and all(map(self.follows, moved))):
                self._sized.update(node.outputs)
        for index, output in enumerate(node.outputs):
            found = result_type(node, index, inputs_of(node), self.type_of, self.opset(node))
            if found is not None:
                self._types[output] = found

    def given(self, node: ir.Node, body: Body, known: Mapping[ir.Value, Tensor]) -> dict[str, Tensor] | None:
        """Return what a body is fed at one assignment, as sizes; None where that is not known.

        Args:
            node: the operator. body: of it. known: what is not constant at that assignment.
        """
        return fed(node, body, self._with_constants(node, known))

    def _with_constants(self, node: ir.Node, known: Mapping[ir.Value, Tensor]) -> dict[ir.Value, Tensor]:
        """Return what is known at one assignment, and the constants that an operator reads: runs leave these out."""
        found = dict(known)
        for value in inputs_of(node):
            array = None if value is None or value in found else self.constant(value)
            if array is not None and value is not None:
                whole = as_operand(array)
                found[value] = whole.to("meta") if self.type_of(value) in FLOATS else whole
        return found

    def _with_bodies(self, node: ir.Node, known: Mapping[ir.Value, Tensor]) -> list[Tensor]:
        """Return results of If, Loop or Scan as sizes; [] where they are not known, or a state changes its size."""
        results: list[list[Tensor]] = []
        known = self._with_constants(node, known)
        for graph in bodies_of(node).values():
            body = opened(graph, self.imports, self.type_of)
            given = fed(node, body, known)
            run = {} if given is None else Side(body.model, [given]).runs[0]
            results.append([run[value] for value in body.model.graph.outputs if value in run])
            if given is None or len(results[-1]) < len(body.model.graph.outputs):
                return []
        kept = results[0][1:] if kind(node) == "Loop" else results[0]
        states = [known[value].shape for value in states_of(node) if value is not None]
        if any(a.shape != b.shape for other in results for a, b in zip(other, results[0], strict=True)):
            return []
        if any(first != last.shape for first, last in zip(states, kept, strict=False)):
            return []
        if kind(node) == "If":
            return kept
        return [*kept[: len(states)], *stacked(node, kept[len(states) :], turns_of(node, known))]
