"""What becomes of values while a graph is rewritten, for the derivation that goes beside the file.

Passes keep a value's name where its meaning stays (a new operator's result takes over the name of the one it
replaces). What changes a value's meaning notes it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph import FLOATS, ExactTensor, compress, constant_tensor
from normdeploy.graph.derivation import Derivation, Exact, Hint, dataflow_keys
from normdeploy.graph.walk import graphs_of

Held = tuple[str, Floats, Floats]
"""Name of a source's value x, s and t, so that x = s x' + t."""


class Carried:
    """The gauges under which values are computed, by value and by name."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._held: dict[ir.Value, list[Held]] = {}
        self._named: dict[str, list[Held]] = {}

    def start(self, names: Iterable[str]) -> None:
        """Take the names of the source's values."""
        self._known = frozenset(names)

    def change(self, values: Iterable[tuple[ir.Value, Floats, Floats]]) -> None:
        """Note that values v will be computed as v', v = s v' + t, while they still have the names they had."""
        for value, scale, shift in list(values):
            held = self._of(value)
            self._held[value] = [(name, compress(s * scale), compress(s * shift + t)) for name, s, t in held]

    def same(self, kept: ir.Value, gone: ir.Value) -> None:
        """Note that a value stands from now on for another one too, which leaves."""
        own = self._of(kept)
        self._held[kept] = [*own, *(held for held in self._of(gone) if held[0] not in {name for name, _, _ in own})]

    def forget(self, values: Iterable[ir.Value]) -> None:
        """Note that values are nothing of the source's any more, such as a product whose bias takes up a shift."""
        for value in values:
            self._held[value] = []

    def hand_over(self, old: ir.Value, new: ir.Value) -> None:
        """Note that another value is now what one was; the old one is something in between."""
        if old in self._held:
            self._held[new] = self._held.pop(old)

    def settle(self) -> None:
        """Take note of names after a pass, for what takes over a name later."""
        for value, held in self._held.items():
            if value.name:
                self._named[value.name] = held

    def derivation(self, model: ir.Model) -> Derivation:
        """Return the hints of the values that are left."""
        hints: list[Hint] = []
        constants: list[Exact] = []
        for graph in graphs_of(model):
            keys = dataflow_keys(graph)
            for node in graph:
                for value in node.outputs:
                    hints += [Hint(str(value.name), name, keys[value], s, t) for name, s, t in self._of(value)]
                constants += _constants(node, keys)
        return Derivation(tuple(hints), tuple(constants))

    def _of(self, value: ir.Value) -> list[Held]:
        held = self._held.get(value, self._named.get(str(value.name)))
        if held is not None:
            return held
        return [(str(value.name), np.ones(()), np.zeros(()))] if value.name in self._known else []


def _constants(node: ir.Node, keys: Mapping[ir.Value, str]) -> Iterator[Exact]:
    """Return the constants and attributes of an operator that are held unrounded."""
    result = node.outputs[0]
    for index, value in enumerate(node.inputs):
        tensor = constant_tensor(value)
        if isinstance(tensor, ExactTensor) and tensor.dtype in FLOATS:
            yield Exact(str(result.name), keys[result], str(index), tensor.numpy64)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.FLOAT and float(np.float32(attribute.value)) != attribute.value:
            yield Exact(str(result.name), keys[result], attribute.name, partial(np.array, attribute.value))
