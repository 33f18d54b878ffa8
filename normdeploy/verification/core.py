"""The verifier's one entry: build both sides, ask every question, decide."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from torch import nn

from normdeploy.errors import GraphError, NormdeployError, TraceError, UsageError
from normdeploy.exporting.trace import Traced, trace
from normdeploy.graph.derivation import Derivation
from normdeploy.onnxfile import Copied, read_model
from normdeploy.rewrite import RewriteResult, rewrite
from normdeploy.verification.bounds.criteria import UNIT_ROUNDOFF
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.cases import Evaluated
from normdeploy.verification.checks.companions import check_companions
from normdeploy.verification.checks.grid import check_grid
from normdeploy.verification.checks.logic import check_logic
from normdeploy.verification.checks.proven import check_proven
from normdeploy.verification.checks.reduced import check_conversion, lowest_precision, parse_budget
from normdeploy.verification.checks.rounding import check_decided, check_finite, check_rounding
from normdeploy.verification.checks.sensitivity import check_sensitivity, epsilons
from normdeploy.verification.checks.sizes import check_sizes
from normdeploy.verification.context import Context, Progress
from normdeploy.verification.cost import SINGLE, UNPROVEN, Budget, Counted, counted, elements
from normdeploy.verification.diagnosis.depth import error_by_depth
from normdeploy.verification.diagnosis.localize import localize
from normdeploy.verification.hints import OWN, Hints, kept_hints
from normdeploy.verification.levels import level_named
from normdeploy.verification.record.environment import environment, module_digest
from normdeploy.verification.record.verdict import Status, Verdict
from normdeploy.verification.samples.families import Family, make_families, user_families
from normdeploy.verification.samples.specs import batch_name, input_specs, resized
from normdeploy.verification.sides.ensemble import RUNS, EnsembleReference
from normdeploy.verification.sides.naming import match_outputs
from normdeploy.verification.sides.reference import (
    EagerReference,
    GraphReference,
    Reference,
    Refused,
    Subject,
    TracedReference,
    example_from_file,
)
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.structure import plural, signature_problems
from normdeploy.verification.sides.values import Arrays, Signature, as_array

_ALWAYS = 1
"""How many generated families are judged whatever they cost."""

_FEWEST = 20
"""Operators that any network is taken to have: a small one's verification costs little in any case."""

_FAMILIES, _DEPTH = 0.4, 0.7
"""Shares of a level's work after which no further family is judged, and errors are not followed along the graph."""


