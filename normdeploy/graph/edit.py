"""How a graph is changed: values that take the place of others, free names, constants put in and taken out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from normdeploy.array_types import Floats
from normdeploy.graph.constant_parts import Parts
from normdeploy.graph.exact import ExactTensor
from normdeploy.graph.walk import graphs_of

_NAMES = "normdeploy.names"
_COUNTERS = "normdeploy.next"


def edit_each(model: ir.Model, edit: Callable[[ir.Graph, ir.Node], bool]) -> ir.passes.PassResult:
    """Offer each operator of every graph to an edit, which tells whether it made one; return what a pass returns."""
    made = [edit(graph, node) for graph in graphs_of(model) for node in list(graph)]
    return ir.passes.PassResult(model, any(made))


def is_read(*values: ir.Value) -> bool:
    """Tell whether an operator reads one of the values, or the graph gives one out."""
    return any(value.uses() or value.is_graph_output() for value in values)


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the operator that reads a value, alone and at one place; None also where the graph gives the value out."""
    uses = value.uses()
    return next(iter(uses)).node if len(uses) == 1 and not value.is_graph_output() else None


def take_place(new: ir.Value, old: ir.Value, *, named: bool = True) -> None:
    """Let whoever reads ``old``, the graph's outputs included, read ``new``, which takes the name over.

    What ``new`` does not know of its type and shape, it takes from ``old``; all of it where the graph gives it out,
    because that is what the graph declares. The operator that makes ``old`` stays: see :func:`take_out`.

    Args:
        new: another value of the same numbers.
        old: has no name afterwards.
        named: False leaves both names as they are, except for an output of the graph, whose name is its caller's.
    """
    outside = old.is_graph_output()
    if outside or new.shape is None:
        new.shape = old.shape or new.shape
    if outside or new.type is None:
        new.type = old.type or new.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if named or outside:
        name, old.name = old.name, None
        rename(new, name)


def rename(value: ir.Value, name: str | None) -> None:
    """Give a value another name, and a constant's tensor the same one."""
    value.name = name
    if value.const_value is not None:
        value.const_value.name = name


def share_names(model: ir.Model) -> None:
    """Read the names of all values of a model once; every graph of it takes its new names from one set.

    One set, because a name in the body of control flow may not repeat one of the graphs around it.
    """
    _share(graphs_of(model))


def _share(graphs: Sequence[ir.Graph]) -> None:
    taken: set[str] = set()
    for graph in graphs:
        taken.update(str(value.name) for value in (*graph.inputs, *graph.initializers.values()))
        for node in graph:
            taken.update(str(output.name) for output in node.outputs)
    counters: dict[str, int] = {}
    for graph in graphs:
        graph.meta[_NAMES], graph.meta[_COUNTERS] = taken, counters


def free_name(graph: ir.Graph, hint: str) -> str:
    """Return ``hint``, or the first of ``hint_1``, ``hint_2``... that no value of the model has.

    Names are read when this is asked first, or at :func:`share_names`; those that others give a graph later are not
    known.
    """
    if _NAMES not in graph.meta:
        _share([graph])
    taken: set[str] = graph.meta[_NAMES]
    counters: dict[str, int] = graph.meta[_COUNTERS]
    name = hint
    while name in taken or name in graph.initializers:
        counters[hint] = counters.get(hint, 0) + 1
        name = f"{hint}_{counters[hint]}"
    taken.add(name)
    return name


