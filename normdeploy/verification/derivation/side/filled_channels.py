"""How many channels of a value in blocks are the network's, and not filled up with zeros.

No file says it of a value between two convolutions: what reorders it back to plain channels does, or what it was
ordered from; otherwise the channels behind the last one that a kernel's rows, a bias or a reader's columns have a
number for are filling. Every reader has to weigh the filling with zeros, whatever stands there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array
from normdeploy.graph import constant_tensor, tensor64
from normdeploy.graph.operators.contrib import BLOCKED_DOMAIN
from normdeploy.graph.traits import Trait, has
from normdeploy.graph.walk import values_read


class FilledChannels:
    """The channels of a graph's values in blocks.

    Args:
        model: the graph. kernel: returns the kernel of a convolution on blocks as [O, I, ...], its filling in place.

    Attributes:
        known: False where some value's channels are not known, or a reader would see the filling.
    """

    def __init__(self, model: ir.Model, kernel: Callable[[ir.Node], Array]) -> None:
        self._alike: dict[ir.Value, ir.Value] = {}
        self._total: dict[ir.Value, int] = {}
        self._said: dict[ir.Value, set[int]] = {}
        self._least: dict[ir.Value, int] = {}
        self._whole: set[ir.Value] = set()
        readers: list[tuple[ir.Value, Array, int]] = []
        for node in model.graph:
            if node.domain == BLOCKED_DOMAIN:
                readers += self._blocked(node, kernel)
            else:
                self._plain(node)
        self._whole.update(self._kind(value) for value in model.graph.outputs if value in self._alike)
        self.known = all(self._fits(value) for value in self._alike)
        self.known &= all(self._reads(*reader) for reader in readers)

    def of(self, value: ir.Value | None) -> int | None:
        """Return how many channels of a value are the network's; None of one that does not lie in blocks."""
        if value is None or value not in self._alike:
            return None
        kind = self._kind(value)
        said = self._said.get(kind, set())
        return next(iter(said)) if said else self._least.get(kind, 0)

    def is_filled(self, value: ir.Value) -> bool:
        """Tell whether some channels of a value are filling."""
        return value in self._alike and self.of(value) != self._total.get(self._kind(value))

    def _blocked(self, node: ir.Node, kernel: Callable[[ir.Node], Array]) -> list[tuple[ir.Value, Array, int]]:
        result, read = node.outputs[0], node.inputs[0]
        found: list[tuple[ir.Value, Array, int]] = []
        if node.op_type == "Conv":
            weights, groups = kernel(node), node.attributes.get_int("group", 1)
            bias = constant_tensor(node.inputs[2]) if len(node.inputs) > 2 else None
            given = len(node.inputs) > 2 and node.inputs[2] is not None
            rows = weights.reshape(len(weights), -1).any(1)
            rows = rows | (tensor64(bias) != 0) if bias is not None else rows
            self._see(result, len(weights), int(np.flatnonzero(rows).max(initial=-1)) + 1)
            if groups > 1 or (given and bias is None):
                self._whole.add(self._kind(result))
            if len(node.inputs) > 3 and node.inputs[3] is not None:
                self._join(node.inputs[3], result)
            if read in self._alike and read is not None:
                found = [(read, weights, groups)]
                if groups == 1:
                    columns = np.flatnonzero(weights.any((0, *range(2, weights.ndim))))
                    self._see(read, weights.shape[1], int(columns.max(initial=-1)) + 1)
        elif node.op_type == "ReorderInput":
            self._see(result, None, 0)
            shape = None if read is None else read.shape
            channels = None if shape is None else shape[-1 if node.attributes.get_int("channels_last", 0) else 1]
            if isinstance(channels, int):
                self._said.setdefault(self._kind(result), set()).add(channels)
        elif read is not None and node.op_type == "ReorderOutput":
            self._see(read, None, 0)
            self._said.setdefault(self._kind(read), set()).add(node.attributes.get_int("channels", 0))
        elif read is not None:
            self._join(read, result)
        return found

    def _plain(self, node: ir.Node) -> None:
        """See an operator of plain values that reads some in blocks, as a sum of two of them does."""
        read = values_read(node)
        inside = [value for value in read if value in self._alike]
        if not inside:
            return
        for value in inside:
            if has(node, Trait.POINTWISE):
                self._join(value, node.outputs[0])
        others = [value for value in read if value not in self._alike]
        single = all((tensor := constant_tensor(value)) is not None and tensor.size == 1 for value in others)
        if not (has(node, Trait.POINTWISE) and single):
            self._whole.update(self._kind(value) for value in inside)

    def _kind(self, value: ir.Value) -> ir.Value:
        while self._alike.setdefault(value, value) is not value:
            value = self._alike[value]
        return value

    def _see(self, value: ir.Value, total: int | None, least: int) -> None:
        kind = self._kind(value)
        self._least[kind] = max(self._least.get(kind, 0), least)
        if total is not None:
            self._total[kind] = total

    def _join(self, one: ir.Value, other: ir.Value) -> None:
        kept, gone = self._kind(one), self._kind(other)
        if kept is gone:
            return
        self._alike[gone] = kept
        self._see(kept, self._total.pop(gone, None), self._least.pop(gone, 0))
        self._said.setdefault(kept, set()).update(self._said.pop(gone, set()))
        if gone in self._whole:
            self._whole.add(kept)

    def _fits(self, value: ir.Value) -> bool:
        kind = self._kind(value)
        said, total, count = self._said.get(kind, set()), self._total.get(kind), self.of(kind)
        if len(said) > 1 or not count or (total is not None and count > total):
            return False
        return kind not in self._whole or total is None or count == total

    def _reads(self, value: ir.Value, weights: Array, groups: int) -> bool:
        count = self.of(value) or 0
        return groups > 1 or not weights[:, count:].any()
