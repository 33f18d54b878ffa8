"""torch's exporter traces each program twice; the second trace is left out where what it writes is known.

``torch.export`` traces the module. ``run_decompositions`` then runs what was traced and traces that, to put others in
the place of operators that ONNX has no translation of. Both take about as long. Most operators have a translation and
come out of the second trace as they went in. Others stand for one or two more, each by itself:

- what torch makes of others, as ``reshape`` (:mod:`normdeploy.exporting.torch_exporter.composite_operators`);
- a few of evaluation, as ``batch_norm`` (:mod:`normdeploy.exporting.torch_exporter.retraced_operators`);
- what writes into a tensor that nothing else reads, as the ReLU behind a convolution: what returns the same instead.

Where every operator is one of these, they are written and the second trace is not made.

`tests/exporting/test_second_trace.py` compares the graphs with those of two traces. Names and the order of weights may
differ, and how a pool of channels-last images lies in memory, which a file does not say: the second trace also counts
what it computes of sizes, and calls the only sum ``add_14``.

The functions asked here are torch 2.13's and not public; where one has moved, torch traces twice.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node

from normdeploy.exporting.torch_exporter.composite_operators import COMPOSED, Calls, calls_of
from normdeploy.exporting.torch_exporter.computed_weights import keep_computed_weights
from normdeploy.exporting.torch_exporter.retraced_operators import RETRACED

aten = torch.ops.aten

_INPUTS = (InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_ASSERTED = frozenset({aten._assert_scalar.default, aten._assert_tensor_metadata.default})
"""What the exporter drops."""

_OF_SIZES = _ASSERTED | {
    aten.sym_size.int, torch.sym_not, torch.sym_max, torch.sym_min, operator.add, operator.sub, operator.mul,
    operator.floordiv, operator.mod, operator.neg, operator.eq, operator.ne, operator.lt, operator.le, operator.gt,
    operator.ge, operator.and_, operator.or_, math.ceil,
}  # fmt: skip
"""Numbers computed of sizes, and what is said of them; computed once more, they are the same."""

_FRESH = frozenset({
    aten.linear.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.batch_norm.default,
    aten.layer_norm.default, aten.group_norm.default, aten.instance_norm.default, aten.matmul.default,
})  # fmt: skip
"""Made of others, and what they return is nobody else's: torch says so of all operators but these."""

_Plan = Mapping[Node, Calls | None]
"""What stands for each operator that does not come out as it went in; None for one of `RETRACED`."""


@dataclass(frozen=True)
class _AsItStands:
    """Whether an operator has a translation, writes nothing in place, and is not made of others by a trace."""

    translated: set[Any]
    composite: Callable[[Any], bool]
    kept_whole: Callable[[Any], bool]

    def __call__(self, target: Any) -> bool:
        if target is operator.getitem:
            return True
        if target not in self.translated or not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
            return False
        return not self.composite(target) or self.kept_whole(target)

    def fresh(self, node: Node) -> bool:
        """Whether a node's result lies in memory of its own."""
        target = node.target
        if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
            return False
        returned = target._schema.returns
        return target in _FRESH or (not self.composite(target) and all(value.alias_info is None for value in returned))


@contextmanager
def second_trace_where_needed() -> Iterator[None]:
    """Let ``torch.onnx.export`` in this block trace a program again only if that changes more than is known."""
    try:
        from torch._export.utils import _is_cia_op, _is_preservable_cia_op
        from torch.onnx._internal.exporter import _decomp, _fx_passes

        translated, twice = _decomp.get_onnx_implemented_overloads, _fx_passes.decompose_with_registry
    except (ImportError, AttributeError):  # moved
        yield
        return

    def once(exported_program: ExportedProgram, registry: Any) -> ExportedProgram:
        as_it_stands = _AsItStands(set(translated(registry)), _is_cia_op, _is_preservable_cia_op)
        plan = _planned(exported_program, as_it_stands)
        if plan is None:
            exported_program = twice(exported_program, registry)
            keep_computed_weights(exported_program, as_it_stands.translated)
        else:
            _write(exported_program, plan)
        return exported_program

    _fx_passes.decompose_with_registry = once
    try:
        yield
    finally:
        _fx_passes.decompose_with_registry = twice