def verify(
    reference: nn.Module | str | os.PathLike[str] | ir.Model,
    path: str | os.PathLike[str],
    *,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    data: Any = None,
    seed: int = 0,
    level: str = "default",
    dynamic_shapes: Any = None,
    settings: Sequence[Setting] | None = None,
    approximate: bool = False,
    traced: Traced | None = None,
    rewritten: RewriteResult | None = None,
    bundle: str | os.PathLike[str] | None = None,
    budget: str | None = None,
    copied: bool = False,
    progress: Progress | None = None,
) -> Verdict:
    """Say whether the ONNX file computes what the reference computes, and whether the answer could have been otherwise.

    Logic is judged in float64, rounding in the file's precision against the reference's own rounding and a noise model,
    and mutants of every normalization show that the checks could have failed (docs/verification.md).

    Args:
        reference: the module that was exported, or an ONNX file or graph that ``path`` was made from.
        path: the ONNX file under verification.
        args: the module's example arguments, as in torch.onnx.export (a tensor or a tuple); for an ONNX reference an
            optional mapping from input name to array.
        kwargs: the module's example keyword arguments.
        data: your own inputs: an array (single input), a mapping from input name to array, or a list of these.
        seed: of all random inputs.
        level: "quick", "default" or "thorough" (:mod:`normdeploy.verification.levels`).
        dynamic_shapes: as given at export, where the default (dynamic batch) was not used.
        settings: runtime settings to be deployed; by default the CPU provider, all optimizations, one thread.
        approximate: the file was made with approximate rewrites allowed.
        traced: the module's trace, if the caller has it; made here otherwise.
        rewritten: the rewriting of the reference's graph, if the caller has it; recomputed here otherwise.
        bundle: folder for the bundle of a failure (smallest failing subgraph); none is written without it.
        budget: for a file of reduced precision, what the conversion may cost: "rel=1e-2" or "top1=0.5%". The file is
            then judged against its own rounded weights in float64, and the loss against this budget.
        copied: the reference is a file of the caller's own, which nobody changes meanwhile; others are copied first.
        progress: called with (stage, share done).

    Returns:
        The verdict; never raises for a file that is merely wrong.

    Raises:
        UsageError: an unknown level, or a provider that is not available.
        GraphError: the file, or an ONNX reference, does not exist or is not ONNX.
        InputError: the arguments or the data do not fit the model.
    """
    chosen = level_named(level)
    allowed = None if budget is None or budget == "exact" else parse_budget(budget)
    with tempfile.TemporaryDirectory(prefix="normdeploy-verify-") as workspace:
        # What is judged is a copy: a file that is replaced meanwhile is not what the verdict and its digests are of
        judged = _copy(path, Path(workspace) / "file")
        subject = Subject(judged.path, called=path)
        sides = _sides(reference, subject, args, kwargs, dynamic_shapes, traced, Path(workspace), copied=copied)
        if isinstance(sides, Verdict):
            return sides
        side, example, notes = sides
        original = side
        dtypes = {name: array.dtype for name, array in example.items()}
        if allowed is not None:
            side = GraphReference(judged.path, Path(workspace))
            stored = {str(v.name): v.dtype.numpy() for v in subject.model.graph.inputs if v.dtype is not None}
            example = {name: array.astype(stored.get(name, array.dtype)) for name, array in example.items()}
        opset = subject.model.opset_imports.get("")  # what the file was limited to, if it was
        derived = _rewritten(side, opset, approximate, rewritten, notes) if allowed is None else None
        noisy = None if side.graph is None else NoisyGraph(side.graph)
        specs = input_specs(side.graph if side.graph is not None else subject.model, example, file=subject.model)
        context = Context(
            reference=side,
            subject=subject,
            noisy=noisy,
            derived=None if derived is None else derived.model,
            canonical=derived.canonical if derived is not None else side.graph,
            specs=specs,
            level=chosen,
            settings=tuple(settings) if settings else (Setting(),),
            precision="float32",
            seed=seed,
            folder=None if bundle is None else Path(bundle),
            own=rewritten is not None,
            hints=_hints(path, judged, derived, own=rewritten is not None),
            progress=progress,
        )
        context.not_checked += [*notes, *([context.hints.rejected] if context.hints.rejected else [])]
        if allowed is not None:
            context.weights_precision = lowest_precision(subject.model)
            context.reduced = True
        with side.ready():
            _verify(context, example, data)
        if allowed is not None and context.cases:
            check_conversion(context, original, dtypes, allowed)
        return _verdict(context, reference, judged)


def _hints(path: str | os.PathLike[str], judged: Copied, derived: RewriteResult | None, *, own: bool) -> Hints:
    if derived is None:
        return Hints(Derivation())
    return Hints(derived.derivation, OWN) if own else kept_hints(path, judged.path, derived.derivation)


def _copy(path: str | os.PathLike[str], folder: Path) -> Copied:
    folder.mkdir()
    return read_model(path).copy_to(folder)


