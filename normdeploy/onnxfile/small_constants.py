"""Numbers that stand in a file and decide how it runs: trip counts, steps, conditions."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from normdeploy.onnxfile.data_places import find_places, put_inside
from normdeploy.onnxfile.stored import STANDARD, graphs, tensors

if TYPE_CHECKING:
    import onnx

_SMALL = 4096  # bytes: more numbers than any operator reads of this kind


def lowest_numbers(file: Path, proto: onnx.ModelProto, names: Collection[str]) -> dict[str, int]:
    """Return the lowest number of each constant of these names, of integers or truth values; of one name in several
    bodies the lowest of all.

    Args:
        file: where the model lies: small data beside it is read, and put into ``proto``.
        proto: the model. names: of values.

    Raises:
        GraphError: data beside the file that may not be read, is missing or too short.
    """
    from onnx import TensorProto, numpy_helper

    if not names:
        return {}
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors(proto)):
        for tensor, place in find_places(file, proto):
            if place.length <= _SMALL:
                put_inside(tensor, place)
    found: list[tuple[str, int]] = []
    for graph in graphs(proto):
        held = [(tensor.name, tensor) for tensor in getattr(graph, "initializer", ())]
        for node in graph.node:
            if node.op_type != "Constant" or node.domain not in STANDARD or not node.output:
                continue
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    held.append((node.output[0], attribute.t))
                elif node.output[0] in names and (attribute.ints or attribute.HasField("i")):
                    found.append((node.output[0], min(attribute.ints or [attribute.i])))
        for name, tensor in held:
            if name in names and tensor.data_type in (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL):
                numbers = numpy_helper.to_array(tensor).reshape(-1)
                found += [(name, int(numbers.min()))] if numbers.size else []
    lowest = dict[str, int]()
    for name, number in found:
        lowest[name] = min(number, lowest.get(name, number))
    return lowest
