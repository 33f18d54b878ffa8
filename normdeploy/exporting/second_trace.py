"""torch's exporter traces each program twice; the second trace is left out where it would repeat the first.

``torch.export`` traces the module. ``run_decompositions`` then runs what was traced and traces that, to put others in
the place of operators that ONNX has no translation of. Both take about as long. A program whose operators all have a
translation, write nothing in place and are not made of others comes out of the second trace as it went in, but for a
BatchNorm in evaluation mode, which becomes

    batch_norm(x, w, b, m, v, training=False) = _native_batch_norm_legit_no_training(x, w, b, m, v)[0]

`tests/exporting/test_second_trace.py` compares the graphs with those of two traces. Names alone may differ: the second
trace also counts what it computes of sizes, and calls the network's only sum ``add_14``.

The functions asked here are torch 2.13's and not public; where one has moved, torch traces twice.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node

_BATCH_NORM = torch.ops.aten.batch_norm.default
_IN_ITS_PLACE = torch.ops.aten._native_batch_norm_legit_no_training.default
_RESULTS = 3
"""What the operator in its place returns; torch counts a node for each, though only the first is read."""

_INPUTS = (InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER)


@dataclass(frozen=True)
class _AsItStands:
    """Whether an operator has a translation, writes nothing in place, and is not made of others by a trace."""

    translated: set[Any]
    composite: Callable[[Any], bool]
    kept_whole: Callable[[Any], bool]

    def __call__(self, target: Any) -> bool:
        if target not in self.translated or not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
            return False
        return not self.composite(target) or self.kept_whole(target)


@contextmanager
def second_trace_where_needed() -> Iterator[None]:
    """Let ``torch.onnx.export`` in this block trace a program again only if that changes it."""
    try:
        from torch._export.utils import _is_cia_op, _is_preservable_cia_op
        from torch.onnx._internal.exporter import _decomp, _fx_passes

        translated, twice = _decomp.get_onnx_implemented_overloads, _fx_passes.decompose_with_registry
    except (ImportError, AttributeError):  # moved
        yield
        return

    def once(exported_program: ExportedProgram, registry: Any) -> ExportedProgram:
        if not _repeats(exported_program, _AsItStands(set(translated(registry)), _is_cia_op, _is_preservable_cia_op)):
            return twice(exported_program, registry)
        _exchange_batch_norms(exported_program)
        return exported_program

    _fx_passes.decompose_with_registry = once
    try:
        yield
    finally:
        _fx_passes.decompose_with_registry = twice


def _repeats(program: ExportedProgram, as_it_stands: Callable[[Any], bool]) -> bool:
    """Whether a second trace gives the same operators in the same order, BatchNorms aside."""
    nodes = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    if not all(node.op == "call_function" and node.users and _gives_tensors(node) for node in nodes):
        return False  # a body, what nobody reads, or a size
    if not _only_computes(program, nodes):
        return False
    targets = {node.target for node in nodes}
    if {_BATCH_NORM, operator.getitem} <= targets:  # their results are counted together
        return False
    return all(as_it_stands(target) for target in targets - {_BATCH_NORM, operator.getitem}) and all(
        _evaluates(node) for node in nodes if node.target is _BATCH_NORM
    )


def _gives_tensors(node: Node) -> bool:
    value = node.meta.get("val")
    return all(isinstance(one, torch.Tensor) for one in (value if isinstance(value, (tuple, list)) else [value]))


def _only_computes(program: ExportedProgram, nodes: Sequence[Node]) -> bool:
    """Whether a program reads inputs and weights, and returns each of its results once."""
    signature = program.graph_signature
    if program.constants or not all(spec.kind in _INPUTS for spec in signature.input_specs):
        return False
    returned = program.graph.output_node().args[0]
    return (
        all(spec.kind is OutputKind.USER_OUTPUT for spec in signature.output_specs)
        and isinstance(returned, Sequence)
        and len(set(returned)) == len(returned)
        and set(returned) <= set(nodes)
    )


def _evaluates(batch_norm: Node) -> bool:
    _, _, _, mean, variance, training, *_ = batch_norm.args
    return training is False and mean is not None and variance is not None


def _exchange_batch_norms(program: ExportedProgram) -> None:
    """Write BatchNorms in evaluation mode as the operator that has a translation, named as a trace names it."""
    graph = program.graph
    for at, node in enumerate(_batch_norms(graph)):
        x, weight, bias, mean, variance, _, momentum, eps, *_ = node.args
        args = (x, weight, bias, mean, variance, momentum, eps)
        with graph.inserting_before(node):
            whole = graph.create_node("call_function", _IN_ITS_PLACE, args, name=_IN_ITS_PLACE._schema.name[6:])
            name = f"getitem_{_RESULTS * at}" if at else "getitem"
            result = graph.create_node("call_function", operator.getitem, (whole, 0), name=name)
        value = node.meta["val"]
        whole.meta = {**node.meta, "val": (value, *(value.new_empty(0) for _ in range(_RESULTS - 1)))}
        result.meta = dict(node.meta)
        for reader in list(node.users):
            reader.replace_input_with(node, result)
        program.graph_signature.replace_all_uses(node.name, result.name)
        graph.erase_node(node)


def _batch_norms(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.target is _BATCH_NORM]