def _sides(
    reference: Any,
    subject: Subject,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    traced: Traced | None,
    workspace: Path,
    *,
    copied: bool,
) -> tuple[Reference, Arrays, list[str]] | Verdict:
    """Return the reference, its example inputs and notes; or the verdict where the two cannot be compared at all."""
    notes: list[str] = []
    if not isinstance(reference, nn.Module):
        source = reference
        if not copied and not isinstance(reference, ir.Model):
            source = _copy(reference, workspace / "reference").path
        graph = GraphReference(source, workspace, called=None if isinstance(reference, ir.Model) else reference)
        assert graph.graph is not None
        wanted, have = graph.input_names, list(subject.input_names)
        if sorted(wanted) != sorted(have):
            return _structural_failure(f"the file takes {have}; the reference takes {wanted}")
        example = {k: as_array(v, f"args for {k!r}") for k, v in args.items()} if isinstance(args, Mapping) else None
        return graph, example if example is not None else example_from_file(graph.graph), notes
    if args is None:
        example = example_from_file(subject.model)
        from normdeploy.verification.sides.values import to_torch

        args = tuple(to_torch(array) for array in example.values())
    signature = Signature(reference, args, kwargs, _names_for(reference, args, kwargs, subject))
    graph_model: ir.Model | None = None
    if traced is None:
        try:
            traced = _trace_like(reference, args, kwargs, signature, dynamic_shapes, subject)
        except TraceError as error:
            notes.append(f"the reference cannot be traced ({error}): no noise model and no mutants")
    if traced is not None:
        if traced.input_names != signature.names:
            raise UsageError(
                f"the trace has inputs {traced.input_names}; expected {signature.names}, those of the file"
            )
        graph_model = traced.model
    return EagerReference(reference, signature, graph_model), signature.feeds, notes


def _trace_like(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, signature: Signature, shapes: Any, subject: Subject
) -> Traced:
    """Trace the reference with the dynamic dimensions that the file declares, unless others are given."""
    known: dict[str, Any] = {"kwargs": kwargs, "input_names": signature.names}
    inferred = None if shapes is not None else signature.dynamic_shapes(_declared(subject.model))
    if inferred is None:
        return trace(model, args, **known, dynamic_shapes=shapes)
    try:
        return trace(model, args, **known, dynamic_shapes=inferred)
    except TraceError:  # the file may be more dynamic than the module can be traced
        return trace(model, args, **known)


def _declared(model: ir.Model) -> dict[str, dict[int, str]]:
    """Return the named dynamic axes of each input."""
    return {
        str(v.name): {i: str(d.value) for i, d in enumerate(v.shape or ()) if not isinstance(d, int) and d.value}
        for v in model.graph.inputs
    }


def _names_for(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, subject: Subject) -> list[str]:
    """Return the file's input names in the order of the arguments: by name where they agree, by position otherwise."""
    from normdeploy.exporting.forward import flatten_arguments

    positional = args if isinstance(args, tuple) else (args,)
    own = flatten_arguments(model, positional, dict(kwargs or {})).names
    names = list(subject.input_names)
    return own if sorted(own) == sorted(names) else names


def _structural_failure(text: str) -> Verdict:
    from normdeploy.verification.record.verdict import Check

    return Verdict("fail", [text], [Check("structure", "fail", text)], environment=environment())


def _rewritten(
    side: Reference, opset: int | None, approximate: bool, rewritten: RewriteResult | None, notes: list[str]
) -> RewriteResult | None:
    if rewritten is not None or side.graph is None:
        return rewritten
    try:
        return rewrite(side.graph, approximate=approximate, highest_opset=opset)
    except NormdeployError as error:
        notes.append(f"weights recomputed from the reference: its graph cannot be rewritten here ({error})")
        return None


