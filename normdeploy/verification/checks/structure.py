"""Structure: one run on the example. Without it, or with outputs that do not match, there is nothing to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.verification.check_context import Context
from normdeploy.verification.family_case import Evaluated
from normdeploy.verification.float64_chain import OTHER_ROUNDING
from normdeploy.verification.mutation.called_parts import CallWatch, key_of
from normdeploy.verification.mutation.rerun import Target, site_groups
from normdeploy.verification.mutation.watched_sites import SiteWatch
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.sides.double import Seen
from normdeploy.verification.sides.ensemble import RUNS, EnsembleReference
from normdeploy.verification.sides.exact_agreement import plural, signature_problems
from normdeploy.verification.sides.flat_values import UNIT_ROUNDOFF, Array, Arrays
from normdeploy.verification.sides.output_pairs import match_outputs
from normdeploy.verification.sides.two_sides import EagerReference, Refused, TracedReference


@dataclass(frozen=True)
class Structure:
    """What one run on the example showed.

    Args:
        checks: the answers. comparable: outputs stand for each other, so that their values can be compared.
    """

    checks: tuple[Check, ...]
    comparable: bool


_RARE = {ir.DataType.BFLOAT16: "bfloat16", ir.DataType.DOUBLE: "float64"}


def _rare_type(model: ir.Model) -> str:
    """Say what to do where the weights have a type for which onnxruntime has few kernels on a CPU; else nothing."""
    dtypes = {value.dtype for value in model.graph.initializers.values()}
    found = [name for dtype, name in _RARE.items() if dtype in dtypes]
    if not found:
        return ""
    few = "for which onnxruntime has few operators on a CPU"
    return f"it computes in {found[0]}, {few}: export model.float(), with no torch.autocast in its forward; "


def check_structure(context: Context, example: Arrays) -> Structure:
    """Run both sides on the example and compare number, names, dtypes and shapes of the outputs.

    Sets what that shows of the comparison: the precision judged, the work of a run, the order of the file's outputs.
    """
    checks: list[Check] = []

    def stopped(status: Status, text: str) -> Structure:
        return Structure((*checks, Check(Question.STRUCTURE, status, text)), comparable=False)

    try:
        expected, truth, weak = _reference_on(context, example)
    except Refused as error:
        return stopped(Status.ERROR, f"the reference does not run on the example: {error}")
    except GraphError as error:
        return stopped(Status.ERROR, f"the reference's graph cannot be evaluated on the example here: {error}")
    checks += weak
    sizes = [np.shape(y) for y in truth], [np.shape(y) for y in expected]
    if sizes[0] != sizes[1]:
        text = f"the reference returns shapes {sizes[1]} in its own precision and {sizes[0]} in float64"
        return stopped(Status.ERROR, text)
    floats = [a.dtype.name for a in expected if a.dtype.name in UNIT_ROUNDOFF]
    if floats:
        context.precision = max([*floats, context.weights_precision], key=lambda name: UNIT_ROUNDOFF[name])
    matching = match_outputs(context.reference.output_names, context.subject.output_names)
    if matching.problem:
        return stopped(Status.FAIL, matching.problem)
    context.subject.arrange(matching.names)
    if matching.note:
        checks.append(Check(Question.NAMES, Status.NOTE, matching.note))
    try:
        context.subject.require_bounded(example)
        outputs = context.subject.run(example, context.settings[0])
    except GraphError as error:
        return stopped(Status.FAIL, f"the file does not run on the example: {_rare_type(context.subject.model)}{error}")
    problems = signature_problems(expected, outputs, context.subject.output_names)
    problems += _declared_problems(context, outputs)
    if problems:
        checks.append(Check(Question.STRUCTURE, Status.FAIL, "; ".join(problems)))
        return Structure(tuple(checks), comparable=True)
    again = context.subject.run(example, context.settings[0], anew=True)
    same = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(outputs, again, strict=True))
    text = f"{plural(len(outputs), 'output')}: number, dtypes and shapes agree"
    checks.append(Check(Question.STRUCTURE, Status.PASS, text))
    bits = (Status.PASS, "twice the same bits") if same else (Status.NOTE, "two runs differ in bits")
    checks.append(Check(Question.DETERMINISM, *bits))
    return Structure(tuple(checks), comparable=True)


def _reference_on(context: Context, example: Arrays) -> tuple[list[Array], list[Array], list[Check]]:
    """Return the reference's outputs in its own precision and in float64, and the answer where the latter is weak."""
    if isinstance(context.reference, EagerReference):
        expected = context.reference.native(example)
        watch = _watch(context, example)
        targets = [] if watch is None else _mutants(context)
        graph = context.evaluator
        calls = None if watch is None or graph is None else CallWatch(graph, targets, example, sites=watch)
        watches = [one for one in (watch, calls) if one is not None]
        context.weigh(example, hook=_each([one.graph_hook for one in watches]))
        truth, weak = _truth(context, example, _each([one.module_call for one in watches]))
        if calls is not None:
            context.called = {key_of(targets[place]): ratio for place, ratio in calls.ratios.items()}
            context.effort.spend(calls.work, example)
    else:  # the evaluator counts what a graph asks for; a runtime may be at it for years
        truth, weak = _truth(context, example)
        expected = context.reference.native(example)
        own = context.reference.has_truth and context.reference.graph is not None and not weak
        watch = _watch(context, example) if own else None
        context.weigh(example, hook=None if watch is None else watch.graph_hook)
    if watch is not None:
        context.watched, context.watched_coarsely = watch.compared(), watch.compared(OTHER_ROUNDING)[1]
    context.example = Evaluated(example, truth, expected)
    return expected, truth, weak


