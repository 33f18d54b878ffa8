"""Pairs of graphs of a few operators, as text: a right file and damaged ones, each of which computes another function.

Where a text says ``@``, the right graph has the first of the pair's readings, and each damaged one another of them.
Dimensions that are letters are dynamic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto

SIZES = {"N": 2, "T": 5, "H": 6, "W": 7, "L": 8}
"""What dynamic dimensions are in the example."""

_GROWN = {"N": 3, "T": 5, "H": 7, "W": 9, "L": 11}

Sizes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Pair:
    """A graph, and what is damaged in it.

    Args:
        name: what is damaged. read, written: inputs and outputs, as ``float[N,4] x``. body: operators.
        right: what stands for ``@``. wrong: what stands for it in damaged graphs. known: constants, as text.
        opset: of the operators. top: integers are drawn from 0 to below it.
        at: sizes at which the damage shows, where those of the example do not show it.
        spread: of the floats that are fed.
    """

    name: str
    read: str
    written: str
    body: str
    right: str
    wrong: tuple[str, ...]
    known: str = ""
    opset: int = 21
    top: int = 3
    at: tuple[tuple[str, int], ...] = ()
    spread: float = 1.0

    def model(self, reading: str) -> ModelProto:
        """Return the graph with one reading."""
        known = f"<{self.known}>" if self.known else ""
        text = f"g ({self.read}) => ({self.written}) {known} {{ {self.body} }}".replace("@", reading)
        head = f'<ir_version: 10, opset_import: ["": {self.opset}, "com.microsoft": 1]>'
        return onnx.parser.parse_model(head + text)

    def shapes(self, sizes: dict[str, int]) -> Sizes:
        """Return the inputs' shapes at sizes of the dynamic dimensions."""
        found: Sizes = {}
        for part in self.read.replace("] ", "]|").replace(", ", ";").split(";"):
            kind, _, name = part.partition("|") if "|" in part else part.partition(" ")
            inside = kind.partition("[")[2].rstrip("]")
            found[name] = tuple(sizes[n] if n in sizes else int(n) for n in inside.split(",") if n)
        return found

    def assignments(self) -> list[Sizes]:
        """Return shapes at a few sizes, as a verdict takes them."""
        grown = {name: size + _GROWN[name] for name, size in SIZES.items()}
        more = [{name: size * factor for name, size in SIZES.items()} for factor in (2, 3)]
        found = [self.shapes(sizes) for sizes in (SIZES, grown, *more)]
        return found if any(f != found[0] for f in found[1:]) else found[:1]

    def feeds(self, seed: int) -> Iterator[dict[str, np.ndarray]]:
        """Return inputs at the example's sizes, and at those where the damage shows."""
        rng = np.random.default_rng(seed)
        kinds = {value.name: value.type.tensor_type.elem_type for value in self.model(self.right).graph.input}
        for sizes in (SIZES, SIZES | dict(self.at)):
            feeds = {}
            for name, shape in self.shapes(sizes).items():
                dtype = onnx.helper.tensor_dtype_to_np_dtype(kinds[name])
                if dtype.kind == "f":
                    feeds[name] = (self.spread * rng.standard_normal(shape)).astype(dtype)
                else:
                    feeds[name] = rng.integers(0, 2 if dtype.kind == "b" else self.top, shape).astype(dtype)
            yield feeds


def pair(name: str, read: str, written: str, body: str, right: str, *wrong: str, **more: object) -> Pair:
    """Return a pair."""
    return Pair(name, read, written, body, right, wrong, **more)  # type: ignore[arg-type] # as the class says
