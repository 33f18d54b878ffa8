"""What became of a case: the adapter is called, and what it wrote is run and held against the known answer."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from normdeploy.array_types import Arrays
from normdeploy.conformance.adapters import Adapter
from normdeploy.conformance.case import Case, Damage, Outcome, Problem, Result
from normdeploy.ort.levels import graph_level

_LONGEST = 160
"""Characters of an error's message that are kept."""


class _UnusableError(Exception):
    """What an adapter wrote cannot be run."""


def judge(case: Case, adapter: Adapter, sources: Path | None = None) -> Outcome:
    """Run a case through an adapter; never raises for what the adapter does.

    Args:
        sources: a folder of the caller's in which plain exports of modules are kept, for the next adapter.
    """
    problem = case.build()
    if isinstance(problem, Damage) != (adapter.role == "verifier") or (
        adapter.role == "exporter" and not _module(problem)
    ):
        return Outcome(case.name, adapter.name, "does not apply")
    # Inside the caller's folder, which goes also when the tool ends this process
    with tempfile.TemporaryDirectory(prefix="normdeploy-conformance-", dir=sources) as folder:
        if isinstance(problem, Damage):
            return _judge_verifier(case, adapter, problem, Path(folder))
        try:
            return _judge_file(case, adapter, problem, Path(folder), sources or Path(folder))
        except _UnusableError as error:
            return Outcome(case.name, adapter.name, "crashed", str(error))


def _module(problem: Problem | Damage) -> bool:
    return isinstance(problem, Problem) and problem.module is not None


def _words(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _judge_verifier(case: Case, adapter: Adapter, damage: Damage, folder: Path) -> Outcome:
    paths = [str(folder / name) for name in ("reference.onnx", "candidate.onnx")]
    for model, path in zip((damage.reference, damage.file), paths, strict=True):
        onnx.save(model, path)
    try:
        accepted = bool(adapter.call(reference=paths[0], candidate=paths[1]))
    except Exception as error:  # whatever a tool raises: it did not accept
        result: Result = "refused" if damage.same else "right"
        return Outcome(case.name, adapter.name, result, _words(error))
    if accepted == damage.same:
        return Outcome(case.name, adapter.name, "right")
    return Outcome(case.name, adapter.name, "wrong", "passed as right" if accepted else "a right file is called wrong")


def _judge_file(case: Case, adapter: Adapter, problem: Problem, folder: Path, sources: Path) -> Outcome:
    source, target = folder / "source.onnx", folder / "target.onnx"
    if adapter.role != "exporter":
        kept = sources / f"{case.name.replace('/', '-')}.onnx"
        try:
            if not kept.is_file():
                _write_source(problem, kept)
            shutil.copy(kept, source)
            plain = _held(case, adapter, problem, _run(source, problem, optimized=False))
        except Exception as error:  # the module cannot be exported at all: nothing to optimize
            return Outcome(case.name, adapter.name, "does not apply", f"no plain export: {_words(error)}")
        if problem.module is not None and plain.result != "right":
            return Outcome(case.name, adapter.name, "does not apply", "the plain export itself is wrong")
    try:
        if adapter.role == "runtime":
            names = [value.name for value in onnx.load(str(source)).graph.input]
            return _held(case, adapter, problem, adapter.call(path=str(source), inputs=_named(problem, names)))
        if adapter.role == "exporter":
            said = adapter.call(model=problem.module, args=problem.args, path=str(target))
        else:
            said = adapter.call(source=str(source), target=str(target))
    except Exception as error:  # whatever a tool raises is a refusal: it says so
        return Outcome(case.name, adapter.name, "right" if problem.refusal else "refused", _words(error))
    if problem.refusal and said:
        return Outcome(case.name, adapter.name, "right", str(said))
    if not target.is_file():
        raise _UnusableError("no file was written")
    found = _held(case, adapter, problem, _run(target, problem, optimized=False))
    if found.result != "right":
        return found
    # What is deployed is optimized once more, by the runtime
    deployed = _held(case, adapter, problem, _run(target, problem, optimized=True))
    if deployed.result != "right":
        return Outcome(case.name, adapter.name, deployed.result, "as onnxruntime optimizes it", deployed.error)
    left = sorted({node.op_type for node in onnx.load(str(target)).graph.node} & problem.gone)
    if left:
        return Outcome(case.name, adapter.name, "left", ", ".join(left), found.error)
    return found


def _write_source(problem: Problem, path: Path) -> None:
    """Write the graph, or the module as it is: traced in evaluation, nothing optimized."""
    if problem.graph is not None:
        onnx.save(problem.graph, str(path))
        return
    assert problem.module is not None
    with torch.no_grad():
        torch.onnx.export(
            problem.module.eval(),
            problem.args,
            str(path),
            dynamo=True,
            optimize=False,
            external_data=False,
            verbose=False,
        )


def _named(problem: Problem, names: list[str]) -> Arrays:
    """Return the inputs under a file's names: its own, or in order."""
    same = set(names) <= set(problem.feeds)
    return {n: problem.feeds[n] for n in names} if same else dict(zip(names, problem.feeds.values(), strict=True))


def _run(path: Path, problem: Problem, *, optimized: bool) -> list[Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = graph_level("all" if optimized else "disable")
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [item.name for item in session.get_inputs()]
        return list(session.run(None, _named(problem, names)))
    except Exception as error:  # onnxruntime raises its own classes
        raise _UnusableError(f"the file does not run: {_words(error)}") from error


def _held(case: Case, adapter: Adapter, problem: Problem, outputs: list[Any]) -> Outcome:
    """Hold outputs against what is expected."""
    if problem.refusal:
        return Outcome(case.name, adapter.name, "wrong", "a file was written of what has no right one")
    if len(outputs) < len(problem.expected):
        return Outcome(case.name, adapter.name, "wrong", f"{len(outputs)} outputs of {len(problem.expected)}")
    worst = 0.0
    for right, given in zip(problem.expected, outputs, strict=False):
        got = np.asarray(given, np.float64)
        if got.shape != right.shape:
            return Outcome(case.name, adapter.name, "wrong", f"shape {got.shape}, expected {right.shape}", float("inf"))
        error = float(np.abs(got - right).max() / np.abs(right).max()) if np.isfinite(got).all() else float("inf")
        worst = max(worst, error)
    return Outcome(case.name, adapter.name, "right" if worst <= problem.tolerance else "wrong", "", worst)