def _verify(context: Context, example: Arrays, data: Any) -> None:
    with context.stage("structure"):
        if not _structure(context, example):
            return
    context.subject.release()
    with context.stage("derivation"):
        check_proven(context)
        if context.proven is None or not context.proven.confirmed:
            context.budget.limit *= UNPROVEN
    with context.stage("reference"):
        _make_cases(context, example, data)
    if not context.cases:
        return
    with context.stage("logic"):
        check_logic(context)
    with context.stage("rounding"):
        check_rounding(context)
    with context.stage("companions"):
        check_companions(context)
        check_sizes(context)
    check_grid(context)
    check_decided(context)
    check_finite(context)
    context.subject.release()
    with context.stage("depth"):
        if context.level.name != "quick" and context.budget.affords(_DEPTH):
            context.facts["depth"] = error_by_depth(context.subject.model, context.cases[0], Setting(level="disabled"))
    if context.failed and context.level.localize:
        with context.stage("localization"):
            try:
                context.facts["localization"] = localize(context)
            except GraphError as error:
                context.not_checked.append(f"where the failure starts (it cannot be evaluated in float64: {error})")
    if context.reduced:
        context.not_checked.append("mutants (the rounded weights of a reduced-precision file are their own reference)")
    elif context.level.sensitivity and not context.failed:
        with context.stage("sensitivity"):
            check_sensitivity(context)


def _measure_work(context: Context, example: Arrays) -> None:
    """Set what one evaluation of the network costs, and whether that is much; from sizes alone."""
    found: Counted | None = None
    if context.evaluator is not None:
        try:
            found = counted(context.evaluator, example)
            context.example_traced = found.outputs
        except GraphError as error:
            if not isinstance(context.reference, EagerReference):
                raise
            context.without_graph(f"the reference's graph cannot be evaluated here ({error})")
    if found is None:
        try:
            found = counted(context.subject.evaluator, example)
        except GraphError:  # the runtime may know what is not known here
            found = Counted(0.0, 0, [])
    operators = max(found.operators, _FEWEST)
    context.budget = Budget(context.level.work * operators, once=found.work, size=elements(example))
    context.budget.spend(2 + 3 * SINGLE)  # the example, so far
    context.heavy = found.work > context.level.heavy


def _structure(context: Context, example: Arrays) -> bool:
    """Compare one run on the example; False where nothing further can be compared."""
    try:
        # the evaluator counts what a graph asks for; a runtime may be at it for years
        early = None if isinstance(context.reference, EagerReference) else _truth(context, example)
        expected = context.reference.native(example)
        truth = _truth(context, example) if early is None else early
        _measure_work(context, example)
        context.example = Evaluated(example, truth, expected)
    except Refused as error:
        context.answer("structure", "error", f"the reference does not run on the example: {error}")
        return False
    except GraphError as error:
        text = f"the reference's graph cannot be evaluated on the example here: {error}"
        context.answer("structure", "error", text)
        return False
    sizes = [np.shape(y) for y in truth], [np.shape(y) for y in expected]
    if sizes[0] != sizes[1]:
        text = f"the reference returns shapes {sizes[1]} in its own precision and {sizes[0]} in float64"
        context.answer("structure", "error", text)
        return False
    floats = [a.dtype.name for a in expected if a.dtype.name in UNIT_ROUNDOFF]
    if floats:
        context.precision = max([*floats, context.weights_precision], key=lambda name: UNIT_ROUNDOFF[name])
    matching = match_outputs(context.reference.output_names, context.subject.output_names)
    if matching.problem:
        context.answer("structure", "fail", matching.problem)
        return False
    context.subject.arrange(matching.names)
    if matching.note:
        context.answer("names", "note", matching.note)
    try:
        context.subject.require_bounded(example)
        outputs = context.subject.run(example, context.settings[0])
    except GraphError as error:
        context.answer("structure", "fail", f"the file does not run on the example: {error}")
        return False
    problems = signature_problems(expected, outputs, context.subject.output_names)
    declared = _declared_problems(context, outputs)
    if problems or declared:
        context.answer("structure", "fail", "; ".join(problems + declared))
        return len(expected) == len(outputs)
    again = context.subject.run(example, context.settings[0], anew=True)
    same = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(outputs, again, strict=True))
    context.answer("structure", "pass", f"{plural(len(outputs), 'output')}: number, dtypes and shapes agree")
    context.answer(
        "determinism", "pass" if same else "note", "twice the same bits" if same else "two runs differ in bits"
    )
    return True


