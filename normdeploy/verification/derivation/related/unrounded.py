"""Constants of the file before they were rounded, as the derivation says; believed where what is stored is their
rounding."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from torch import Tensor

from normdeploy.array_types import Array, Floats
from normdeploy.graph import FLOATS, constant_tensor, evaluate_node
from normdeploy.graph.derivation import Derivation, Exact, Hint
from normdeploy.graph.operator_evaluation import as_operand
from normdeploy.verification.derivation.related.meant import Meant
from normdeploy.verification.derivation.related.stored_rounding import Wrong, compare
from normdeploy.verification.derivation.side.checked_side import Side
from normdeploy.verification.derivation.side.narrowing import as_stored
from normdeploy.verification.derivation.side.operands import inputs_of, kind, with_attributes

_MOST_TRIED = 8
"""Constants that are tried for one."""


@dataclass
class Constants:
    """Unrounded constants of the file, by the derivation.

    Args:
        file: the graph. derivation: what says so. used: the numbers of the constants that were needed.
    """

    file: Side
    derivation: Derivation
    used: dict[Hint | Exact, Floats | None] = field(default_factory=dict)
    _named: dict[tuple[str, str], list[Exact]] = field(default_factory=dict)
    _keyed: dict[tuple[str, str], list[Exact]] = field(default_factory=dict)
    _found: dict[tuple[ir.Node, str], Floats | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._meant = Meant(self.file.graph, self.derivation.constants)
        for exact in self.derivation.constants:
            self._named.setdefault((exact.value, exact.which), []).append(exact)
            self._keyed.setdefault((exact.key, exact.which), []).append(exact)

    def of(self, node: ir.Node, index: int) -> Floats | None:
        """Return an input of an operator unrounded; None where nothing says that it is not as stored.

        Raises:
            Unlike: what is stored is not the one rounding of it.
        """
        tensor = constant_tensor(node.inputs[index])
        if tensor is None or tensor.dtype not in FLOATS:
            return None
        return self._unrounded(node, str(index), tensor.numpy(), tensor.dtype)

    def expression(self, value: ir.Value, k: int) -> Array | None:
        """Return what follows from constants, unrounded where that is known, and sizes, at one assignment.

        Raises:
            Unlike: what is stored is not the one rounding of one of them.
        """
        return self._expression(value, k, {})

    def _expression(self, value: ir.Value, k: int, made: dict[ir.Value, Array | None]) -> Array | None:
        """Return the same, each value computed once: what is read twice would double the work at every step."""
        if value not in made:
            made[value] = self._computed(value, k, made)
        return made[value]

    def _computed(self, value: ir.Value, k: int, made: dict[ir.Value, Array | None]) -> Array | None:
        node = value.producer()
        read_sizes = node is None or any(v is not None and not self.file.is_sized(v) for v in node.inputs)
        if node is None or read_sizes or constant_tensor(value) is not None:
            numbers = self.file.numbers(value)
            return None if numbers is None else numbers[k]
        operands: list[Tensor | None] = []
        for index, read in enumerate(inputs_of(node)):
            found = None if read is None else self.of(node, index)
            if read is not None and found is None:
                found = self._expression(read, k, made)
            operands.append(None if found is None else as_operand(found))
        operands = as_stored(node, operands, self.file.type_of)
        return evaluate_node(self.operator(node), operands, opset_imports=self.file.imports)[value.index() or 0].numpy()

    def operator(self, node: ir.Node) -> ir.Node:
        """Return an operator of the file with its attributes unrounded.

        Raises:
            Unlike: what is stored is not the one rounding of it.
        """
        kept = []
        for attribute in _as_stored(node).attributes.values():
            exact = None
            if attribute.type == ir.AttributeType.FLOAT:
                exact = self._unrounded(node, attribute.name, np.array(attribute.value), ir.DataType.FLOAT)
            kept.append(attribute if exact is None else ir.AttrFloat32(attribute.name, float(exact)))
        return with_attributes(node, kept)

    def _unrounded(self, node: ir.Node, which: str, stored: Array, dtype: ir.DataType) -> Floats | None:
        if (node, which) not in self._found:
            self._found[node, which] = self._looked_up(node, which, stored, dtype)
        return self._found[node, which]

    def _looked_up(self, node: ir.Node, which: str, stored: Array, dtype: ir.DataType) -> Floats | None:
        result = node.outputs[0]
        found = [
            *self._named.get((str(result.name), which), []),
            *self._keyed.get((self._meant.key(result), which), []),
        ]
        wrong: Wrong | None = None
        for exact in found[:_MOST_TRIED]:
            number = exact.compute()
            if number.shape != stored.shape or not np.isfinite(number).all():
                continue
            off = compare(stored, dtype, number)
            if off is None:
                self.used[exact] = number
                return number
            if self._meant.only(exact, result):
                wrong = wrong or off
        if wrong is not None:
            raise Unlike(Wrong(f"{which!r} of {kind(node)}: {wrong.text}", wrong.rounding))
        return None


def _as_stored(node: ir.Node) -> ir.Node:
    """Return an operator with the attributes that a file can hold: floats are of 32 bits."""
    kept = [
        ir.AttrFloat32(a.name, float(np.float32(a.value))) if a.type == ir.AttributeType.FLOAT else a
        for a in node.attributes.values()
    ]
    return with_attributes(node, kept)


class Unlike(Exception):
    """A stored number is not the one rounding of what the derivation says it was.

    Args:
        wrong: which.
    """

    def __init__(self, wrong: Wrong) -> None:
        super().__init__(wrong.text)
        self.wrong = wrong
