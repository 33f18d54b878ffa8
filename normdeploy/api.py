"""The public functions: export, fold, inspect, verify, tune (``load``, ``bench`` and ``package`` are the runtime's own,
``diff`` that of the room ``compare``).

Each is a short composition of rooms; what a room does is written there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from normdeploy.errors import UsageError, VerificationError
from normdeploy.files import require_writable, written_together
from normdeploy.graph.derivation import Derivation
from normdeploy.installed import require_onnxruntime
from normdeploy.rewrite.ledger import Ledger

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch import nn

    from normdeploy.inspection import Findings
    from normdeploy.runtime import Plan
    from normdeploy.verification import Verdict

require_onnxruntime()

Level = Literal["quick", "default", "thorough"]
PathLike = str | os.PathLike[str]
Progress = Callable[[str, float], None]


APPROXIMATION = "rel=1e-3"
"""What approximate rewrites may cost, relative to the outputs' size."""

REDUCED = "rel=1e-2"
"""What weights in float16 may cost, relative to the outputs' size."""

DTYPES = ("float32", "float16")
"""What an exported file can compute in; "float32" stands for the model's own types."""


@dataclass(frozen=True)
class ExportResult:
    """What `export` wrote.

    Args:
        path: the ONNX file.
        ledger: what became of every normalization; empty with ``fold=False``.
        verdict: the verifier's; None with ``verify=False``.
        program: the graph as written; of a file in float16, before its conversion.
        plain: the graph as traced, before any rewriting.
        notes: sentences for the user, such as "the model was in training mode", and what the doctor calls an error.
        seconds: time of "trace", "rewrite" and "verify", s.
        derivation: which value of the file stands for which of the traced graph; empty with ``fold=False``.
    """

    path: Path
    ledger: Ledger
    verdict: Verdict | None
    program: ir.Model = field(repr=False)
    plain: ir.Model = field(repr=False)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    derivation: Derivation = field(default_factory=Derivation, repr=False)


@dataclass(frozen=True)
class FoldResult:
    """What `fold` wrote: file, ledger, verdict (None with ``verify=False``), and the derivation it is checked by."""

    path: Path
    ledger: Ledger
    verdict: Verdict | None
    program: ir.Model = field(repr=False)
    derivation: Derivation = field(default_factory=Derivation, repr=False)