def _truth(context: Context, example: Arrays) -> list[Any]:
    """Return the float64 outputs; where the module runs in float32 alone, what stands for them, and a weak verdict."""
    try:
        return context.reference.truth(example)
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
        context.answer("reference", "weak", text)
        return context.reference.truth(example)


def _declared_problems(context: Context, outputs: Sequence[Any]) -> list[str]:
    """Compare what the file declares of its outputs with what it returns."""
    problems = []
    declared = {str(value.name): value for value in context.subject.model.graph.outputs}
    for name, array in zip(context.subject.output_names, outputs, strict=True):
        value = declared[name]
        if value.dtype is not None and value.dtype.numpy() != array.dtype:
            problems.append(f"output {value.name!r} is declared {value.dtype.numpy()} and returns {array.dtype}")
    return problems


def _make_cases(context: Context, example: Arrays, data: Any) -> None:
    """Evaluate the reference on the example, the user's data and the generated families, most telling first."""
    name = batch_name(context.specs)
    specs = resized(context.specs, {name: 1 if context.heavy else context.level.batch}) if name else context.specs
    families = [Family("example", example, user=True)]
    if data is not None:
        families += user_families(data, context.specs, rows=context.level.user_rows)
    else:
        context.not_checked.append("your own data (none was given)")
    generated = list(make_families(specs, seed=context.seed, epsilons=epsilons(context.canonical)))
    kept = generated if context.level.families is None else generated[: context.level.families]
    left = [family.name for family in generated[len(kept) :]]
    for number, family in enumerate([*families, *kept]):
        context.tell("reference", number / (len(families) + len(kept)))
        if number >= len(families) + _ALWAYS and not context.budget.affords(_FAMILIES):
            left.append(family.name)
            continue
        _add_case(context, family)
    if left:
        context.leave_out(f"{len(left)} input families: {', '.join(left)}" if len(left) > 1 else f"family {left[0]!r}")


def _add_case(context: Context, family: Family) -> None:
    """Evaluate the reference on a family; where it or its graph cannot be run on it, say which of the two."""
    try:
        context.cases.append(context.case(family))
    except Refused as error:
        if family.user:
            context.answer("reference", "error", f"the reference fails on {family.name}: {error}")
        else:
            context.not_checked.append(f"input family {family.name!r}: the reference itself refuses it ({error})")
    except GraphError as error:
        if family.user:
            text = f"the reference's graph cannot be evaluated on {family.name} here: {error}"
            context.answer("reference", "error", text)
        else:
            context.not_checked.append(
                f"input family {family.name!r}: the reference's graph cannot be evaluated on it here ({error})"
            )


_ORDER: tuple[tuple[str, Status], ...] = (
    ("fail", "fail"),
    ("error", "error"),
    ("weak", "weak"),
    ("not-exercised", "not-exercised"),
)


def _verdict(context: Context, reference: Any, judged: Copied) -> Verdict:
    status: Status = "pass"
    for found, name in _ORDER:
        if any(check.status == found for check in context.checks):
            status = name
            break
    reasons = [f"{c.name}: {c.detail}" for c in context.checks if c.status == status] if status != "pass" else []
    facts = environment() | {
        "seed": context.seed,
        "level": context.level.name,
        "precision": context.precision,
        "settings": [str(setting) for setting in context.settings],
        "reference": context.reference.name,
        "weights_sha256": module_digest(reference) if isinstance(reference, nn.Module) else "",
        "files": judged.files,
        "content": judged.digests,
        "inputs": {s.name: {"dtype": str(s.dtype), "shape": list(s.shape)} for s in context.specs},
        "families": [case.family.name for case in context.cases],
    }
    return Verdict(
        status=status,
        reasons=reasons,
        checks=context.checks,
        sites=context.sites,
        measurements=context.measurements,
        environment=facts,
        not_checked=context.not_checked,
        localization=context.facts.get("localization"),
        depth=context.facts.get("depth", []),
        seconds=context.seconds,
        level=context.level.name,
        derivation=context.kept,
    )
