"""Results of operators as sizes alone: one operator, on operands of the same sizes, is asked once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import evaluate_node
from normdeploy.graph.operator_evaluation import opset_of
from normdeploy.graph.traits import is_standard
from normdeploy.verification.derivation.side.told_sizes import told_by_operands, told_with_statistics

SMALL = 64
"""Constants up to this size may decide a shape."""

MOST = 20_000
"""Answers that a process keeps, of a few kilobytes each at most."""

_Key = tuple[Any, ...]
_KEPT: dict[_Key, list[Tensor]] = {}
"""Answers for all graphs of this process: sizes, and a few numbers, of standard operators, which nobody redefines."""

_PLAIN = frozenset(
    {
        ir.AttributeType.INT,
        ir.AttributeType.FLOAT,
        ir.AttributeType.STRING,
        ir.AttributeType.INTS,
        ir.AttributeType.FLOATS,
        ir.AttributeType.STRINGS,
    }
)


class Sizes:
    """What operators return, floats on torch's device "meta" wherever that is enough.

    Args:
        imports: operator set versions of the graph.
        others: another graph's, whose answers hold here as well: an answer depends on the operator, its version, its
            attributes and its operands, and on nothing else.
    """

    def __init__(self, imports: Mapping[str, int], others: Sizes | None = None) -> None:
        self._imports = imports
        self._said: dict[ir.Node, tuple[Any, ...] | None] = {}
        self._known: dict[_Key, list[Tensor]] = {} if others is None else others._known

    def of(self, node: ir.Node, operands: Sequence[Tensor | None]) -> list[Tensor]:
        """Return a node's results; [] where it cannot be evaluated."""
        told = told_by_operands(node, operands)
        if told is not None:
            return [told]
        several = told_with_statistics(node, operands)
        if several is not None:
            return several
        key = self._key(node, operands)
        if key is None:
            return self._evaluated(node, list(operands))
        known = self._known.get(key, _KEPT.get(key))
        if known is not None:
            return known
        found = self._evaluated(node, list(operands))
        if is_standard(node) and all(t.is_meta or t.numel() <= SMALL for t in found):
            if len(_KEPT) >= MOST:
                _KEPT.clear()
            _KEPT[key] = found
        else:
            self._known[key] = found
        return found

    def _key(self, node: ir.Node, operands: Sequence[Tensor | None]) -> _Key | None:
        """Return all that a result depends on; None where that is too much to compare."""
        if node not in self._said:
            self._said[node] = said_of(node, self._imports)
        said = self._said[node]
        if said is None:
            return None
        if any(t is not None and (type(t) is not Tensor or (not t.is_meta and t.numel() > SMALL)) for t in operands):
            return None
        read = tuple(
            None if t is None else (t.shape, t.dtype, None if t.is_meta else repr(t.tolist())) for t in operands
        )
        return said, read

    def _evaluated(self, node: ir.Node, operands: list[Tensor | None]) -> list[Tensor]:
        """Return results, as sizes alone where that works, from zeros where it does not; [] where neither does."""
        for form in _forms(operands):
            try:
                with torch.no_grad():
                    return evaluate_node(node, form, opset_imports=self._imports)
            except (GraphError, RuntimeError, ValueError, TypeError, ArithmeticError, IndexError, KeyError):
                continue
        return []


def said_of(node: ir.Node, imports: Mapping[str, int]) -> tuple[Any, ...] | None:
    """Return all that a node's results depend on but operands; None where that is too much to compare.

    Args:
        node: the operator. imports: operator set versions of its graph.
    """
    attributes = sorted(node.attributes.values(), key=lambda a: a.name)
    if any(a.type not in _PLAIN or a.is_ref() for a in attributes):
        return None
    said = tuple((a.name, a.type, str(a.value)) for a in attributes)
    return node.domain, node.op_type, opset_of(node, imports), len(node.outputs), said


def _forms(operands: list[Tensor | None]) -> Iterator[list[Tensor | None]]:
    """Yield operands as a node may take them, each made when it is asked for; numbers last: they take memory."""
    if not any(t is not None and t.is_meta for t in operands):
        yield operands
        return
    # torch takes no floats of "meta" beside real ones: all of them first
    yield [None if t is None else t.to("meta") if t.is_floating_point() else t for t in operands]
    yield operands
    yield [None if t is None else t.to("meta") for t in operands]
    yield [None if t is None else torch.zeros(t.shape, dtype=t.dtype) if t.is_meta else t for t in operands]