def constant_of(tensor: ir.TensorProtocol, name: str) -> ir.Value:
    """Return a value that holds a tensor, in no graph yet."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)


def put_constant(graph: ir.Graph, array: npt.ArrayLike, name: str, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
    """Register numbers as they are stored, integers mostly, under a name of their own."""
    name = free_name(graph, name)
    value = constant_of(ir.Tensor(np.asarray(array).astype(dtype.numpy()), dtype=dtype, name=name), name)
    graph.register_initializer(value)
    return value


def standing_for(
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Sequence[ir.Attr] = (),
    *,
    like: ir.Value | None = None,
) -> ir.Node:
    """Return a standard operator of one result, in no graph yet, with another operator's name and metadata.

    Args:
        node: the other operator. op_type, inputs, attributes: of the new one.
        like: has the type and shape of its result; by default the other operator's result.
    """
    shown = node.outputs[0] if like is None else like
    result = ir.Value(type=shown.type, shape=shown.shape)
    metadata = dict(node.metadata_props)
    return ir.Node("", op_type, inputs, attributes, outputs=[result], name=node.name, metadata_props=metadata)


def read_instead(node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    """Let an operator read other values, as many as there are."""
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


def view_as(graph: ir.Graph, node: ir.Node, source: ir.Value, sizes: Sequence[int]) -> None:
    """Let what reads an operator's result read a Reshape of another value, behind the operator, which stays.

    Args:
        graph: the operator's. node: whose result is replaced. source: what is viewed. sizes: as a Reshape takes them.
    """
    result = node.outputs[0]
    target = put_constant(graph, sizes, f"{result.name}_sizes")
    view = ir.Node("", "Reshape", [source, target], name=node.name, metadata_props=dict(node.metadata_props))
    view.outputs[0].name = free_name(graph, f"{result.name}_view")
    graph.insert_after(node, view)
    take_place(view.outputs[0], result)


def put_exact(
    graph: ir.Graph,
    compute: Callable[[], Floats],
    shape: Sequence[int],
    dtype: ir.DataType,
    name: str,
    parts: Parts | None = None,
) -> ir.Value:
    """Register a constant that is computed in float64 when it is asked for, under a name of its own.

    Args:
        graph: where.
        compute: returns the unrounded value.
        shape: its shape.
        dtype: what it is rounded to in the file.
        name: wanted name.
        parts: computes the same value piece by piece.
    """
    name = free_name(graph, name)
    value = constant_of(ExactTensor(compute, dtype, tuple(shape), name, parts=parts), name)
    graph.register_initializer(value)
    return value


def drop_if_unread(value: ir.Value | None) -> None:
    """Take an initializer that nothing reads out of its graph."""
    if value is None or not value.is_initializer() or value.is_graph_input() or is_read(value):
        return
    if value.graph is not None and value.name is not None:
        value.graph.initializers.pop(value.name)


def take_out(nodes: Iterable[ir.Node]) -> None:
    """Take those of some operators out of their graph that nothing reads, and the constants that only they read."""
    left, more = list(nodes), True
    read: dict[ir.Value | None, None] = {}
    while more:
        more = False
        for node in reversed(left.copy()):
            if node.graph is not None and not is_read(*node.outputs):
                read |= dict.fromkeys(node.inputs)
                node.graph.remove(node, safe=True)
                left.remove(node)
                more = True
    for value in read:
        drop_if_unread(value)


def drop_unread(model: ir.Model) -> bool:
    """Take every operator and constant out that nothing reads; tell whether there was one.

    onnx_ir's pass also drops results of the operators that stay; it looks up what onnx says of each, which takes longer
    than all the rest.
    """
    found = False
    for graph in reversed(graphs_of(model)):
        for node in reversed(graph):
            if not is_read(*node.outputs):
                graph.remove(node, safe=True)
                found = True
        for name, value in list(graph.initializers.items()):
            if not value.is_graph_input() and not is_read(value):
                graph.initializers.pop(name)
                found = True
    return found


def take_out_unread(values: Iterable[ir.Value | None]) -> None:
    """Take out what only computed some values that nothing reads, as far back as that goes, within their graphs."""
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        node = None if value is None else value.producer()
        if node is None:
            drop_if_unread(value)
        elif node.graph is not None and not is_read(*node.outputs):
            waiting += node.inputs
            node.graph.remove(node, safe=True)
