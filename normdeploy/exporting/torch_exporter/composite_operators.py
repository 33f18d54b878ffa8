"""Operators that torch makes of others, and which those are: asked of torch itself, on the trace's own stand-ins.

The second trace of torch's exporter writes ``reshape`` as a ``view``, or as a ``clone`` and a ``view``, by how its
tensor lies in memory; ``chunk`` becomes ``split``, ``std`` the root of a variance. What one of them becomes is seen by
running it alone, on the fake tensors that the first trace left, while what it calls is noted.

Only the operators of `COMPOSED` are asked: none calls another that the exporter would keep whole, which is not seen
here. `tests/exporting/test_second_trace.py` holds each against two traces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.fx import Graph, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from normdeploy.graph.scopes import NO_MODULE

aten = torch.ops.aten
COMPOSED = frozenset({
    aten.reshape.default, aten.unflatten.int, aten.flatten.using_ints, aten.contiguous.default, aten.chunk.default,
    aten.narrow.default, aten.movedim.int, aten.movedim.intlist, aten.swapaxes.default, aten.mT.default,
    aten.numpy_T.default, aten.expand_as.default, aten.reshape_as.default, aten.view_as.default, aten.to.dtype,
    aten.to.device, aten.to.dtype_layout, aten.std.dim, aten.var.dim, aten.std.correction, aten.var.correction,
    aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input,
})  # fmt: skip


@dataclass(frozen=True)
class _Called:
    """A call: tensors are nodes of the program, or the calls before that they come from."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: Any


@dataclass(frozen=True)
class _Result:
    """What a call of this number returned."""

    number: int


@dataclass(frozen=True)
class _Size:
    """The size of an input that a symbol stands for."""

    symbol: torch.SymInt


@dataclass(frozen=True)
class Calls:
    """What an operator calls, in order; none where it returns what it was given."""

    made: Sequence[_Called]
    result: Any

    def write(self, graph: Graph, like: Node, replaced: Mapping[Node, Node]) -> Node:
        """Put the calls in front of a node and return the one whose result is the node's.

        Args:
            graph: of the program. like: the node. replaced: what stands for operators that are gone.
        """
        written: list[Node] = []

        def node_of(part: Any) -> Any:
            if isinstance(part, Node):
                return replaced.get(part, part)
            if isinstance(part, _Result):
                return written[part.number]
            return _size_node(graph, part.symbol) if isinstance(part, _Size) else part

        for call in self.made:
            args, kwargs = tree_map(node_of, (call.args, call.kwargs))
            name = call.target._schema.name.partition("::")[2]
            with graph.inserting_before(like):
                node = graph.create_node("call_function", call.target, args, kwargs, name=name)
            node.meta = {**like.meta, "val": call.value}
            written.append(node)
        found: Node = node_of(self.result)
        return found


class _Noted(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's
    """Notes what is called; what is neither translated nor made of others in C++ is by torch's own table."""

    def __init__(self, as_it_stands: Callable[[Any], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self._as_it_stands = as_it_stands
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in decomposition_table and not self._as_it_stands(func):
            with self:
                return decomposition_table[func](*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func.namespace != "prim":  # asks a tensor where it is
            self.calls.append((func, args, dict(kwargs or {}), result))
        return result


def calls_of(node: Node, as_it_stands: Callable[[Any], bool], target: Any = None) -> Calls | None:
    """Return what a node's operator, or one called in its place, calls on the node's own arguments.

    Args:
        node: of a traced program. as_it_stands: whether an operator comes out of the second trace as it goes in.
        target: called in place of the node's operator.

    Returns:
        The calls; None where one of them is of another kind, or reads what the program does not hold.
    """
    given = {id(read.meta["val"]): read for read in node.all_input_nodes}
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda read: read.meta["val"])
    modes = [mode for leaf in tree_leaves((args, kwargs)) for mode in [getattr(leaf, "fake_mode", None)] if mode]
    if not modes:
        return None
    noted = _Noted(as_it_stands)
    call: Any = target or node.target
    with torch.no_grad(), modes[0], noted:
        result = call(*args, **kwargs)
    known: dict[int, Any] = dict(given)
    made: list[_Called] = []
    for func, read, options, value in noted.calls:
        parts = tree_map(lambda part: _part(node, known, part), (read, options))
        if any(part is None for part in _asked(read, options, parts)):
            return None
        made.append(_Called(func, parts[0], parts[1], value))
        known[id(value)] = _Result(len(made) - 1)
    if not all(as_it_stands(called.target) for called in made):
        return None
    where = known.get(id(result))
    if where is None and isinstance(result, (tuple, list)) and made and _same(result, made[-1].value):
        where = _Result(len(made) - 1)
    return None if where is None else Calls(made, where)


def _same(one: Sequence[Any], other: Any) -> bool:
    return isinstance(other, (tuple, list)) and [id(part) for part in one] == [id(part) for part in other]


def _asked(args: Any, kwargs: Any, parts: Any) -> list[Any]:
    """Return what stands for the tensors and symbols among arguments."""
    pairs = zip(tree_leaves((args, kwargs)), tree_leaves(parts), strict=True)
    return [found for given, found in pairs if isinstance(given, (Tensor, torch.SymInt))]


def _part(node: Node, known: Mapping[int, Any], part: Any) -> Any:
    if isinstance(part, Tensor):
        return known.get(id(part))
    if not isinstance(part, torch.SymInt):
        return part
    for read in node.all_input_nodes:
        value = read.meta["val"]
        if isinstance(value, torch.SymInt) and value.node.expr == part.node.expr:
            return read
    return _Size(part) if _keeps_sizes(node) and _input_of(node.graph, part) is not None else None


def _keeps_sizes(node: Any) -> bool:
    """Whether a symbol among the sizes of the result is a size that was there, and not computed of others."""
    if node.target is aten.flatten.using_ints:
        x = node.args[0].meta["val"]
        start, end = [at % x.ndim for at in (*node.args[1:], *(0, -1)[len(node.args) - 1 :])]
        return all(isinstance(size, int) for size in x.shape[start : end + 1])
    if node.target is aten.unflatten.int:
        x, axis = node.args[0].meta["val"], node.args[1]
        return isinstance(x.shape[axis], int)
    if node.target in (aten.expand_as.default, aten.reshape_as.default, aten.view_as.default):
        return True  # those of the other operand
    return node.target in (aten.std.dim, aten.var.dim, aten.std.correction, aten.var.correction)


def _input_of(graph: Graph, size: torch.SymInt) -> tuple[Node, int] | None:
    """Return the first input, and its dimension, that is as long as a symbol says; None where a size is computed."""
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        sizes: tuple[Any, ...] = value.shape if isinstance(value, torch.Tensor) else ()  # torch types them as numbers
        for axis, other in enumerate(sizes):
            if isinstance(other, torch.SymInt) and other.node.expr == size.node.expr:
                return node, axis
    return None


def _size_node(graph: Graph, size: torch.SymInt) -> Node:
    """Return the node that asks an input for its size, made in front of the first operator."""
    found = _input_of(graph, size)
    assert found is not None  # it is where this operator was found to hold
    for user in found[0].users:
        if user.target is aten.sym_size.int and user.args == found:
            return user
    operators = [node for node in graph.nodes if node.op != "placeholder"]
    first = next(node for node in operators if node.target is not aten.sym_size.int)
    with graph.inserting_before(first):
        node = graph.create_node("call_function", aten.sym_size.int, found, name="sym_size_int_1")
    node.meta = {"val": size, "nn_module_stack": {NO_MODULE: (NO_MODULE, NO_MODULE)}}
    return node
