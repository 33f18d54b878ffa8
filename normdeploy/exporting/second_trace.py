"""torch's exporter traces each program twice; the second trace is left out where it would repeat the first.

``torch.export`` traces the module. ``run_decompositions`` then runs what was traced and traces that, to put others in
the place of operators that ONNX has no translation of. Both take about as long. A program whose operators all have a
translation, write nothing in place and are not made of others comes out of the second trace as it went in, but for a
few operators of evaluation that become one other (:mod:`normdeploy.exporting.retraced_operators`).

`tests/exporting/test_second_trace.py` compares the graphs with those of two traces. Names and the order of weights may
differ, and nothing else: the second trace also counts what it computes of sizes, and calls the only sum ``add_14``.

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
from torch.fx import Node

from normdeploy.exporting.retraced_operators import BATCH_NORM, RETRACED, write_retraced

_INPUTS = (InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER)


@dataclass(frozen=True)
class _AsItStands:
    """Whether an operator has a translation, writes nothing in place, and is not made of others by a trace."""

    translated: set[Any]
    composite: Callable[[Any], bool]
    kept_whole: Callable[[Any], bool]

    def __call__(self, node: Node) -> bool:
        target = node.target
        if target is operator.getitem:
            return True
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
        write_retraced(exported_program)
        return exported_program

    _fx_passes.decompose_with_registry = once
    try:
        yield
    finally:
        _fx_passes.decompose_with_registry = twice


def _repeats(program: ExportedProgram, as_it_stands: Callable[[Node], bool]) -> bool:
    """Whether a second trace gives the same operators in the same order, those of `RETRACED` aside."""
    nodes = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    if not all(node.op == "call_function" and node.users and _gives_tensors(node) for node in nodes):
        return False  # a body, what nobody reads, or a size
    if not _only_computes(program, nodes):
        return False
    if {BATCH_NORM, operator.getitem} <= {node.target for node in nodes}:  # their results are counted together
        return False
    return all(
        as_it_stands(node) if node.target not in RETRACED else RETRACED[node.target].holds(node) for node in nodes
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