def _watch(context: Context, example: Arrays) -> SiteWatch | None:
    """Return what holds each site of the traced graph against the module; None where mutants are run one by one."""
    if context.level.exact_mutants or not context.level.sensitivity or context.evaluator is None:
        return None
    if context.canonical is None or context.reference.graph is None:
        return None
    own = not isinstance(context.reference, EagerReference)
    return SiteWatch(context.evaluator.graph, site_groups(context), example, reference=own)


def _mutants(context: Context) -> list[Target]:
    """Return what single calls of the module may show."""
    groups = site_groups(context)
    return [Target(own, site, m) for own, sites in groups for site in sites for m in site.mutants if not m.nothing]


def _each(watches: Sequence[Callable[..., None]]) -> Callable[..., None] | None:
    """Return what calls all of some, in this order; None where there is none."""

    def each(*given: Any) -> None:
        for watch in watches:
            watch(*given)

    return each if watches else None


def _truth(context: Context, example: Arrays, seen: Seen | None = None) -> tuple[list[Array], list[Check]]:
    """Return the float64 outputs; where the module runs in float32 alone, what stands for them, and a weak answer."""
    try:
        if seen is not None and isinstance(context.reference, EagerReference):
            return context.reference.truth(example, seen=seen), []
        return context.reference.truth(example), []
    except Refused as error:
        if not isinstance(context.reference, EagerReference):
            raise
        if context.reference.graph is None:
            context.reference = EnsembleReference(context.reference)
            what = f"{RUNS} runs in its own precision with rounding noise stand for it (a float32 ensemble)"
        else:
            context.reference = TracedReference(context.reference)
            what = "its traced graph in float64 stands for it"
        text = f"the reference does not run in float64 ({error}): {what}"
        return context.reference.truth(example), [Check(Question.REFERENCE, Status.WEAK, text)]


def _declared_problems(context: Context, outputs: Sequence[Array]) -> list[str]:
    """Compare what the file declares of its outputs with what it returns."""
    problems = []
    declared = {str(value.name): value for value in context.subject.model.graph.outputs}
    for name, array in zip(context.subject.output_names, outputs, strict=True):
        value = declared[name]
        if value.dtype is not None and value.dtype.numpy() != array.dtype:
            problems.append(f"output {value.name!r} is declared {value.dtype.numpy()} and returns {array.dtype}")
    return problems
