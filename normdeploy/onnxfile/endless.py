"""Files that no run comes to the end of: refused before a runtime opens them, which counts neither turns nor calls.

A Loop ends after its trip count, or where its condition turns false. Where the count stands in the file and the body
hands the condition on as it came, or says "true", nothing but the count ends it; loops in loops, and in the functions
that a body calls, multiply. Counts that are computed or given as inputs, and conditions that are computed, are not seen
(SECURITY.md). Functions are counted as they are where a graph is read (`calls`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from normdeploy.errors import GraphError
from normdeploy.files import words_in
from normdeploy.onnxfile.calls import Key, called, callees_first, check_calls
from normdeploy.onnxfile.light import holds_functions
from normdeploy.onnxfile.outline import parse_into
from normdeploy.onnxfile.small_constants import lowest_numbers
from normdeploy.onnxfile.stored import STANDARD, graphs

if TYPE_CHECKING:
    import onnx

MOST_TURNS = 1 << 32
"""Turns of a loop with the loops around it: more than an hour of the fastest body there is."""


def check_ends(path: str | os.PathLike[str]) -> None:
    """Refuse a file whose calls or loops do not end, as far as the file itself says it.

    Raises:
        GraphError: they do not; the message names the function or the Loop.
        StorageError: the file cannot be read.
    """
    loops, functions = bool(words_in(path, [b"Loop"])), holds_functions(path)
    if not loops and not functions:
        return
    import onnx

    proto = onnx.ModelProto()
    file, _ = parse_into(proto, path)
    if functions:
        check_calls(proto, str(file))
    if loops:
        names = {name for graph in graphs(proto) for node in graph.node if _is_loop(node) for name in _deciding(node)}
        _check_turns(proto, str(file), lowest_numbers(file, proto, names))


def _check_turns(proto: onnx.ModelProto, name: str, numbers: Mapping[str, int]) -> None:
    turns = dict[Key, int]()

    def most(nodes: Iterable[onnx.NodeProto]) -> int:
        """Return the turns of the longest of some nodes."""
        longest = 1
        for node in nodes:
            bodies = [graph for a in node.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]
            own = _turns(node, numbers) if _is_loop(node) else 1
            found = own * max([most(body.node) for body in bodies] + [turns.get(called(node), 1)])
            if found > MOST_TURNS:
                raise GraphError(
                    f"{name}: {node.op_type} {node.name or list(node.output)} comes to {found} turns, and no condition "
                    f"ends it earlier; expected at most {MOST_TURNS}: correct its trip count or its condition"
                )
            longest = max(longest, found)
        return longest

    for key, function in callees_first(proto, name).items():
        turns[key] = most(function.node)
    most(proto.graph.node)


def _is_loop(node: onnx.NodeProto) -> bool:
    return node.op_type == "Loop" and node.domain in STANDARD


def _body(node: onnx.NodeProto) -> onnx.GraphProto | None:
    return next((a.g for a in node.attribute if a.name == "body" and len(a.g.input) > 1 and a.g.output), None)


def _deciding(node: onnx.NodeProto) -> list[str]:
    """Return the values that decide how often a Loop turns: count, condition at first, condition after each turn."""
    body = _body(node)
    return [*node.input[:2], *([_source(body)] if body is not None else [])]


def _source(body: onnx.GraphProto) -> str:
    """Return where the condition that a body returns comes from, copies passed."""
    copies = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity" and node.input}
    name: str = body.output[0].name
    for _ in range(len(copies)):
        name = copies.get(name, name)
    return name


def _turns(node: onnx.NodeProto, numbers: Mapping[str, int]) -> int:
    """Return the turns that a Loop is sure to make where it begins; 1 where that does not stand in the file."""
    body = _body(node)
    if body is None or (len(node.input) > 1 and numbers.get(node.input[1]) == 0):
        return 1
    source = _source(body)
    if source != body.input[1].name and not numbers.get(source):
        return 1
    if not node.input or not node.input[0]:
        return MOST_TURNS + 1
    return max(numbers.get(node.input[0], 1), 1)
