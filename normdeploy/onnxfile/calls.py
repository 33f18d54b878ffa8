"""Functions of a model: whether their calls end, fit them, and come to a graph of a size that can be held.

An attribute may stand for one that its function is given; outside of functions there is nothing that it stands for.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from normdeploy.errors import GraphError
from normdeploy.onnxfile.stored import with_bodies

if TYPE_CHECKING:
    import onnx

Key = tuple[str, str, str]

MOST_NODES = 1 << 22
"""Nodes of a model with every call replaced by what it calls; 40 functions of two calls each come to 2**40."""


def check_calls(proto: onnx.ModelProto, name: str) -> None:
    """Check that no function calls itself, through others or not, and what the calls come to.

    Args:
        proto: the model. name: for the messages.

    Raises:
        GraphError: functions that do not end, that are given more than they take, or that come to too many nodes; an
            attribute of a function outside of one.
    """
    own = _nodes(proto.graph)
    for node in own:
        if found := next((a for a in node.attribute if a.ref_attr_name), None):
            raise GraphError(
                f"{name}: attribute {found.name!r} of {node.op_type} {node.name or list(node.output)} is one of a "
                "function's, and it stands in none; expected a value: write it again"
            )
    functions = callees_first(proto, name)
    if not functions:
        return
    nodes = {key: _nodes(function) for key, function in functions.items()}
    sizes = dict[Key, int]()
    for key, inside in nodes.items():
        sizes[key] = sum(sizes.get(called(node), 1) for node in inside)
    for node in (*own, *(node for inside in nodes.values() for node in inside)):
        function = functions.get(called(node))
        if function and (len(node.input) > len(function.input) or len(node.output) > len(function.output)):
            raise GraphError(
                f"{name}: function {function.name!r} is called with {len(node.input)} inputs and {len(node.output)} "
                f"outputs; expected at most {len(function.input)} and {len(function.output)}: write it again"
            )
    total = sum(sizes.get(called(node), 1) for node in own)
    if total > MOST_NODES:
        raise GraphError(
            f"{name}: its calls of functions come to {total} nodes; expected at most {MOST_NODES}: write it again"
        )


def callees_first(proto: onnx.ModelProto, name: str) -> dict[Key, onnx.FunctionProto]:
    """Return the functions of a model, each behind those that it calls.

    Args:
        proto: the model. name: for the message.

    Raises:
        GraphError: one of them calls itself, through others or not.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    calls = {key: {called(node) for node in _nodes(f)} & functions.keys() for key, f in functions.items()}
    try:
        return {key: functions[key] for key in TopologicalSorter(calls).static_order()}
    except CycleError as error:
        found = min(error.args[1])[1]
        raise GraphError(
            f"{name}: function {found!r} calls itself; expected functions that end: write it again"
        ) from None


def called(node: onnx.NodeProto) -> Key:
    """Return the function that a node calls, if the model has it."""
    return node.domain, node.op_type, node.overload


def _nodes(part: onnx.GraphProto | onnx.FunctionProto) -> list[onnx.NodeProto]:
    return [node for graph in with_bodies(part) for node in graph.node]
