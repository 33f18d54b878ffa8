"""Where the reference's graph, the graph of the mutants and the file are cut to feed a site, and whether to believe it.

A cut is believed only where it is seen to be right: with the value that the model computes, and with other samples'
values in its place, the cut graphs agree (probes.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator, constant_tensor, weight_bytes
from normdeploy.graph.operator_evaluation import as_constant, evaluate_node
from normdeploy.graph.traits import Trait, has, kind_of
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.rewrite.integer import sums_integers
from normdeploy.verification.bounds.criteria import rms
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.check_context import Context
from normdeploy.verification.judging.float64_outputs import logic_problems
from normdeploy.verification.mutation.cut_sides import Cut, CutFile
from normdeploy.verification.mutation.mutants import Site
from normdeploy.verification.mutation.split_graph import all_equal, dominators, joined, with_input_at
from normdeploy.verification.mutation.unfed import unfed
from normdeploy.verification.sides.flat_values import run_evaluator
from normdeploy.verification.sides.part_reference import PartReference

_LARGEST = 1 << 30
"""Bytes of weights above which a file is not cut: each cut holds them once more in a session."""

SAME_GRAPH = 1e-12
SAME_FILE = 1e-6
"""Relative RMS difference up to which two values are taken for the same before the cut is tried: what rounding stored
weights does. A fresh BatchNorm's scale, 1 - 5e-6, which a fold moved elsewhere, is another value."""

_ENTRIES = 3
"""How many entries of a site are tried: a file that fuses its norm holds the outermost only."""


def cut_at(
    context: Context, site: Site, evaluator: Evaluator, entry: str, made: dict[tuple[Evaluator, str], Cut | str]
) -> Cut | str:
    """Cut at an entry, once; the reason in words where that cannot be."""
    key = evaluator, entry
    if key not in made:
        made[key] = _made(context, site, evaluator, entry)
    return made[key]


def values_to_cut_at(site: Site, evaluator: Evaluator) -> list[str]:
    """Return the values to cut at, in the order in which to try them.

    A file that folds a site into what computes its input has no such value, but may have one further up through which
    all of it passes. A norm's epsilon shows on rows of small spread, best fed right there; an affine map shows on
    ordinary rows, and the further up these go in, the more is alive behind them (equal keys hide a query's scale).
    """
    computed = {str(v.name): v for node in evaluator.graph for v in node.outputs}
    if computed.get(site.output) in unfed(evaluator.graph):
        return []  # one value is there, whatever is fed
    if site.is_epsilon:
        return dominators(joined(site.node.outputs[0]))[:_ENTRIES]
    value = computed.get(site.inputs[0])
    above = [] if value is None else dominators(value)
    # a file that does not hold what an operator moves does not hold its result either
    moved = Trait.MOVES | Trait.JOINS | Trait.CONVERTS
    distinct = [name for name in above if name in computed and not has(computed[name].producer(), moved)]
    found = [site.inputs[0], *distinct[:_ENTRIES]]
    return found[::-1] if site.is_affine else found


def _made(context: Context, site: Site, evaluator: Evaluator, entry: str) -> Cut | str:
    """Cut the three graphs at a site's entry; the reason in words where that cannot be done or is not right."""
    base = context.cases[0]
    reference, mutated = context.reference.graph, context.graph_of(evaluator)
    if reference is None or mutated is None or context.noisy is None:
        return "the reference has no graph"
    if not context.links.traced:
        return "the traced graph is not the eager model in float64, so nothing would be shown of the model"
    if weight_bytes(context.subject.model) > _LARGEST:
        return f"the file has more than {_LARGEST >> 20} MB of weights"
    if sums_integers(context.subject.model):
        return "the file computes with integers behind it, and other numbers than theirs cannot be fed"
    feeds = base.family.feeds
    context.effort.spend(4)  # once for the value, once in each graph to find it
    value = run_evaluator(evaluator, feeds, fetch=[entry])[entry]
    if value.dtype != np.float64 or value.ndim < 2 or not np.isfinite(value).all():
        return "its input is no float tensor"
    sides = (
        (context.noisy.evaluator, reference, SAME_GRAPH),
        (evaluator, mutated, SAME_GRAPH),
        (context.subject.evaluator, context.subject.model, SAME_FILE),
    )
    names, models, alike = [], [], _nearly_repeated(evaluator, entry, value)
    for own, model, tolerance in sides:
        which = "the file" if own is context.subject.evaluator else "the reference's graph"
        try:
            equal = all_equal(own, feeds, value, tolerance)
        except GraphError as error:  # onnxruntime takes more than we give a meaning to
            return f"{which} cannot be evaluated in float64 ({error})"
        too_few = own is context.subject.evaluator and 0 < len(_computed(own, equal)) <= alike
        if too_few and not _alike(_producer(own, equal[0]), _producer(evaluator, entry)):
            return "a guard nearly repeats its input, and the file computes one of the two, in another way"
        name = next(iter(equal), "")
        model_cut = with_input_at(model, name) if name else None
        if model_cut is None:
            return f"{which} does not compute its input as a value of its own"
        names.append(name)
        models.append(model_cut)
    before = PartReference(models[0], [np.asarray(a).dtype for a in base.eager])
    file, noisy = CutFile(models[2], context.subject.output_names), NoisyGraph(models[0], computed=names[:1])
    share = len(models[1].graph) / max(len(mutated.graph), 1)
    made = Cut(site.where, tuple(names), value, before, Evaluator(models[1]), file, noisy, base, share)
    return _doubt(context, made) or made


