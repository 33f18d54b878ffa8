"""Structure: one run on the example. Without it, or with outputs that do not match, there is nothing to compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir
import torch

from normdeploy.array_types import Array, Arrays
from normdeploy.errors import GraphError
from normdeploy.graph.walk import nodes_in
from normdeploy.verification.bounds.criteria import outputs_apart
from normdeploy.verification.check_context import Context
from normdeploy.verification.evaluation_cost import counted_by_sizes
from normdeploy.verification.family_case import Evaluated
from normdeploy.verification.mutation.followed import follow_trace, keep_watched, run_named, site_watch
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.sides.double import Seen
from normdeploy.verification.sides.ensemble import RUNS, EnsembleReference
from normdeploy.verification.sides.exact_agreement import plural, signature_problems
from normdeploy.verification.sides.flat_values import UNIT_ROUNDOFF
from normdeploy.verification.sides.output_pairs import match_outputs
from normdeploy.verification.sides.two_sides import EagerReference, Reference, Refused, TracedReference


@dataclass(frozen=True)
class Structure:
    """What one run on the example showed.

    Args:
        checks: the answers. comparable: outputs stand for each other, so that their values can be compared.
    """

    checks: tuple[Check, ...]
    comparable: bool


_BFLOAT16 = ir.DataType.BFLOAT16
_NO_AUTOCAST = (
    ", with no torch.autocast in its forward (accelerate's is gone after unwrap_model(model, keep_fp32_wrapper=False))"
)
_RARE = {_BFLOAT16: ("bfloat16", _NO_AUTOCAST), ir.DataType.DOUBLE: ("float64", "")}  # which autocast does not make


def _rare_type(model: ir.Model) -> str:
    """Say what to do where weights, or numbers cast to it, have a type of few kernels on a CPU; else nothing."""
    dtypes = {value.dtype for value in model.graph.initializers.values()}
    # float64 is what exact operators are written in as well
    dtypes |= {_BFLOAT16 for node in nodes_in(model.graph) if node.attributes.get_int("to", 0) == _BFLOAT16}
    found = [told for dtype, told in _RARE.items() if dtype in dtypes]
    if not found:
        return ""
    name, autocast = found[0]
    return f"it computes in {name}, for which onnxruntime has few operators on a CPU: export model.float(){autocast}; "


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
    text = f"{plural(len(outputs), 'output')}: number, dtypes and shapes agree"
    checks.append(Check(Question.STRUCTURE, Status.PASS, text))
    if context.lean:
        context.leave_out("whether two runs give the same bits")
        return Structure(tuple(checks), comparable=True)
    again = context.subject.run(example, context.settings[0], anew=True)
    same = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(outputs, again, strict=True))
    bits = (Status.PASS, "twice the same bits") if same else (Status.NOTE, "two runs differ in bits")
    checks.append(Check(Question.DETERMINISM, *bits))
    return Structure(tuple(checks), comparable=True)


def _reference_on(context: Context, example: Arrays) -> tuple[list[Array], list[Array], list[Check]]:
    """Return the reference's outputs in its own precision and in float64, and the answer where the latter is weak."""
    if isinstance(context.reference, EagerReference):
        expected = run_named(context, context.reference, example)
        if context.named is not None:
            assert context.evaluator is not None
            context.weigh(counted_by_sizes(context.evaluator.graph, example), example, runs=1)
        truth, weak = _followed(context, example)
        if _asks_precision(context.reference, example, expected, truth):
            truth, weak = _followed(context, example)
    else:  # the evaluator counts what a graph asks for; a runtime may be at it for years
        truth, weak = _truth(context, example)
        expected = context.reference.native(example)
        own = context.reference.has_truth and context.reference.graph is not None and not weak
        watch = site_watch(context, example) if own else None
        context.run_traced(example, hook=None if watch is None else watch.graph_hook)
        keep_watched(context, watch)
    context.example = Evaluated(example, truth, expected)
    return expected, truth, weak


def _followed(context: Context, example: Arrays) -> tuple[list[Array], list[Check]]:
    if context.named is not None:
        return _truth(context, example)
    return follow_trace(context, example, partial(_truth, context, example), weigh=True)


def _asks_precision(reference: Reference, example: Arrays, expected: Sequence[Array], truth: Sequence[Array]) -> bool:
    """Tell whether a module computes something else in float64, but not where it is told its own precision.

    Args:
        reference: the module; if so it is told from then on.
        example: its inputs. expected: its outputs in its own precision. truth: in float64.
    """
    if not isinstance(reference, EagerReference) or reference.answers_precision:
        return False
    apart = outputs_apart(truth, expected)
    if apart <= math.sqrt(torch.finfo(reference.precision).eps):
        return False
    reference.answers_precision = True
    with suppress(Refused):  # then it is no question of this answer
        if 2 * outputs_apart(reference.truth(example), expected) < apart:
            return True
    reference.answers_precision = False
    return False


def _truth(context: Context, example: Arrays, seen: Seen | None = None) -> tuple[list[Array], list[Check]]:
    """Return the float64 outputs; where the module runs in float32 alone, what stands for them, and a weak answer."""
    try:
        if seen is not None and isinstance(context.reference, EagerReference):
            return context.reference.truth(example, seen=seen), []
        return context.reference.truth(example), []
    except Refused as error:
        if not isinstance(context.reference, EagerReference):
            raise
        if not context.reference.answers_precision:  # it may refuse what is not its own
            context.reference.answers_precision = True
            return _truth(context, example, seen)
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