def export(
    model: nn.Module,
    args: Any,
    path: PathLike,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_shapes: Any = None,
    opset_version: int | None = None,
    fold: bool = True,
    approximate: bool = False,
    integer: bool = False,
    dtype: Literal["float32", "float16"] = "float32",
    verify: bool | Level = True,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Write a trained model as ONNX with its normalizations folded, and prove that nothing changed.

    The model is traced in evaluation mode and without gradients, whatever mode it is in, and given back as it was.
    The batch dimension is dynamic unless ``dynamic_shapes`` says otherwise.

    Args:
        model: an eager torch module on any device.
        args: example arguments as in ``torch.onnx.export``: a tensor or a tuple.
        path: the file to write; it, its certificate (``<name>.certificate.json``) and its derivation
            (``<name>.derivation.json``) appear whole or not at all.
        kwargs: example keyword arguments.
        input_names: names of the graph inputs, in order.
        output_names: names of the graph outputs, in order.
        dynamic_shapes: as in ``torch.onnx.export``; replaces the dynamic batch.
        opset_version: ONNX operator set, 18 or newer. By default as new as the operators need that are fastest: 23
            with an RMSNorm, or what the onnxruntime in use can read.
        fold: fold and fuse normalizations; False writes the graph as traced.
        approximate: allow rewrites that are equal only nearly. Where one was made (its ledger row says so) the verifier
            measures what they cost, at most 1e-3 of the outputs' size, in place of comparing weights and mutants.
        integer: write quantized layers on integers: ConvInteger and MatMulInteger, and each quantizer behind them as
            an equal function of their integer sums. A quantizer that is no such function stays, and its ledger row
            says why. Off by default: onnxruntime's own int8 convolutions, which round otherwise, are faster.
        dtype: "float16" writes a file that computes in float16, its inputs and outputs as the model's: folded in
            float64, rounded once. The verifier then judges it against its own rounded weights in float64, and measures
            what the rounding of the weights costs, at most 1e-2 of the outputs' size.
        verify: run the verifier, at the level "default" or the one named.
        seed: of the verifier's inputs.
        overwrite: allow replacing existing files.
        progress: called with (stage, share done).

    Returns:
        ExportResult: ``.path .ledger .verdict .program``.

    Raises:
        UsageError: ``dtype`` is none of the two.
        OutputExistsError: ``path`` exists and ``overwrite`` is false.
        ModelError: the model or its arguments are unusable; see `normdeploy.errors` for the kinds.
        VerificationError: the verdict is "fail" or "error"; it carries the verdict and nothing is left at ``path``.
    """
    import time

    from normdeploy.exporting.trace import trace

    if dtype not in DTYPES:
        raise UsageError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}: what the file computes in")
    target = _require_outputs(path, verify=bool(verify), overwrite=overwrite)
    tell = progress or _silent
    tell("tracing", 0.0)
    traced = trace(
        model,
        args,
        kwargs=kwargs,
        input_names=input_names,
        output_names=output_names,
        dynamic_shapes=dynamic_shapes,
        opset_version=opset_version,
    )
    seconds = {"trace": traced.seconds}
    program, ledger, rewritten = traced.model, Ledger(), None
    if fold:
        from normdeploy.ort.support import highest_opset
        from normdeploy.rewrite import rewrite

        tell("rewriting", 0.0)
        started = time.perf_counter()
        highest = opset_version if opset_version is not None else highest_opset()
        rewritten = rewrite(traced.model, approximate=approximate, highest_opset=highest, integer=integer)
        seconds["rewrite"] = time.perf_counter() - started
        program, ledger = rewritten.model, rewritten.ledger

    budget = APPROXIMATION if any(row.detail.get("approximate") for row in ledger) else None
    budget = REDUCED if dtype == "float16" else budget

    def prove(candidate: Path) -> Verdict:
        from normdeploy.verification import verify as run_verifier

        return run_verifier(
            model,
            candidate,
            args=args,
            kwargs=kwargs,
            level=_level(verify),
            dynamic_shapes=dynamic_shapes,
            approximate=approximate,
            budget=budget,
            traced=traced,
            rewritten=rewritten,
            seed=seed,
            progress=progress,
        )

    started = time.perf_counter()
    half = dtype == "float16"
    verdict = _write_proven(program, target, prove if verify else None, overwrite=overwrite, half=half)
    seconds["verify"] = time.perf_counter() - started
    tell("inspecting", 0.0)
    notes = [*traced.notes, *_errors_held(model)]
    derivation = rewritten.derivation if rewritten is not None else Derivation()
    return ExportResult(target, ledger, verdict, program, traced.model, notes, seconds, derivation)


def _errors_held(model: nn.Module) -> list[str]:
    """Return what the doctor calls an error without running the model: a faithful export deploys it all the same."""
    from normdeploy.inspection import inspect as run_inspection

    return [f"{f.where}: {f.what}; {f.remedy}" for f in run_inspection(model) if f.severity == "error"]


def fold(
    source: PathLike | ir.Model,
    path: PathLike,
    *,
    opset_version: int | None = None,
    integer: bool = False,
    verify: bool | Level = True,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> FoldResult:
    """Fold the normalizations of an ONNX graph from anywhere, and prove the result equal to it.

    Args:
        source: the ONNX file (opset 7 or newer) or graph; it is left as it is.
        path: the file to write; it, its certificate and its derivation appear whole or not at all.
        opset_version: the operator set that the result may not exceed, 18 or newer; a newer source keeps its own. By
            default as new as the operators need that are fastest: 23 with an RMSNorm, or what the onnxruntime in use
            can read.
        integer: write quantized layers on integers, as in `export`.
        verify: run the verifier against ``source``, at the level "default" or the one named.
        overwrite: allow replacing existing files.
        progress: called with (stage, share done).

    Returns:
        FoldResult: ``.path .ledger .verdict``.

    Raises:
        OutputExistsError: ``path`` exists and ``overwrite`` is false.
        GraphError: ``source`` is missing, invalid or unsupported.
        VerificationError: the verdict is "fail" or "error"; nothing is left at ``path``.
    """
    from normdeploy.graph import load_graph
    from normdeploy.onnxfile import read_model
    from normdeploy.ort.support import highest_opset
    from normdeploy.rewrite import rewrite

    target = _require_outputs(path, verify=bool(verify), overwrite=overwrite)
    tell = progress or _silent
    with ExitStack() as stack:
        reference: Any = source
        if not isinstance(source, (str, os.PathLike)):
            graph = source
        else:
            if verify:  # folded and compared with are the bytes read now
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="normdeploy-fold-"))
                reference = read_model(source).copy_to(Path(folder)).path
            graph = load_graph(reference, called=source)
        highest = opset_version if opset_version is not None else highest_opset()
        tell("rewriting", 0.0)
        rewritten = rewrite(graph, highest_opset=highest, integer=integer)

        def prove(candidate: Path) -> Verdict:
            from normdeploy.verification import verify as run_verifier

            level = _level(verify)
            return run_verifier(reference, candidate, level=level, rewritten=rewritten, copied=True, progress=progress)

        verdict = _write_proven(rewritten.model, target, prove if verify else None, overwrite=overwrite)
    return FoldResult(target, rewritten.ledger, verdict, rewritten.model, rewritten.derivation)


def inspect(model_or_path: nn.Module | PathLike, args: Any = None) -> Findings:
    """Say what is wrong or risky in a model's normalizations, before export.

    Args:
        model_or_path: an eager torch module, or an ONNX file.
        args: example arguments; with them, what shows only when the model runs is found too.

    Returns:
        Findings: iterable of ``.severity .where .what .remedy``.

    Raises:
        ModelError: the model, its arguments or the file are unusable.
    """
    from normdeploy.inspection import inspect as run_inspection

    return run_inspection(model_or_path, args)


def verify(
    model_or_onnx: nn.Module | PathLike,
    path: PathLike,
    *,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    data: Any = None,
    seed: int = 0,
    level: Level = "default",
    progress: Progress | None = None,
) -> Verdict:
    """Prove that the ONNX file at ``path`` computes what the reference computes, or say where it does not.

    Logic is checked in float64, rounding is judged in float32, and every check must show that it could have failed.

    Args:
        model_or_onnx: the reference: an eager torch module or an ONNX file.
        path: the ONNX file to judge.
        args: example arguments of the module, where ``path`` alone does not tell how to call it.
        kwargs: example keyword arguments.
        data: inputs of yours, joining the input families: an array or a dict of arrays by input name.
        seed: of the inputs made.
        level: how much to try.
        progress: called with (stage, share done) while the verifier works.

    Returns:
        Verdict: ``.status`` is "pass", "weak", "not-exercised", "fail" or "error"; ``.to_json() .to_html()``.

    Raises:
        ModelError: the reference, the file or the data are unusable.
    """
    from normdeploy.verification import verify as run_verifier

    return run_verifier(
        model_or_onnx, path, args=args, kwargs=kwargs, data=data, seed=seed, level=level, progress=progress
    )


def tune(
    path: PathLike, *, data: Any = None, reference: Any = None, budget: str | None = None, overwrite: bool = False
) -> Plan:
    """Find the fastest way to run the model on this machine within a verified budget; saved as ``<name>.plan.json``.

    Args:
        path: the ONNX file.
        data: inputs of yours, needed for reduced precision: an array or a dict of arrays by input name.
        reference: what results are compared with; the file itself in float64 by default.
        budget: "exact" (default), or a loss as "top1=0.5%" or "rel=1e-2".
        overwrite: allow replacing the plan, and the variant of lower precision, that lie beside the model.

    Returns:
        Plan: what to run, what was tried, what each candidate cost and lost.

    Raises:
        OutputExistsError: there is a plan and ``overwrite`` is false.
        ModelError: the file or the data are unusable.
        UsageError: the budget does not follow the grammar.
    """
    from normdeploy.runtime import tune as run_tuner

    return run_tuner(path, data=data, reference=reference, budget=budget, overwrite=overwrite)


def _silent(_stage: str, _share: float) -> None:
    pass


def _level(verify: bool | Level) -> Level:
    return "default" if isinstance(verify, bool) else verify


def _require_outputs(path: PathLike, *, verify: bool, overwrite: bool) -> Path:
    """Check that the file, and its certificate and derivation where there will be any, may be written."""
    from normdeploy.verification.record.certificate import certificate_path
    from normdeploy.verification.record.kept import derivation_path

    target = require_writable(path, overwrite=overwrite)
    if verify:
        require_writable(certificate_path(target), overwrite=overwrite)
        require_writable(derivation_path(target), overwrite=overwrite)
    return target


_LONGEST = 200
"""Characters of a reason that stand in an error's one line; the verdict has all of it."""


def _not_proven(target: Path, verdict: Verdict) -> str:
    reasons = verdict.reasons or [verdict.status]
    first = reasons[0] if len(reasons[0]) <= _LONGEST else reasons[0][:_LONGEST].rsplit(" ", 1)[0] + " ..."
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return (
        f"{target.name} is not proven equal to its reference and was not written: {first}{more}; the verdict's "
        "summary() has every check"
    )


def _write_proven(
    program: ir.Model,
    target: Path,
    prove: Callable[[Path], Verdict] | None,
    *,
    overwrite: bool,
    half: bool = False,
) -> Verdict | None:
    """Write ``program`` beside ``target``, prove and certify it there, and only then let it appear.

    Raises:
        VerificationError: the verdict is "fail" or "error".
    """
    from normdeploy.graph import save_graph
    from normdeploy.verification.record.certificate import certify

    with written_together(target, overwrite=overwrite) as folder:
        candidate = folder / target.name
        if half:
            from normdeploy.runtime.tuning.lower import write_float16

            with tempfile.TemporaryDirectory(prefix="normdeploy-float16-") as aside:
                write_float16(save_graph(program, Path(aside) / target.name), candidate)
        else:
            save_graph(program, candidate)
        for part in folder.iterdir():  # now, not after hours of proof
            require_writable(target.parent / part.name, overwrite=overwrite)
        verdict = prove(candidate) if prove is not None else None
        if verdict is not None and verdict.status in ("fail", "error"):
            raise VerificationError(_not_proven(target, verdict), verdict)
        if verdict is not None:
            certify(candidate, verdict)
    return verdict
