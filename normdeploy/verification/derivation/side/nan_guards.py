"""Guards against NaN behind a Softmax whose scores are finite: they never act.

torch's export of attention writes Where(IsNaN(p), 0, p) behind p = Softmax(s), for rows whose keys are all masked by
-inf. Where every s is a real number, so is p, and the Where is p for every input; what leaves the range of a type is
not algebra's to tell, here as elsewhere.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.graph.edit import take_out, take_place
from normdeploy.graph.exact import FLOATS, constant_tensor
from normdeploy.graph.traits import Trait, has, is_standard

_CARRY = frozenset(
    {
        "Add", "Sub", "Mul", "Neg", "Abs", "Relu", "LeakyRelu", "Elu", "Celu", "Selu", "Gelu", "Erf", "Sigmoid", "Tanh",
        "HardSigmoid", "HardSwish", "Swish", "Mish", "Softplus", "Softsign", "Softmax", "Clip", "Min", "Max", "Where",
        "Sin", "Cos", "Identity", "Cast", "Pad", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "Resize",
        "AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool", "DepthToSpace", "SpaceToDepth",
    }
)  # fmt: skip
"""Operators that make real numbers of real numbers, besides those that move them."""


def has_guards(model: ir.Model) -> bool:
    """Tell whether a graph asks whether something is NaN."""
    return any(is_standard(node, "IsNaN") for node in model.graph)


def take_out_guards(model: ir.Model) -> int:
    """Take out the guards that never act, in place; return how many operators they were."""
    before = len(model.graph)
    never: list[ir.Node] = []
    finite = _Finite(model.graph)
    for node in list(model.graph):
        if not is_standard(node, "Where"):
            continue
        asked, _, kept = node.inputs
        asker, maker = (None if v is None else v.producer() for v in (asked, kept))
        if asker is None or maker is None or kept is None or not is_standard(asker, "IsNaN"):
            continue
        if asker.inputs[0] is kept and is_standard(maker, "Softmax") and maker.inputs[0] in finite:
            take_place(kept, node.outputs[0], named=False)
            never += [asker, node]
    take_out(never)
    return before - len(model.graph)


class _Finite:
    """The values of a graph that are real numbers wherever its outputs are, looked up once.

    What is fed may be -inf, as a mask of floats is, unless it goes through a product or a norm: these make NaN of it.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._real: set[ir.Value] = set()
        self._fed: set[ir.Value] = {v for v in graph.inputs if v.dtype in FLOATS}
        for node in graph:
            read = [value for value in node.inputs if value is not None]
            if all(value in self or value in self._fed for value in read):
                self._take(node, any(value in self._fed for value in read))

    def __contains__(self, value: ir.Value | None) -> bool:
        if value is None or value in self._real:
            return True
        if value in self._fed:
            return False
        if value.dtype is not None and value.dtype not in FLOATS:
            self._real.add(value)  # integers and truth values
            return True
        tensor = constant_tensor(value)
        if tensor is not None and (tensor.dtype not in FLOATS or bool(np.isfinite(tensor.numpy()).all())):
            self._real.add(value)
        return value in self._real

    def _take(self, node: ir.Node, fed: bool) -> None:
        if has(node, Trait.WEIGHS | Trait.NORMALIZES) and not is_standard(node, "Mul", "Pow"):
            if node.attributes.get_float("epsilon", 1.0) > 0:  # without one, rows of equal numbers are 0 / 0
                self._real.update(node.outputs)
        elif has(node, Trait.MOVES | Trait.JOINS | Trait.CONVERTS) or is_standard(node, *_CARRY) or _by_constant(node):
            (self._fed if fed else self._real).update(node.outputs)


def _by_constant(node: ir.Node) -> bool:
    """Tell whether an operator is a quotient by constants other than 0, or a power of 0, 1, 2, ..."""
    by = constant_tensor(node.inputs[1]) if is_standard(node, "Div", "Pow") and node.inputs[1] is not None else None
    if by is None:
        return False
    numbers = by.numpy().astype(np.float64)
    return bool((numbers != 0).all() if node.op_type == "Div" else ((numbers >= 0) & (numbers % 1 == 0)).all())
