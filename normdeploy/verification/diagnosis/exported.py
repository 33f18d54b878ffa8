"""A file that is wrong in float64: its first stored number, or its first value, that is not what it should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Arrays
from normdeploy.graph import Evaluator, module_path
from normdeploy.verification.bounds.criteria import finite_alike, relative_rms
from normdeploy.verification.check_context import Context
from normdeploy.verification.diagnosis.bundle import write_bundle
from normdeploy.verification.family_case import Case
from normdeploy.verification.record.answers import Localization
from normdeploy.verification.sides.exact_agreement import is_float
from normdeploy.verification.sides.flat_values import UNIT_ROUNDOFF, run_evaluator
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.subgraph import subgraph

MOST_VALUES = 400
"""Values of a graph that are looked at."""


def first_bad_value(context: Context, case: Case, found: Localization) -> Localization:
    """Compare the file's numbers, then its values with those of the same name in the graph it should be.

    Args:
        case: the inputs that show the failure. found: what is known of it.
    """
    if context.contradicted:
        first = context.contradicted[0]
        return replace(found, where=first.where, op="stored weights", value=first.result, stored=first.reason)
    produced = {str(v.name): node for node in context.subject.model.graph for v in node.outputs if v.name}
    model, shared = _most_alike(context, produced)
    if model is None:
        return found
    right = run_evaluator(Evaluator(model), case.family.feeds, fetch=shared)
    wrong = run_evaluator(context.subject.evaluator, case.family.feeds, fetch=shared)
    for number, name in enumerate(shared):
        if _differs(right[name], wrong[name]):
            node = produced[name]
            found = replace(found, where=module_path(node), op=node.op_type, value=name)
            return _with_bundle(context, case, found, shared[:number], right)
    return found


def _most_alike(context: Context, produced: dict[str, ir.Node]) -> tuple[ir.Model | None, list[str]]:
    """Return the graph, of those that the file should be, that has most values by the same names, and these."""
    best: tuple[ir.Model | None, list[str]] = None, []
    for model in (context.derived, context.canonical, context.reference.graph):
        names = set() if model is None else {str(v.name) for node in model.graph for v in node.outputs}
        shared = [name for name in produced if name in names][:MOST_VALUES]
        if len(shared) > len(best[1]):
            best = model, shared
    return best


def _differs(right: Array, found: Array) -> bool:
    if not is_float(right):
        return not np.array_equal(right, found)
    return not finite_alike(right, found) or relative_rms(right, found) > 16 * UNIT_ROUNDOFF["float32"]


def _with_bundle(
    context: Context, case: Case, found: Localization, matching: Sequence[str], right: Arrays
) -> Localization:
    """Write the subgraph from the last values that agree to the first that does not, with the right result expected."""
    if context.folder is None:
        return found
    file, name = context.subject.model, found.value
    nodes = _between(file, name, {*matching, *context.subject.input_names})
    read = sorted({str(v.name) for n in nodes for v in n.inputs if v is not None and v.name})
    values = {n: np.asarray(case.family.feeds[n]) for n in read if n in case.family.feeds}
    values |= {n: _as_stored(right[n]) for n in [*read, name] if n in right}
    small = subgraph(file, nodes, [name], values)
    bound = 64 * UNIT_ROUNDOFF["float32"] * float(np.abs(right[name][np.isfinite(right[name])]).max(initial=0.0))
    command = write_bundle(
        context.folder,
        small,
        {str(v.name): values[str(v.name)] for v in small.graph.inputs},
        {name: values[name]},
        {name: bound},
        Setting(level="disable"),
        note=f"{name} is wrong in the file",
    )
    return replace(found, bundle=str(context.folder), rerun=command)


def _between(model: ir.Model, name: str, known: set[str]) -> list[ir.Node]:
    """Return the nodes that compute ``name`` from known values, in graph order."""
    needed, nodes = {name}, []
    for node in reversed(list(model.graph)):
        if any(v.name in needed for v in node.outputs) and node.op_type != "Constant":
            nodes.append(node)
            needed |= {str(v.name) for v in node.inputs if v is not None and v.name and v.name not in known}
    return nodes[::-1]


def _as_stored(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float64 else array
