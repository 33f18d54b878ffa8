"""Evaluate, once and in float64, every part of the graph that depends on constants only.

This is what turns a convolution weight behind ``weight_norm``, ``spectral_norm`` or weight standardization into a plain
constant, whatever its size, and the ``sqrt(running_var + eps)`` of a hand-written norm into a vector. Shapes of values
whose dimensions are static count as constants, and so do the elements of a shape that are.

A node is evaluated when

1. all its inputs are constants (initializers that the caller cannot override, or results of evaluated nodes);
2. it is deterministic, has no body graph, and belongs to the standard operators;
3. it does not quantize or dequantize (an evaluated DequantizeLinear would undo the quantization of a weight);
4. none of its results is a graph output (those stay nodes, so that the graph keeps its form);
5. no result is much larger than the constants it is made of (an Expand of one number to an activation's size stays);
6. a decision (floor, comparison, float to integer) comes out the same in float32 and in float64: where rounding
   decides, the graph's own arithmetic must, so the node stays;
7. it does not merely move a large constant that the running graph reads too (the transposed embedding of a tied head):
   that would store the same numbers twice.

Floating-point results become exact constants with one rounding (:class:`normdeploy.graph.ExactTensor`); a large one
remembers its expression in place of its float64 value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, ExactTensor, constant_tensor
from normdeploy.graph.edit import drop_unread, take_place
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.graph.walk import nodes_of
from normdeploy.rewrite.weights.conditions import (
    EXACT,
    FREE_ELEMENTS,
    GROWTH,
    depends_on_constants_only,
    promised_elements,
    rounding_may_decide,
    storable,
)
from normdeploy.rewrite.weights.expression import Expressions, Step
from normdeploy.rewrite.weights.lifted_constants import lift_constants
from normdeploy.rewrite.weights.shape_computations import KnownShapes, integer_constant

HELD_ELEMENTS = 1 << 14
"""Results up to this many elements are held in float64; larger ones are recomputed from their expression."""


class EvaluateConstants(ir.passes.InPlacePass):
    """Replace every constant expression by its value (conditions in the module's docstring).

    Names are kept: the value that was computed becomes an initializer of the same name.

    Attributes:
        integers: names of the integers that the last run evaluated.
        told: whether it made sizes known of what a Reshape writes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.integers, self.told = set[str](), False

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Evaluate all constant expressions of the main graph and of its body graphs."""
        lifted = lift_constants(nodes_of(model))
        walk = _Walk(model.opset_imports)
        for node in nodes_of(model):
            walk.visit(node)
        walk.replace()
        self.integers, self.told = walk.integers, walk.shapes.told
        # a dead Shape or a dead weight would still count as a reader of its operand
        cleaned = drop_unread(model)
        return ir.passes.PassResult(model, lifted or walk.modified or cleaned)


class _Walk:
    """One walk over the nodes of a model, operands before users."""

    def __init__(self, opset_imports: Mapping[str, int]) -> None:
        self.opset_imports = opset_imports
        self.expressions = Expressions()
        self.shapes = KnownShapes()
        self.results: dict[ir.Value, torch.Tensor] = {}
        self.source_elements: dict[ir.Value, int] = {}
        self.unread: dict[ir.Value, int] = {}
        self.evaluated: list[ir.Node] = []
        self.shape_nodes: dict[ir.Node, Array] = {}
        self.integers = set[str]()
        self.modified = False

    def visit(self, node: ir.Node) -> None:
        """Evaluate ``node`` if the conditions hold; let go of large operands that nothing reads any more."""
        self._visit(node)
        for value in node.inputs:
            if value in self.unread:
                self.unread[value] -= 1
                if not self.unread[value]:
                    self.results[value] = _hollow(self.results[value].shape)

    def _visit(self, node: ir.Node) -> None:
        if not is_standard(node):
            return
        known = self.shapes.visit(node, self._integer_constant)
        if self.shapes.static_reshape(node):
            self.modified = True
        if any(output.is_graph_output() for output in node.outputs):
            return
        if known is not None and (node.op_type in ("Shape", "Size") or not self._evaluated_operands(node)):
            self._accept_shape(node, known)
        elif depends_on_constants_only(node, self.results):
            self._evaluate(node)

    def _evaluated_operands(self, node: ir.Node) -> bool:
        return bool(node.inputs) and all(value is None or self._is_constant(value) for value in node.inputs)

    def _is_constant(self, value: ir.Value) -> bool:
        return value in self.results or constant_tensor(value) is not None

    def _integer_constant(self, value: ir.Value) -> Array | None:
        if value in self.results:
            result = self.results[value].numpy()
            return None if result.dtype.kind == "f" else result
        return integer_constant(value)

    def _accept_shape(self, node: ir.Node, known: Array) -> None:
        output = node.outputs[0]
        self.expressions.leaves[output] = ir.Tensor(known, name=output.name)
        self.results[output] = torch.from_numpy(known.copy())
        self.source_elements[output] = max(1, known.size)
        self.evaluated.append(node)
        self.shape_nodes[node] = known

    def _doubles(self, node: ir.Node) -> bool:
        """Tell whether a node moves a large initializer that something at run time reads as it is."""
        source = node.inputs[0] if has(node, Trait.PERMUTES) else None
        if source is None or source in self.results or source.const_value is None:
            return False
        if source.const_value.size <= FREE_ELEMENTS:
            return False
        others = (usage.node for usage in source.uses() if usage.node is not node)
        return any(not depends_on_constants_only(other, self.results) for other in others)

    def _evaluate(self, node: ir.Node) -> None:
        if self._doubles(node):
            return
        operands: list[torch.Tensor | None] = []
        sources = 0
        for value in node.inputs:
            if value is None:
                operands.append(None)
                continue
            if value in self.results:
                sources += self.source_elements[value]
            else:
                tensor = value.const_value
                if tensor is None or not (tensor.dtype in FLOATS or tensor.dtype in EXACT):
                    return
                self.expressions.leaves[value] = tensor
                sources += tensor.size
            # the result of what only moves is known without its numbers, which are not loaded
            operands.append(self._operand(value, hollow=has(node, Trait.PERMUTES) and value is node.inputs[0]))
        if promised_elements(node) > max(FREE_ELEMENTS, GROWTH * sources):
            return
        step = Step.of(node, self.opset_imports)
        try:
            results = step.evaluate(operands, torch.float64)
        except GraphError:
            return  # an operator without a float64 reference stays a node
        if any(output.uses() and output not in results for output in node.outputs):
            return
        results = {output: result for output, result in results.items() if output.uses()}
        limit = max(FREE_ELEMENTS, GROWTH * sources)
        if any(not storable(output, result) or result.numel() > limit for output, result in results.items()):
            return
        self.expressions.steps.update(dict.fromkeys(results, step))
        if rounding_may_decide(node, operands, results) and not self._decision_is_safe(results):
            for output in results:
                del self.expressions.steps[output]
            return
        for output, result in results.items():
            if result.numel() > HELD_ELEMENTS and output.dtype in FLOATS:  # integers are not evaluated again
                self.unread[output] = len(output.uses())
        self.results.update(results)
        self.source_elements.update(dict.fromkeys(results, sources))
        self.evaluated.append(node)

    def _operand(self, value: ir.Value, *, hollow: bool) -> torch.Tensor:
        """Return an operand's value; a large one's mere shape where ``hollow`` says that this is enough."""
        if value in self.results:
            result = self.results[value]
            if _is_hollow(result) and not hollow:
                return self.expressions.run(value, torch.float64)
            return result
        tensor = self.expressions.leaves[value]
        if hollow and tensor.dtype in FLOATS and tensor.size > HELD_ELEMENTS:
            return _hollow(tensor.shape.numpy())
        return self.expressions.leaf(value, torch.float64)

    def _decision_is_safe(self, results: Mapping[ir.Value, torch.Tensor]) -> bool:
        return all(
            torch.equal(self.expressions.run(output, torch.float32).to(torch.float64), result.to(torch.float64))
            for output, result in results.items()
        )

    def replace(self) -> None:
        """Put constants where evaluated values are still read, and take the evaluated nodes out."""
        gone = set(self.evaluated)
        for node in reversed(self.evaluated):
            graph = node.graph
            if graph is None:
                raise RuntimeError(f"node {node.name!r} left its graph while constants were evaluated")
            for output in node.outputs:
                if any(user not in gone for user in output.consumers()):
                    self._register(graph, output, node)
            graph.remove(node, safe=True)
            self.modified = True

    def _register(self, graph: ir.Graph, output: ir.Value, node: ir.Node) -> None:
        result = self.results[output]
        shape = ir.Shape(list(result.shape))
        name = output.name or f"{node.name}_constant"
        if node in self.shape_nodes:
            tensor: ir.TensorProtocol = ir.Tensor(self.shape_nodes[node], name=name)
        else:
            tensor = self._constant(output, result, shape, name)
        constant = ir.Value(
            shape=shape,
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
            metadata_props=dict(output.metadata_props),
        )
        output.name = name
        take_place(constant, output)
        graph.register_initializer(constant)
        self.integers |= {name} if tensor.dtype in EXACT else set()

    def _constant(self, output: ir.Value, result: torch.Tensor, shape: ir.Shape, name: str) -> ir.TensorProtocol:
        dtype = output.dtype
        if dtype is None:
            raise RuntimeError(f"value {name!r} has no type; it should not have been evaluated")
        if dtype not in FLOATS:
            array = result.contiguous().numpy()
            if array.dtype != dtype.numpy():
                raise GraphError(
                    f"value {name!r} is {dtype.name} by its first operand and {array.dtype} by all; expected operands "
                    "of one type: correct the graph"
                )
            return ir.Tensor(array, dtype=dtype, name=name)
        if result.numel() <= HELD_ELEMENTS:
            held = result.to(torch.float64).contiguous().numpy()
            return ExactTensor(lambda: held, dtype, shape, name)
        expressions = self.expressions
        return ExactTensor(
            lambda: np.asarray(expressions.run(output, torch.float64).numpy()),
            dtype,
            shape,
            name,
            parts=expressions.parts(output),
        )


def _hollow(shape: Sequence[int]) -> torch.Tensor:
    """Return a float tensor that has a shape and one stored number: it stands for a large result that is not held."""
    return torch.zeros((), dtype=torch.float64).expand(tuple(shape))


def _is_hollow(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > HELD_ELEMENTS and not any(tensor.stride())
