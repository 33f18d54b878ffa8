"""Operators with bodies: If, Loop, Scan and SequenceMap, as the ONNX specification defines them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.graph.operators.call import need
from normdeploy.graph.operators.evaluation_limits import require_turns
from normdeploy.graph.operators.sequences import Parts, sequence

RunBody = Callable[[ir.Graph, list[Tensor]], list[Tensor]]
"""Evaluates a body on its inputs, in order; returns its outputs, in order."""


def run_if(node: ir.Node, inputs: list[Tensor | None], run: RunBody) -> list[Tensor]:
    """Evaluate the branch that the condition chooses."""
    condition = need(inputs, 0)
    return run(node.attributes["then_branch" if bool(condition) else "else_branch"].as_graph(), [])


def run_loop(node: ir.Node, inputs: list[Tensor | None], run: RunBody) -> list[Tensor]:
    """Evaluate the body up to a number of times, while its condition holds; stack what it scans out."""
    body = node.attributes["body"].as_graph()
    limit = None if not inputs or inputs[0] is None else int(inputs[0])
    going = len(inputs) < 2 or inputs[1] is None or bool(inputs[1])
    carried = [need(inputs, i) for i in range(2, len(inputs))]
    scanned: list[list[Tensor]] = [[] for _ in list(body.outputs)[1 + len(carried) :]]
    iteration = 0
    while going and (limit is None or iteration < limit):
        require_turns(f"operator Loop ({node.name})", iteration)
        condition, *found = run(body, [torch.tensor(iteration), torch.tensor(True), *carried])
        going = bool(condition)
        carried, new = found[: len(carried)], found[len(carried) :]
        for items, item in zip(scanned, new, strict=True):
            items.append(item)
        iteration += 1
    declared = list(body.outputs)[1 + len(carried) :]
    return [*carried, *(torch.stack(s) if s else _none_of(v) for s, v in zip(scanned, declared, strict=True))]


def run_scan(node: ir.Node, inputs: list[Tensor | None], run: RunBody) -> list[Tensor]:
    """Evaluate the body for each slice of the scanned inputs, from version 9 on."""
    body = node.attributes["body"].as_graph()
    count = node.attributes.get_int("num_scan_inputs", 0)
    values = [need(inputs, i) for i in range(len(inputs))]
    state, scans = values[: len(values) - count], values[len(values) - count :]
    ins = _axes(node, "scan_input_axes", count), _axes(node, "scan_input_directions", count)
    slices = [_slices(x, axis, bool(back)) for x, axis, back in zip(scans, *ins, strict=True)]
    outputs = len(body.outputs) - len(state)
    scanned: list[list[Tensor]] = [[] for _ in range(outputs)]
    for items in zip(*slices, strict=True):
        found = run(body, [*state, *items])
        state, new = found[: len(state)], found[len(state) :]
        for column, item in zip(scanned, new, strict=True):
            column.append(item)
    outs = _axes(node, "scan_output_axes", outputs), _axes(node, "scan_output_directions", outputs)
    stacked = [
        torch.stack(column[::-1] if back else column, axis) for column, axis, back in zip(scanned, *outs, strict=True)
    ]
    return [*state, *stacked]


def _none_of(value: ir.Value) -> Tensor:
    """Return no items, each as a body declares it; a size it does not declare is 0, as in onnxruntime."""
    sizes = [dim if isinstance(dim, int) else 0 for dim in value.shape or ()]
    return torch.empty(0, *sizes, dtype=torch.float64)


def _axes(node: ir.Node, name: str, count: int) -> list[int]:
    return list(node.attributes.get_ints(name, ()) or repeat(0, count))


def _slices(x: Tensor, axis: int, backwards: bool) -> list[Tensor]:
    items = list(x.unbind(axis))
    return items[::-1] if backwards else items


def run_scans(node: ir.Node, inputs: list[Tensor | None], run: RunBody) -> list[Tensor]:
    """Evaluate the Scan of opset 8: one scan per sample, each of its own length; what lies behind its end is zero."""
    body = node.attributes["body"].as_graph()
    count = node.attributes.get_int("num_scan_inputs", 0)
    values = [need(inputs, i) for i in range(1, len(inputs))]
    first = len(values) - count
    back = _axes(node, "directions", count)
    longest = values[first].shape[1]
    lengths = [longest] * len(values[0]) if inputs[0] is None else [int(item) for item in inputs[0]]
    rows: list[list[Tensor]] = []
    for sample, length in enumerate(lengths):
        state = [value[sample] for value in values[:first]]
        scans = [_slices(x[sample, :length], 0, bool(b)) for x, b in zip(values[first:], back, strict=True)]
        scanned: list[list[Tensor]] = [[] for _ in range(len(body.outputs) - first)]
        for items in zip(*scans, strict=True):
            found = run(body, [*state, *items])
            state, new = found[:first], found[first:]
            for column, item in zip(scanned, new, strict=True):
                column.append(item)
        padded = [torch.stack([*column, *(torch.zeros_like(column[0]),) * (longest - length)]) for column in scanned]
        rows.append([*state, *padded])
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def run_sequence_map(node: ir.Node, inputs: list[Tensor | None], run: RunBody) -> list[Tensor]:
    """Evaluate the body for each part of the first sequence, with that part of the others and with all of a tensor."""
    body = node.attributes["body"].as_graph()
    rows = [run(body, given) for given in parts_of(inputs)]
    return [sequence([row[place] for row in rows]) for place in range(len(body.outputs))]


def parts_of(inputs: list[Tensor | None]) -> list[list[Tensor]]:
    """Return what the body of a SequenceMap is given for each part of its first operand."""
    values = [need(inputs, i) for i in range(len(inputs))]
    if not isinstance(values[0], Parts):
        raise ValueError("input 0 is a tensor; SequenceMap takes a sequence")
    return [
        [value.parts[place] if isinstance(value, Parts) else value for value in values]
        for place in range(len(values[0].parts))
    ]


BODIES: dict[str, Callable[[ir.Node, list[Tensor | None], RunBody], list[Tensor]]] = {
    "If": run_if,
    "Loop": run_loop,
    "Scan": run_scan,
    "SequenceMap": run_sequence_map,
}
