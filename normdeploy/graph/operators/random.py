"""Operators that draw random numbers: they have a value only where it makes no difference which numbers are drawn."""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph.exact import constant64
from normdeploy.graph.operators.call import Call, Implementation, Inputs, need
from normdeploy.graph.operators.elementwise_operators import torch_dtype
from normdeploy.graph.traits import Trait, has, is_standard, kinds

RANDOM = frozenset(name for _, name in kinds(Trait.RANDOM))


def _keeps(node: ir.Node) -> bool:
    """Tell whether an operator's first input, finite, reaches the result finite and apart from everything else."""
    return has(node, Trait.MOVES | Trait.CONVERTS) or is_standard(node, "Neg")


_LARGEST = 1e30
"""Parameters of a distribution up to which nothing that it draws overflows: zero times infinity is no zero."""


def has_effect(value: ir.Value) -> bool:
    """Tell whether some finite numbers could make a difference in place of others: not where zeros multiply them."""
    if value.is_graph_output():
        return True
    return any(_matters(usage.node, usage.idx) for usage in value.uses())


def _matters(node: ir.Node, index: int) -> bool:
    if has(node, Trait.SIZES):
        return False
    if is_standard(node, "Mul"):
        other = node.inputs[1 - index]
        zeros = None if other is None or other.is_graph_input() else constant64(other)
        if zeros is not None and zeros.size and not zeros.any():
            return False
    elif not (index == 0 and _keeps(node)):
        return True
    return not _keeps(node) or any(has_effect(output) for output in node.outputs)


def _drawn(call: Call, inputs: Inputs) -> Tensor:
    node = call.node
    numbers = [call.attr(name, 0.0) for name in ("mean", "scale", "low", "high")]
    if has_effect(node.outputs[0]) or any(not abs(number) <= _LARGEST for number in numbers):
        raise GraphError(
            f"operator {node.op_type} ({node.name}) is random, and what it draws reaches an output; expected a graph "
            "of which the same inputs give the same outputs: remove it"
        )
    given = call.attr("dtype")
    shape = [int(size) for size in call.attr("shape")] if not inputs else list(need(inputs, 0).shape)
    like = need(inputs, 0).dtype if inputs else call.dtype
    return torch.zeros(shape, dtype=like if given is None else torch_dtype(ir.DataType(given), call.dtype))


def _multinomial(call: Call, inputs: Inputs) -> Tensor:
    drawn = _drawn(call, inputs)
    kind = torch_dtype(ir.DataType(call.attr("dtype", int(ir.DataType.INT32))), call.dtype)
    return torch.zeros(drawn.shape[0], call.attr("sample_size", 1), dtype=kind)


RANDOMS: dict[str, Implementation] = {**dict.fromkeys(RANDOM, _drawn), "Multinomial": _multinomial}
