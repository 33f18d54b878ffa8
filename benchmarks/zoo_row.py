"""One network of the zoo, measured: what was folded, what it cost, whether it was proven, how far off it is."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from public_networks import made
from torch import Tensor, nn
from verdict_cost import taken, torch_export
from verify_cost import Peak, resident
from zoo_lines import Line

from normdeploy.exporting.module.forward import flatten_outputs
from normdeploy.exporting.trace import Traced, trace
from normdeploy.graph import Evaluator, save_graph
from normdeploy.rewrite import rewrite
from normdeploy.rewrite.ledger import Ledger
from normdeploy.verification import Verdict, verify
from normdeploy.verification.record.measured import in_plain_data
from normdeploy.verification.sides.sessions import Setting, open_session, run_session

Row = dict[str, Any]
BRANCHES = ("parallel branches", "operators in a row", "written border")
"""Kinds of ledger rows that are neither a norm nor a map."""

RUNS = 4
"""Inputs on which errors against float64 are measured."""


def measure(line: Line, tell: Callable[[Row], None], *, level: str) -> None:
    """Measure one network in this process.

    Args:
        line: it.
        tell: called with the row as far as it is known, ``stage`` saying what comes next.
        level: of the verdict.
    """
    row: Row = {"level": level}

    def stage(name: str) -> None:
        row["stage"] = name
        tell(row)

    with tempfile.TemporaryDirectory() as folder:
        path, plain = Path(folder) / "net.onnx", Path(folder) / "torch.onnx"
        stage("building")
        model, example = made(line)
        row["parameters"] = sum(p.numel() for p in model.parameters())
        stage("torch's export")
        try:
            row["export_s"], _ = taken(lambda: torch_export(model, example, plain))
        except Exception as error:  # what torch cannot export may be exported here all the same
            row["export_failed"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        peak, before = Peak(), resident()
        with peak.watched():
            stage("trace")
            shapes = example.dynamic_shapes if any(example.dynamic_shapes) and _words(line) else None
            given: Row = {"kwargs": example.kwargs, "dynamic_shapes": shapes}
            row["trace_s"], traced = taken(lambda: trace(model, example.args, input_names=example.input_names, **given))
            row["nodes_traced"] = len(traced.model.graph)
            stage("rewrite")
            row["rewrite_s"], rewritten = taken(lambda: rewrite(traced.model))
            row |= _folded(rewritten.ledger) | {"nodes": len(rewritten.model.graph)}
            stage("writing")
            save_graph(rewritten.model.clone(), path)
            stage("error against float64")
            files = {"error": path} | ({"error_torch": plain} if plain.exists() else {})
            found = errors(line, model, traced, files)
            row |= {"eager_error": found.pop("eager"), **found}
            stage("verify")
            given |= {"traced": traced, "rewritten": rewritten, "level": level}
            row["verify_s"], verdict = taken(lambda: verify(model, path, args=example.args, **given))
        row["peak"] = peak.bytes - before
        row |= _judged(verdict)
    del row["stage"]
    tell(row)


def _words(line: Line) -> bool:
    """Tell whether the list names dynamic dimensions; where not, the batch is dynamic, as by default."""
    return any(isinstance(size, str) for spec in line.inputs for size in spec.shape)


def _folded(ledger: Ledger) -> Row:
    maps = [row for row in ledger if row.kind not in BRANCHES]
    kept = [row for row in maps if row.action == "kept"]
    return {
        "maps": len(maps),
        "fused": sum(row.action == "fused" for row in maps),
        "kept": len(kept),
        "reasons": [f"{row.where} ({row.kind}): {row.reason}" for row in kept],
        "branches": [f"{row.where} ({row.kind}): {row.action}, {row.reason}" for row in ledger if row not in maps],
    }


def errors(line: Line, model: nn.Module, traced: Traced, files: Mapping[str, Path]) -> Row:
    """Return the errors of files against float64, over eager's: ratios of root mean squares, by the files' names.

    ``eager`` is eager's own, relative to the outputs' size. Each output counts by its own size; files name inputs and
    outputs as they like, in the order of the trace. Where eager makes no error there is no ratio.
    """
    truth = Evaluator(traced.model)
    sessions = {key: open_session(path, Setting()) for key, path in files.items()}
    squares = dict.fromkeys(["eager", *sessions], 0.0)
    for run in range(RUNS):
        example = line.example(model, seed=100 + run)
        given = [tensor.numpy() for tensor in example.named().values()]
        exact = list(truth.run(dict(zip(traced.input_names, given, strict=True))).values())
        with torch.no_grad():
            found = {"eager": flatten_outputs(model(*example.args, **example.kwargs)).tensors}
        for key, session in sessions.items():
            names = [value.name for value in session.get_inputs()]
            outputs = [value.name for value in session.get_outputs()]
            feeds = dict(zip(names, given, strict=True))
            found[key] = [torch.from_numpy(array) for array in run_session(session, feeds, outputs)]
        for key, tensors in found.items():
            squares[key] += sum(map(squared_error, tensors, exact))
    eager = math.sqrt(squares["eager"] / RUNS)
    ratios = {key: math.sqrt(squares[key] / squares["eager"]) if eager else None for key in sessions}
    return {"eager": eager, **ratios}


def squared_error(found: Tensor, exact: Tensor) -> float:
    """Return the squared error of an output, relative to its size; what is no number has none."""
    if not exact.is_floating_point() or not exact.any():
        return 0.0
    return float((found.double() - exact).square().sum() / exact.square().sum())


def _judged(verdict: Verdict) -> Row:
    proven = next((in_plain_data(check.measured) for check in verdict.checks if check.name == "derivation"), {})
    found: dict[str, str] = {}
    for check in verdict.checks:
        if check.status not in ("pass", "note"):
            found[check.name] = check.status
    return {
        "verdict": verdict.status,
        "not_passes": found,
        "verdict_reasons": verdict.reasons,
        "operators": proven.get("operators"),
        "by_samples_only": proven.get("by_samples_only", []),
        "not_checked": verdict.not_checked,
        "sites": len(verdict.sites),
        "verify_stages": verdict.seconds,
    }
