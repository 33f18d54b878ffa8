"""Find the normalizations with stored statistics in a graph as written, before anything is folded.

BatchNormalization operators, and the hand-written form: a constant variance, an epsilon, a root, a division (or a
product with the reciprocal), around them a constant mean, scale and shift.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import FLOATS, evaluate_region, module_path
from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import bodies_of
from normdeploy.inspection.site import StoredNorm


class Constants:
    """Which values of a graph and of the bodies in it are constants, and their values in float64.

    Args:
        model: its functions inlined.
    """

    def __init__(self, model: ir.Model) -> None:
        self._imports = model.opset_imports
        self._known: set[ir.Value] = set()
        for graph in model.graphs():
            inputs = set(graph.inputs)
            self._known |= {value for value in graph.initializers.values() if value not in inputs}
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            if has(node, Trait.RANDOM) or bodies_of(node):
                continue
            if all(value is None or value in self._known for value in node.inputs):
                self._known.update(node.outputs)

    def __contains__(self, value: ir.Value | None) -> bool:
        return value in self._known

    def value(self, value: ir.Value | None) -> Floats | None:
        """Return a constant's value in float64; None if it is no constant."""
        if value is None or value not in self._known:
            return None
        (result,) = evaluate_region(_leading_to(value), {}, [value], opset_imports=self._imports)
        return result.double().numpy() if result.is_floating_point() else result.numpy().astype(np.float64)

    def scalar(self, value: ir.Value | None) -> float | None:
        """Return a constant of one element; None if it is none or has more."""
        if value is None or (value.shape is not None and _elements(value.shape) not in (None, 1)):
            return None
        array = self.value(value)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def _elements(shape: ir.Shape) -> int | None:
    dims = list(shape)
    return int(np.prod([dim for dim in dims if isinstance(dim, int)])) if shape.is_static() else None


