"""Operators of the file that nothing explains and that did nothing in any sample: what they do otherwise was not seen.

A bound of 100000, a Where that always takes one side, a Relu that adds 0 to all that is below 100000, a cast to a type
that holds every number that was fed: the file computes the same with and without, as far as samples go, so that no
check could have failed by them. One that only looks at indices of a table, or at a mask, is tried on every one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normdeploy.errors import GraphError, InputError
from normdeploy.graph import constant_tensor
from normdeploy.graph.traits import Trait, has
from normdeploy.verification.check_context import Context
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.samples.ranges import InputRange
from normdeploy.verification.sides.exact_agreement import plural, shortened
from normdeploy.verification.sides.watch import Watch, same_tensor


def check_idle(context: Context) -> list[Check]:
    """Name the operators that no sample shows at work, and that nothing explains."""
    watch = context.subject.watch
    if watch is None or context.failed:
        return []
    idle = [node for node in watch.idle.values() if not _tried_on_every_number(context, node)]
    if not idle:
        return []
    told = shortened(
        [f"{node.op_type} {str(node.name or node.outputs[0].name)!r} {_what(watch, node)}" for node in idle]
    )
    text = (
        f"{told} in all {plural(watch.runs, 'run')}, and no algebra explains it: what the file does otherwise was not "
        "seen; give inputs on which it acts (data=, --data)"
    )
    return [Check(Question.IDLE, Status.NOT_EXERCISED, text)]


def _what(watch: Watch, node: ir.Node) -> str:
    if has(node, Trait.COMPARES) or _is_truth(node):
        return "gave one answer"
    number = watch.numbers.get(str(node.outputs[0].name))
    return "returned what it read" if number is None else f"returned {number:g} everywhere"


def _is_truth(node: ir.Node) -> bool:
    return node.outputs[0].dtype is ir.DataType.BOOL


def _tried_on_every_number(context: Context, node: ir.Node) -> bool:
    """Tell whether an operator that only looks at indices of a table, or at a mask, returns each of them as it is."""
    read = node.inputs[0]
    spec = _input_behind(context, node)
    if read is None or read.name is None or spec is None or has(node, Trait.COMPARES) or _is_truth(node):
        return False
    every = np.arange(spec.table or 2).astype(spec.dtype).reshape(-1, *(1,) * (len(spec.shape) - 1))
    feeds = {**context.cases[0].family.feeds, spec.name: every}
    name = str(node.outputs[0].name)
    try:
        found = context.subject.evaluator.run(feeds, fetch=[read.name, name])
    except (GraphError, InputError):
        return False
    return same_tensor(found[read.name], found[name])


def _input_behind(context: Context, node: ir.Node) -> InputRange | None:
    """Return the indices, or the mask, that an operator alone depends on, place by place; None where it is no such."""
    specs = {spec.name: spec for spec in context.specs}
    found: set[str] = set()
    queue = [node]
    for one in queue:
        if not has(one, Trait.POINTWISE):
            return None
        for value in one.inputs:
            if value is None or constant_tensor(value) is not None:
                continue
            producer = value.producer()
            if producer is not None:
                queue.append(producer)
            else:
                found.add(str(value.name))
    spec = specs.get(next(iter(found))) if len(found) == 1 else None
    return spec if spec is not None and (spec.table or spec.is_mask) and not spec.is_float else None