def _nearly_repeated(evaluator: Evaluator, entry: str, value: Array) -> int:
    """Return how many operators on a value and constants give it back but for rounding, and other numbers of others.

    A sum with 1e-16 is one. A file that computes such a result at once holds what looks like the value, and is not.
    """
    start = next((v for node in evaluator.graph for v in node.outputs if v.name == entry), None)
    if start is None:  # an input of the graph, at which nothing is cut
        return 0
    queue, size = [(start, torch.from_numpy(value))], rms(value)
    found = 0
    for one, held in queue:
        for node in dict.fromkeys(usage.node for usage in one.uses()):
            others = [v for v in node.inputs if v is not None and v is not one]
            tensors = [constant_tensor(v) for v in others]
            if not has(node, Trait.POINTWISE) or any(t is None for t in tensors) or len(node.outputs) != 1:
                continue
            constants = {
                v: as_constant(t, torch.float64) for v, t in zip(others, tensors, strict=True) if t is not None
            }

            def result(x: Tensor, node: ir.Node = node, constants: dict[ir.Value, Tensor] = constants) -> Tensor:
                operands = [None if v is None else constants.get(v, x) for v in node.inputs]
                return evaluate_node(node, operands, opset_imports=evaluator.graph.opset_imports)[0]

            made = result(held)
            same = made.shape == held.shape and made.is_floating_point()
            if not same or rms(to_numpy(made) - value) > SAME_FILE * size:
                continue
            queue.append((node.outputs[0], made))
            probes = [torch.full_like(held, number) for number in (0.0, 1.0, -1.0)]
            found += any(not torch.equal(result(probe), probe) for probe in probes)
    return found


def _producer(evaluator: Evaluator, name: str) -> ir.Node:
    return next(node for node in evaluator.graph for value in node.outputs if value.name == name)


def _alike(one: ir.Node, other: ir.Node) -> bool:
    """Tell whether two operators are one, of the same constants: neither does what the other's graph does behind it."""
    if kind_of(one) != kind_of(other) or len(one.inputs) != len(other.inputs):
        return False
    for mine, theirs in zip(one.inputs, other.inputs, strict=True):
        held = [None if v is None else constant_tensor(v) for v in (mine, theirs)]
        if (held[0] is None) != (held[1] is None):
            return False
        if held[0] is not None and held[1] is not None and not np.array_equal(held[0].numpy(), held[1].numpy()):
            return False
    return True


def _computed(evaluator: Evaluator, names: Sequence[str]) -> list[str]:
    """Return the names of values that are no mere copies of others."""
    producers = {str(v.name): node for node in evaluator.graph for v in node.outputs}
    copied = Trait.MOVES | Trait.JOINS | Trait.CONVERTS
    return [name for name in names if name not in producers or not has(producers[name], copied)]


def _doubt(context: Context, made: Cut) -> str:
    """Say why a cut is not believed: on values as the model computes them all three graphs must agree."""
    flipped = np.flip(made.value, axis=tuple(range(made.value.ndim - 1)))
    for name, value in (("own values", made.value), ("other samples' values", 1.5 * flipped)):
        try:
            case = made.case(context, name, value, runs=4)
            others = made.file.logic(case.family.feeds), list(run_evaluator(made.mutated, case.family.feeds).values())
        except GraphError as error:
            return f"behind the cut it cannot be evaluated ({error})"
        if any(logic_problems(case, outputs)[0] for outputs in others):
            return "its input feeds the file in another way than the reference"
    return ""
