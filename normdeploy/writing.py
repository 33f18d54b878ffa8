"""``export`` and ``fold``: a model becomes a file with its normalizations folded, which appears when it is proven."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from normdeploy.errors import UsageError
from normdeploy.files import PathLike
from normdeploy.graph.derivation import Derivation
from normdeploy.ort.installed import require_onnxruntime
from normdeploy.proven import ExportResult, FoldResult, Level, Progress, require_outputs, write_proven
from normdeploy.rewrite.ledger import Ledger

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch import nn

    from normdeploy.exporting.trace import Traced
    from normdeploy.verification import Verdict

require_onnxruntime()

APPROXIMATION = "rel=1e-3"
"""What approximate rewrites may cost, relative to the outputs' size."""

REDUCED = "rel=1e-2"
"""What weights in float16 may cost, relative to the outputs' size."""

DTYPES = ("float32", "float16")
"""What an exported file can compute in; "float32" stands for the model's own types."""


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
        opset_version: ONNX operator set, 18 or newer. By default torch's own; 23 where there is an RMSNorm and the
            onnxruntime in use can read that.
        fold: fold and fuse normalizations; False writes the graph as traced.
        approximate: allow rewrites that are only nearly equal. Where one was made (its ledger row says so), the
            verifier does not compare weights or try mutants: it measures the cost, at most 1e-3 of the outputs' size.
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

    >>> import torch, normdeploy as nd
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    >>> result = nd.export(net, torch.randn(1, 3, 8, 8), "net.onnx")
    >>> result.verdict.passed
    True
    >>> [(row.where, row.kind, row.action, row.into) for row in result.ledger]
    [('1', 'BatchNormalization', 'folded', '0')]
    """
    from normdeploy.exporting.trace import trace

    if dtype not in DTYPES:
        raise UsageError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}: what the file computes in")
    require_outputs(path, verify=bool(verify), overwrite=overwrite)
    (progress or _silent)("tracing", 0.0)
    traced = trace(
        model,
        args,
        kwargs=kwargs,
        input_names=input_names,
        output_names=output_names,
        dynamic_shapes=dynamic_shapes,
        opset_version=opset_version,
    )
    return export_traced(
        traced,
        model,
        args,
        path,
        kwargs=kwargs,
        dynamic_shapes=dynamic_shapes,
        opset_version=opset_version,
        fold=fold,
        approximate=approximate,
        integer=integer,
        dtype=dtype,
        verify=verify,
        seed=seed,
        overwrite=overwrite,
        progress=progress,
    )


def export_traced(
    traced: Traced,
    model: nn.Module,
    args: Any,
    path: PathLike,
    *,
    kwargs: Mapping[str, Any] | None = None,
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
    """Write what :func:`export` writes of a model that is traced already; ``traced`` is left as it is.

    Args:
        traced: the model's trace on these arguments, with these dynamic shapes and this operator set.

    The others are those of :func:`export`, as are what is returned and raised.
    """
    import time

    target = require_outputs(path, verify=bool(verify), overwrite=overwrite)
    tell = progress or _silent
    seconds = {"trace": traced.seconds}
    program, ledger, rewritten = traced.model, Ledger(), None
    if fold:
        from normdeploy.ort.installed import highest_opset
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
    verdict = write_proven(program, target, prove if verify else None, overwrite=overwrite, half=half)
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
        opset_version: the newest operator set that the result may have, 18 or newer; a newer source keeps its own. By
            default the source's, raised to 18 where it is older; 23 where there is an RMSNorm and the onnxruntime in
            use can read that.
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

    >>> import torch, normdeploy as nd
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    >>> plain = nd.export(net, torch.randn(2, 3), "plain.onnx", fold=False, verify=False)
    >>> result = nd.fold("plain.onnx", "folded.onnx")
    >>> result.verdict.passed, result.ledger.counts()["folded"]
    (True, 1)
    """
    from normdeploy.graph import load_graph
    from normdeploy.onnxfile.model import read_model
    from normdeploy.ort.installed import highest_opset
    from normdeploy.rewrite import rewrite
    from normdeploy.rewrite.infer import require_consistent

    target = require_outputs(path, verify=bool(verify), overwrite=overwrite)
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
        require_consistent(graph)
        highest = opset_version if opset_version is not None else highest_opset()
        tell("rewriting", 0.0)
        rewritten = rewrite(graph, highest_opset=highest, integer=integer)

        def prove(candidate: Path) -> Verdict:
            from normdeploy.verification import verify as run_verifier

            level = _level(verify)
            return run_verifier(reference, candidate, level=level, rewritten=rewritten, copied=True, progress=progress)

        verdict = write_proven(rewritten.model, target, prove if verify else None, overwrite=overwrite)
    return FoldResult(target, rewritten.ledger, verdict, rewritten.model, rewritten.derivation)


def _silent(_stage: str, _share: float) -> None:
    pass


def _level(verify: bool | Level) -> Level:
    return "default" if isinstance(verify, bool) else verify