def _leading_to(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that compute a constant, operands before users."""
    done: dict[ir.Node, None] = {}
    stack = [value.producer()]
    while stack:
        node = stack[-1]
        if node is None or node in done:
            stack.pop()
            continue
        waiting = [item.producer() for item in node.inputs if item is not None]
        waiting = [item for item in waiting if item is not None and item not in done]
        if waiting:
            stack.extend(waiting)
        else:
            done[node] = None
            stack.pop()
    return list(done)


def stored_norms(model: ir.Model, constants: Constants | None = None) -> list[StoredNorm]:
    """Return the normalizations with stored statistics, in graph order, those in bodies of If, Loop and Scan too.

    Args:
        model: the graph as traced or loaded, functions inlined.
        constants: of that model; made where not given.
    """
    constants = constants or Constants(model)
    found: list[StoredNorm] = []
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type == "BatchNormalization":
            site = _batch_normalization(node, constants)
        elif node.op_type in ("Sqrt", "Pow"):
            site = _hand_written(node, constants)
        else:
            continue
        if site is not None:
            found.append(site)
    return found


def _batch_normalization(node: ir.Node, constants: Constants) -> StoredNorm | None:
    if node.attributes.get_int("training_mode", 0):
        return None  # normalizes with the batch: told as such
    scale, shift, mean, variance = (constants.value(value) for value in node.inputs[1:5])
    x = node.inputs[0]
    if variance is None or x is None:
        return None
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    dtype = x.dtype or ir.DataType.FLOAT
    where = module_path(node)
    return StoredNorm(where, variance, epsilon, mean, scale, shift, False, dtype, x, 1)


def _hand_written(root: ir.Node, constants: Constants) -> StoredNorm | None:
    radicand = root.inputs[0]
    if radicand not in constants or radicand is None:
        return None
    if root.op_type == "Pow" and constants.scalar(root.inputs[1]) not in (0.5, -0.5):
        return None
    variance, epsilon = _split_epsilon(radicand, constants)
    if not _is_stored(variance):
        return None
    divisor, outside = root.outputs[0], False
    reader = _only_reader(divisor)
    if not epsilon and reader is not None and reader.op_type == "Add":
        extra = [constants.scalar(value) for value in reader.inputs if value is not divisor]
        if extra and extra[0] is not None:
            divisor, outside, epsilon = reader.outputs[0], True, extra[0]
    stored = constants.value(variance)
    if stored is None or stored.size < 2:
        return None
    middle = _first_computed_reader(divisor, constants)
    if middle is None:
        return None
    normalized = next((value for value in middle.inputs if value is not None and value not in constants), None)
    mean, x, scale = _before(normalized, constants)
    behind_scale, shift = _after(middle.outputs[0], constants)
    scale = scale if scale is not None else behind_scale
    dtype = x.dtype if x is not None and x.dtype in FLOATS else ir.DataType.FLOAT
    return StoredNorm(
        module_path(middle),
        stored,
        epsilon,
        mean,
        scale,
        shift,
        outside,
        dtype,
        x,
        _axis(stored, x),
    )


def _split_epsilon(radicand: ir.Value, constants: Constants) -> tuple[ir.Value, float]:
    """Split v + e into v and e; e is 0 where nothing is added."""
    carried = _through(radicand)
    producer = carried.producer()
    if producer is not None and producer.op_type == "Add":
        for value, other in (producer.inputs, reversed(producer.inputs)):
            epsilon = constants.scalar(other)
            if epsilon is not None and value is not None:
                return _through(value), epsilon
    return carried, 0.0


def _through(value: ir.Value) -> ir.Value:
    """Return what a stored variance was before it was moved on its way to the root: still the same quantity."""
    producer = value.producer()
    while has(producer, Trait.MOVES | Trait.CONVERTS) and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return value


def _is_stored(value: ir.Value) -> bool:
    return value.producer() is None or value.producer().op_type == "Constant"  # type: ignore[union-attr]  # checked


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = value.uses()
    return next(iter(uses)).node if len(uses) == 1 else None


def _first_computed_reader(value: ir.Value, constants: Constants) -> ir.Node | None:
    """Return the Div or Mul in which a constant meets what is computed, following constants that are made of it."""
    for use in value.uses():
        node = use.node
        if node.outputs[0] in constants:
            found = _first_computed_reader(node.outputs[0], constants)
            if found is not None:
                return found
        elif node.op_type in ("Div", "Mul"):
            return node
    return None


def _before(value: ir.Value | None, constants: Constants) -> tuple[Floats | None, ir.Value | None, Floats | None]:
    """Return (mean, x, scale) from what is divided: x - mean, or scale (x - mean)."""
    scale = None
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type == "Mul":
        left, right = producer.inputs
        constant, value = (left, right) if left in constants else (right, left)
        if constant in constants:
            scale = constants.value(constant)
            producer = None if value is None else value.producer()
    if producer is not None and producer.op_type == "Sub" and producer.inputs[1] in constants:
        return constants.value(producer.inputs[1]), producer.inputs[0], scale
    return None, value, scale


def _after(value: ir.Value, constants: Constants) -> tuple[Floats | None, Floats | None]:
    """Return (scale, shift) from what follows the division."""
    scale = shift = None
    reader = _only_reader(value)
    if reader is not None and reader.op_type == "Mul":
        scale = _other(reader.inputs, value, constants)
        reader = _only_reader(reader.outputs[0]) if scale is not None else None
    if reader is not None and reader.op_type == "Add":
        shift = next((constants.value(item) for item in reader.inputs if item in constants), None)
    return scale, shift


def _other(inputs: Iterable[ir.Value | None], value: ir.Value, constants: Constants) -> Floats | None:
    return next((constants.value(item) for item in inputs if item is not value and item in constants), None)


def _axis(stored: Floats, x: ir.Value | None) -> int | None:
    """Return the axis of x along which a stored tensor varies; None if there is not exactly one."""
    if x is None or x.shape is None:
        return None
    varying = [axis for axis, size in enumerate(stored.shape) if size > 1]
    return varying[0] + len(x.shape) - stored.ndim if len(varying) == 1 else None