def _planned(program: ExportedProgram, as_it_stands: _AsItStands) -> _Plan | None:
    """Return what the second trace writes in the place of which operators; None where that is not known."""
    nodes = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    if not all(node.op == "call_function" for node in nodes) or not _only_computes(program, nodes):
        return None  # a body, or more than a function of inputs and weights
    unread, found = _unread(program.graph), dict[Node, Calls | None]()
    for node in nodes:
        target: Any = node.target
        if node in unread or target in _OF_SIZES:
            continue
        if not _gives_tensors(node):
            return None
        if target in RETRACED:
            if not RETRACED[target].holds(node):
                return None
            found[node] = None
        elif not as_it_stands(target):
            found[node] = _calls(node, as_it_stands, found)
            if found[node] is None:
                return None
    return found


def _calls(node: Node, as_it_stands: _AsItStands, before: _Plan) -> Calls | None:
    """Return what stands for an operator.

    Args:
        node: its node. as_it_stands: of the trace. before: what stands for those in front.
    """
    target: Any = node.target
    if target in COMPOSED:
        return calls_of(node, as_it_stands)
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return None
    written: Any = node.args[0]
    written_before = written in before and written.target._schema.is_mutable  # into what was fresh
    if list(written.users) != [node] or not (written_before or as_it_stands.fresh(written)):
        return None  # something else reads it, or the memory that it lies in
    if target is aten.detach_.default:
        return calls_of(node, as_it_stands)
    name = target._schema.name.removeprefix("aten::").removesuffix("_")
    returning = getattr(getattr(aten, name, None), target._overloadname, None)
    calls = None if returning is None else calls_of(node, as_it_stands, returning)
    if calls is None or [call.target for call in calls.made] != [returning]:
        return None
    read, made = written.meta["val"], calls.made[0].value
    return calls if (read.dtype, read.shape) == (made.dtype, made.shape) else None


def _unread(graph: Graph) -> set[Node]:
    """Return what no result depends on; what says something of sizes is for its own sake."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "call_function" and set(node.users) <= found and not node.is_impure():
            found.add(node)
    return found


def _gives_tensors(node: Node) -> bool:
    value = node.meta.get("val")
    return all(isinstance(one, torch.Tensor) for one in (value if isinstance(value, (tuple, list)) else [value]))


def _only_computes(program: ExportedProgram, nodes: Sequence[Node]) -> bool:
    """Whether a program reads inputs, weights and constants, and returns each of its results once."""
    signature = program.graph_signature
    if not all(spec.kind in _INPUTS for spec in signature.input_specs):
        return False
    given = {node for node in program.graph.find_nodes(op="placeholder") if node.name in signature.user_inputs}
    returned = program.graph.output_node().args[0]
    return (
        all(spec.kind is OutputKind.USER_OUTPUT for spec in signature.output_specs)
        and isinstance(returned, Sequence)
        and all(isinstance(node, Node) for node in returned)
        and len(set(returned)) == len(returned)
        and set(returned) <= {*nodes, *given}
    )


def _write(program: ExportedProgram, plan: _Plan) -> None:
    """Put in their place what stands for operators, each with the name that a trace gives it."""
    graph, counts = program.graph, dict.fromkeys(RETRACED, 0)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and not node.is_impure():
            graph.erase_node(node)
    replaced: dict[Node, Node] = {}
    for node, calls in plan.items():
        if calls is not None:
            other = calls.write(graph, node, replaced)
        else:
            with graph.inserting_before(node):
                other = RETRACED[node.target].write(graph, node, counts[node.target])
            counts[node.target] += 1
        replaced[node] = other
        for reader in list(node.users):
            reader.replace_input_with(node, other)
            if reader.op == "output":  # for others the signature, as long as the weights are many, is not walked
                program.graph_signature.replace_all_uses(node.name, other.name)
        graph.erase_node(node)
