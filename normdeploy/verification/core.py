"""The verifier's one entry: set up both sides, ask every question, decide."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from torch import nn

from normdeploy.array_types import Arrays
from normdeploy.budget import parse_budget
from normdeploy.errors import GraphError
from normdeploy.graph.derivation import Derivation
from normdeploy.graph.garbage import rarely_collected
from normdeploy.graph.threads import one_thread
from normdeploy.graph.walk import nodes_in
from normdeploy.onnxfile.model import Copied
from normdeploy.rewrite import RewriteResult
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.check_context import Context, Progress
from normdeploy.verification.check_levels import level_named
from normdeploy.verification.checks.as_declared import check_declared
from normdeploy.verification.checks.batch_companions import check_companions
from normdeploy.verification.checks.by_algebra import check_proven
from normdeploy.verification.checks.dynamic_sizes import check_sizes
from normdeploy.verification.checks.grid import check_grid
from normdeploy.verification.checks.hidden import check_hidden
from normdeploy.verification.checks.idle import check_idle
from normdeploy.verification.checks.logic import check_logic
from normdeploy.verification.checks.open_decisions import check_open_decisions
from normdeploy.verification.checks.quantization import check_quantization
from normdeploy.verification.checks.reduced import check_conversion, lowest_precision
from normdeploy.verification.checks.reference_runs import check_reference, left_out_in_words
from normdeploy.verification.checks.rounding import check_decided, check_finite, check_rounding
from normdeploy.verification.checks.sensitivity import check_sensitivity
from normdeploy.verification.checks.structure import check_structure
from normdeploy.verification.checks.traced import check_traced
from normdeploy.verification.comparison import (
    Incomparable,
    compared_file,
    compared_module,
    copied_file,
    rewritten_anew,
)
from normdeploy.verification.derivation.side.competing_constants import own_fills
from normdeploy.verification.diagnosis.depth import error_by_depth
from normdeploy.verification.diagnosis.localize import localize
from normdeploy.verification.evaluation_cost import UNPROVEN
from normdeploy.verification.hints import OWN, Hints, kept_hints
from normdeploy.verification.mutation.followed import follow_after_all
from normdeploy.verification.record.answers import DECISIVE, Check, Question, Status
from normdeploy.verification.record.environment import environment, module_digest
from normdeploy.verification.record.verdict import Verdict
from normdeploy.verification.samples.ranges import input_specs
from normdeploy.verification.sides.clip_bounds import own_bounds
from normdeploy.verification.sides.graph_reference import GraphReference
from normdeploy.verification.sides.quantizer_ends import own_ends
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.subject import Subject
from normdeploy.verification.sides.table_rows import own_tables
from normdeploy.verification.sides.taken_parts import own_parts
from normdeploy.verification.sides.unmet_weights import own_weights
from normdeploy.verification.sides.watch import Watch

if TYPE_CHECKING:
    from normdeploy.exporting.trace import Traced

_BY_SAMPLES = (
    check_idle,
    check_hidden,
    check_grid,
    check_quantization,
    check_decided,
    check_open_decisions,
    check_finite,
)
"""What is asked once samples were judged."""

_DEPTH = 0.7
"""Share of a level's work after which errors are not followed along the graph."""


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
        level: "quick", "default" or "thorough" (:mod:`normdeploy.verification.check_levels`).
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
    # on one thread: what is measured here is written into the certificate, which other numbers of threads share
    with rarely_collected(), one_thread(), tempfile.TemporaryDirectory(prefix="normdeploy-verify-") as folder:
        workspace = Path(folder)
        # What is judged is a copy: a file that is replaced meanwhile is not what the verdict and its digests are of
        judged, read = copied_file(path, workspace / "file")
        subject = Subject(judged, called=path, read=read)
        del read  # the graph has it now
        try:
            if isinstance(reference, nn.Module):
                compared = compared_module(reference, args, kwargs, subject, dynamic_shapes, traced)
            else:
                compared = compared_file(reference, args, subject, workspace, copied=copied)
        except Incomparable as error:
            answer = Check(Question.STRUCTURE, Status.FAIL, str(error))
            return Verdict(Status.FAIL, [answer.detail], [answer], environment=environment())
        side, example, notes = compared.reference, compared.example, compared.notes
        original, dtypes = side, {name: array.dtype for name, array in example.items()}
        derived: RewriteResult | None = None
        if allowed is not None:
            side = GraphReference(judged.path, workspace)
            stored = {str(v.name): v.dtype.numpy() for v in subject.model.graph.inputs if v.dtype is not None}
            example = {name: array.astype(stored.get(name, array.dtype)) for name, array in example.items()}
        else:
            derived = rewritten or rewritten_anew(side, subject, approximate=approximate, notes=notes)
        context = Context(
            reference=side,
            subject=subject,
            noisy=None if side.graph is None else NoisyGraph(side.graph),
            derived=None if derived is None else derived.model,
            canonical=derived.canonical if derived is not None else side.graph,
            specs=input_specs(side.graph if side.graph is not None else subject.model, example, file=subject.model),
            level=chosen,
            settings=tuple(settings) if settings else (Setting(),),
            precision="float32",
            weights_precision="float32" if allowed is None else lowest_precision(subject.model),
            reduced=allowed is not None,
            seed=seed,
            folder=None if bundle is None else Path(bundle),
            own=rewritten is not None,
            hints=_hints(path, judged, derived, own=rewritten is not None),
            progress=progress,
        )
        context.not_checked += [*notes, *([context.hints.rejected] if context.hints.rejected else [])]
        with side.ready():
            _ask(context, example, data)
        if allowed is not None and context.cases:
            context.checks += check_conversion(context, original, dtypes, allowed)
        return _verdict(context, reference, judged)


