"""Shapes that a file declares, and that a run of it contradicts: whoever plans memory by them is told wrong.

onnxruntime takes the sizes that it meets, and only warns; engines that allocate by what is declared, and programs that
read it, do not. What a file leaves open contradicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Shape
from normdeploy.verification.sides.flat_values import Feeds


def contradicts(declared: ir.Shape, found: Shape) -> bool:
    """Tell whether a shape has another rank, or another size where one is fixed, than was declared."""
    pairs = zip(declared, found, strict=False)
    return len(declared) != len(found) or any(isinstance(dim, int) and dim != size for dim, size in pairs)


def in_words(declared: ir.Shape) -> str:
    """Return a declared shape as it is read: [n, 4]."""
    return "[" + ", ".join(str(dim) if isinstance(dim, int) else str(dim.value or "?") for dim in declared) + "]"


class DeclaredShapes:
    """What a graph declares of its values, before anything is inferred, beside what its runs return.

    Attributes:
        outputs: the shapes that it declares of its outputs, by name.
        wrong: of each output whose rank, or a fixed size, a run contradicted: the shape that it had. renamed: of each
            that has a size by an input's name, and had another one: the name, its size there, and the output's.
    """

    def __init__(self, graph: ir.Graph) -> None:
        outputs = set(graph.outputs)
        inside = (value for node in graph for value in node.outputs if value not in outputs)
        self.outputs, self._inputs, self._inside = map(_declared, (graph.outputs, graph.inputs, inside))
        self.wrong: dict[str, Shape] = {}
        self.renamed: dict[str, tuple[str, int, int]] = {}

    def see(self, feeds: Feeds, names: Sequence[str], results: Sequence[Any]) -> None:
        """See a run. Args: feeds: its inputs. names, results: its outputs."""
        sizes = _sizes(self._inputs, feeds)
        for name, result in zip(names, results, strict=True):
            shape = self.outputs.get(name)
            if shape is None or not isinstance(result, np.ndarray):  # a sequence has no shape
                continue
            if contradicts(shape, result.shape):
                self.wrong.setdefault(name, result.shape)
                continue
            words = [
                (str(dim.value), n) for dim, n in zip(shape, result.shape, strict=True) if not isinstance(dim, int)
            ]
            other = [(word, sizes[word], n) for word, n in words if sizes.get(word, n) != n]
            if other:
                self.renamed.setdefault(name, other[0])

    def wrong_inside(self, sizes: Mapping[str, Sequence[Shape]]) -> Iterator[tuple[str, ir.Shape, Shape]]:
        """Yield each value inside that is declared otherwise than it is: its name, the shape declared, and its own.

        Args:
            sizes: shapes of values at some sizes of the inputs, by name.
        """
        for name, shape in self._inside.items():
            found = next((one for one in sizes.get(name, ()) if contradicts(shape, one)), None)
            if found is not None:
                yield name, shape, found


def _declared(values: Iterable[ir.Value]) -> dict[str, ir.Shape]:
    return {str(value.name): ir.Shape(list(value.shape)) for value in values if value.shape is not None}


def _sizes(declared: Mapping[str, ir.Shape], feeds: Feeds) -> dict[str, int]:
    """Return the size that each dimension name has in some inputs; none that has several."""
    found: dict[str, set[int]] = {}
    for name, shape in declared.items():
        for dim, size in zip(shape, np.shape(feeds.get(name, ())), strict=False):
            if not isinstance(dim, int) and dim.value:
                found.setdefault(str(dim.value), set()).add(int(size))
    return {word: sizes.pop() for word, sizes in found.items() if len(sizes) == 1}


def declared_alike(one: ir.Shape, other: ir.Shape) -> bool:
    """Tell whether two shapes declare the same rank and fixed sizes."""
    fixed = [[dim if isinstance(dim, int) else None for dim in shape] for shape in (one, other)]
    return fixed[0] == fixed[1]
