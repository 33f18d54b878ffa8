"""Outputs that decide (argmax, a comparison, the best few, one number): what stands in front of the decision is asked.

A mutant that turns no decision moves no output, though the numbers in front of it move. So the value that a decision is
taken on becomes an output too, in the reference's graph, in the one in which mutants are made and in the file (found
there by what it holds). Where the file agrees there with the reference, in float64 and under the runtime at every
optimization level, a mutant that would have moved that value would have been seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS, Evaluator
from normdeploy.graph.fixed_values import fixed_nodes
from normdeploy.graph.traits import Trait, has, is_standard
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.check_context import Context
from normdeploy.verification.family_case import Case, make_case
from normdeploy.verification.mutation.cut_sides import Cut, CutFile
from normdeploy.verification.mutation.probes import judged_cut
from normdeploy.verification.mutation.rerun import CleanRun, Target, difference_ratio
from normdeploy.verification.mutation.site_cuts import SAME_FILE, SAME_GRAPH
from normdeploy.verification.mutation.split_graph import first_equal
from normdeploy.verification.record.answers import Killer
from normdeploy.verification.sides.flat_values import run_evaluator
from normdeploy.verification.sides.part_reference import PartReference
from normdeploy.verification.sides.subgraph import opened

_NOTE = "exercised in front of a decision: the value it is taken on was compared"


def in_front(graph: ir.Graph, asked: Sequence[ir.Value] | None = None) -> list[str]:
    """Return the names of the values of a graph's main level that its outputs are decisions on.

    Decisions are comparisons, orders and roundings; a reduction to one number hides what it reduces as they do. What no
    input changes (a bound that is cast, a size) is none of these values.

    Args:
        graph: it. asked: those of its outputs that are asked for; all by default.
    """
    found, fixed = dict[str, None](), fixed_nodes(graph).by_sizes
    queue = [(value, _single(value)) for value in (graph.outputs if asked is None else asked)]
    seen = {value for value, _ in queue}
    for value, single in queue:
        node = value.producer()
        if node is None or node.graph is not graph:
            continue
        hides = takes_steps(node, value) or (single and has(node, Trait.REDUCES))
        for item in node.inputs:
            item = None if item is None else _positive(item)
            if item is None or item.producer() is None or item.producer() in fixed:
                continue
            if hides and item.dtype in (None, ir.DataType.FLOAT) and not takes_steps(item.producer(), item):
                found[str(item.name)] = None
            elif item not in seen:
                seen.add(item)
                queue.append((item, single))
    outputs = {str(value.name) for value in graph.outputs}
    return [name for name in found if name not in outputs]


def _positive(value: ir.Value) -> ir.Value:
    """Return what a value is the negative of, if an operator computes that: it moves as far."""
    node = value.producer()
    read = node.inputs[0] if node is not None and is_standard(node, "Neg") else None
    return value if read is None or read.producer() is None else read


def takes_steps(node: ir.Node | None, result: ir.Value) -> bool:
    """Tell whether an operator decides, or cuts numbers down to integers."""
    if node is None:
        return False
    read = node.inputs[0] if has(node, Trait.CONVERTS) else None
    cuts = read is not None and read.dtype in FLOATS and result.dtype is not None and result.dtype not in FLOATS
    return cuts or has(node, Trait.DECIDES)


def _single(value: ir.Value) -> bool:
    """True where an output is declared to hold one number."""
    return value.shape is not None and all(size == 1 for size in value.shape)


def probe_decisions(context: Context, targets: Sequence[Target]) -> None:
    """Report the survivors that move what a decision is taken on.

    Args:
        targets: survivors; those killed get a report.
    """
    for evaluator in dict.fromkeys(target.evaluator for target in targets):
        mine = [t for t in targets if t.evaluator is evaluator and not t.site.inner]
        made = _opened_graphs(context, evaluator) if mine else None
        if made is None:
            continue
        for known in list(context.cases):
            alive = [t for t in mine if t.report is None]
            if not alive:
                break
            case = shown_case(context, made, known)
            if judged_cut(context, made, case)[0]:
                break
            clean_run = CleanRun(made.mutated, case, [t.site for t in alive])
            for target in alive:
                moved = difference_ratio(case, clean_run.outputs, clean_run.mutated(target.site, target.mutant))
                if moved >= case.constants.kill:
                    target.show(moved, case.family.name, _NOTE, by=Killer.SITE)


def _opened_graphs(context: Context, evaluator: Evaluator) -> Cut | None:
    """Return all three graphs with what stands in front of decisions as outputs; None where there is no such value."""
    reference, mutated = context.reference.graph, context.graph_of(evaluator)
    if reference is None or mutated is None or context.noisy is None or not context.links.traced:
        return None
    base, file = context.cases[0], context.subject
    feeds = base.family.feeds
    try:
        values = run_evaluator(evaluator, feeds, fetch=in_front(evaluator.graph))
        names: list[tuple[str, str, str]] = []
        # two values may be one in another graph, or its output: none becomes an output twice
        taken = {str(value.name) for value in reference.graph.outputs}, set(file.output_names)
        for name, value in values.items():
            if value.dtype != np.float64 or not value.size or not np.isfinite(value).all():
                continue
            own = first_equal(context.noisy.evaluator, feeds, value, SAME_GRAPH)
            its = first_equal(file.evaluator, feeds, value, SAME_FILE)
            if own and its and own not in taken[0] and its not in taken[1]:
                names.append((own, name, its))
                taken[0].add(own)
                taken[1].add(its)
    except GraphError:
        return None
    if not names:
        return None
    return shown_cut(context, reference, mutated, names)


def shown_cut(context: Context, reference: ir.Model, mutated: ir.Model, names: Sequence[tuple[str, str, str]]) -> Cut:
    """Return all three graphs with values of them as further outputs.

    Args:
        reference: the reference's graph. mutated: the one that mutants are made in.
        names: of each value there, and in the file.
    """
    base, file = context.cases[0], context.subject
    before, inside, after = (list(part) for part in zip(*names, strict=True))
    graph = opened(reference, before)
    dtypes = [*(np.asarray(a).dtype for a in base.eager), *(np.dtype(np.float32) for _ in names)]
    shown = CutFile(opened(file.model, after), [*file.output_names, *after])
    named = replace(base, names=[*base.names, *inside])
    made = Evaluator(opened(mutated, inside))
    return Cut("decisions", (), base.truth[0], PartReference(graph, dtypes), made, shown, NoisyGraph(graph), named)


def shown_case(context: Context, made: Cut, known: Case) -> Case:
    """Return what the reference makes of a family with those outputs, and how far rounding reaches."""
    return make_case(
        made.reference,
        made.noisy,
        known.family,
        made.base.names,
        runs=context.noise_runs,
        seed=context.seed,
        precision=context.precision,
        fast=context.heavy,
    )