def _hints(path: str | os.PathLike[str], judged: Copied, derived: RewriteResult | None, *, own: bool) -> Hints:
    if derived is None:
        return Hints(Derivation())
    return Hints(derived.derivation, OWN) if own else kept_hints(path, judged.runs, derived.derivation)


def _ask(context: Context, example: Arrays, data: Any) -> None:
    """Ask every question, in the order in which one answer decides how the next is put."""
    with context.stage("structure"):
        structure = check_structure(context, example)
        context.checks += structure.checks
    if not structure.comparable:
        return
    context.subject.release()
    with context.stage("derivation"):
        context.checks += check_proven(context)
        if context.proven is not None:
            graph = context.reference.graph
            opened = [row.node for row in context.proven.open]
            ends: dict[str, tuple[int, ...]] = {}
            asked = frozenset(context.proven.to_be_seen)
            if graph is not None:
                source = list(nodes_in(graph.graph))
                seen = [node for node in nodes_in(context.subject.model.graph) if node.outputs[0].name in asked]
                ends = {**own_ends(opened, source), **own_tables(opened, source), **own_bounds(seen, source)}
                ends.update(own_fills(seen, source))
                ends.update(own_parts(seen, source, context.proven.bodies))
                ends.update(own_weights(row.node for row in context.proven.open if row.is_unlike))
            names = asked.union(ends)
            if names:
                context.subject.watch = Watch(names, ends)
        if context.proven is None or not context.proven.confirmed:
            if not context.failed:  # what samples show of a file that holds a wrong number decides nothing
                context.effort.limit *= UNPROVEN
            follow_after_all(context)
    with context.stage("reference"):
        context.checks += check_reference(context, example, data)
    if not context.cases:
        return
    with context.stage("logic"):
        context.checks += check_logic(context)
    with context.stage("rounding"):
        context.checks += check_rounding(context)
    with context.stage("companions"):
        context.checks += check_companions(context)
        context.checks += check_sizes(context)
        context.checks += check_declared(context)
    for check in _BY_SAMPLES:
        context.checks += check(context)
    context.subject.release()
    if context.failed and context.named is not None:  # where a failure starts may hang on the trace
        context.links = check_traced(context)
    _diagnose(context)
    if context.reduced:
        context.not_checked.append("mutants (the rounded weights of a reduced-precision file are their own reference)")
    elif context.level.sensitivity and not context.failed:
        with context.stage("sensitivity"):
            context.checks += check_sensitivity(context)


def _diagnose(context: Context) -> None:
    """Follow the error along the graph, and find where a failure starts."""
    with context.stage("depth"):
        if context.level.depth and context.effort.affords(_DEPTH):
            context.depth = error_by_depth(
                context.subject.model, context.cases[0], replace(context.settings[0], level="disable")
            )
    if context.failed and context.level.localize:
        with context.stage("localization"):
            try:
                context.localization = localize(context)
            except GraphError as error:
                context.not_checked.append(f"where the failure starts (it cannot be evaluated in float64: {error})")


def _verdict(context: Context, reference: Any, judged: Copied) -> Verdict:
    answers = {check.status for check in context.checks}
    status = next((status for status in DECISIVE if status in answers), Status.PASS)
    reasons = [f"{c.name}: {c.detail}" for c in context.checks if c.status is status and status is not Status.PASS]
    facts = environment(context.settings) | {
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
        not_checked=[*context.not_checked, *left_out_in_words(context.refused)],
        localization=context.localization,
        depth=context.depth,
        seconds=context.seconds,
        level=context.level.name,
        derivation=context.kept,
    )
