"""Where a failure starts: which site, which mistake, export or runtime, and which optimizer.

The file's float64 logic tells the two apart: if it is wrong, the export is wrong and no runtime setting will help. Then
the first value that the file and the recomputed graph name alike but compute differently marks the bad site. If the
logic is right, each operator gets the same right inputs (teacher forcing), rounded to the file's precision, and the
first whose own error exceeds its own noise is the bad one; if none does, the optimizers are bisected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator, bare_proto, module_path
from normdeploy.verification.bounds.criteria import SMALLEST_NORMAL, UNIT_ROUNDOFF, rms
from normdeploy.verification.cases import Case, hold_against
from normdeploy.verification.checks.logic import logic_problems
from normdeploy.verification.context import Context
from normdeploy.verification.diagnosis.bundle import subgraph, write_bundle
from normdeploy.verification.diagnosis.closest_mutant import likeliest
from normdeploy.verification.diagnosis.optimizers import guilty_optimizers
from normdeploy.verification.sides.reference import run_evaluator
from normdeploy.verification.sides.sessions import Setting, open_session, run_session
from normdeploy.verification.sides.structure import is_float
from normdeploy.verification.sides.values import Array, Arrays

_MOST_VALUES = 400
_TOLERANCE = 64.0
"""An operator alone may err by this many u of its result's RMS before it is suspected; bfloat16 errs by 65536."""


def localize(context: Context) -> dict[str, Any] | None:
    """Return where the failure starts as plain data with a "summary" sentence; None if no case shows it."""
    found = _failing(context)
    if found is None:
        return None
    case, setting, outputs, side = found
    result: dict[str, Any] = {"family": case.family.name, "side": side, "setting": str(setting) if setting else ""}
    result |= _first_bad_export(context, case) if side == "export" else _first_bad_runtime(context, case, setting)
    likely = likeliest(context, case, outputs)
    if likely:
        result |= likely
    result["summary"] = _summary(result)
    return result


def _summary(result: Mapping[str, Any]) -> str:
    words = {
        "export": "the file itself is wrong, whatever runs it",
        "runtime": "the file is right in float64; the runtime computes it wrongly",
    }[str(result["side"])]
    parts = [words]
    if result.get("where"):
        parts.append(f"first bad site: {result['where']} ({result.get('op', '')})")
    if result.get("stored"):
        parts.append(str(result["stored"]))
    if result.get("likely"):
        parts.append(str(result["likely"]))
    if result.get("optimizers"):
        names = ", ".join(result["optimizers"])
        parts.append(f"guilty optimizer: {names}; disabled_optimizers={list(result['optimizers'])} avoids it")
    if result.get("rerun"):
        parts.append(f"rerun: {result['rerun']}")
    return "; ".join(parts)


def _failing(context: Context) -> tuple[Case, Setting | None, list[Array], str] | None:
    """Return the first case that fails, how it was run, its outputs, and whether export or runtime is to blame."""
    for case in context.cases:
        try:
            outputs = context.subject.logic(case.family.feeds)
        except GraphError:
            break
        if logic_problems(case, outputs)[0]:
            return case, None, outputs, "export"
    if context.facts.get("weight_problems"):
        case = context.cases[0]
        return case, None, context.subject.logic(case.family.feeds), "export"
    failing = {name for check in context.fails("rounding") for name in check.measured.get("settings", ())}
    settings = [s for s in _settings(context) if str(s) in failing]
    for setting in settings:
        for case in context.cases:
            try:
                outputs = context.subject.run(case.family.feeds, setting)
            except GraphError:
                continue
            if _fails(case, outputs):
                return case, setting, outputs, "runtime"
    return None


def _settings(context: Context) -> list[Setting]:
    deployed = list(context.settings)
    return deployed + [replace(s, level=level) for s in deployed for level in context.level.optimization]


def _fails(case: Case, outputs: list[Array]) -> bool:
    if len(outputs) != len(case.truth):
        return True
    return any(
        r.problems or (r.judgement is not None and not r.judgement.ratio <= 1) for r in hold_against(case, outputs)
    )


def _first_bad_export(context: Context, case: Case) -> dict[str, Any]:
    """Compare the file's values with those of the same name in the graph it should be."""
    problems = context.facts.get("weight_problems")
    if problems:
        first = problems[0]
        return {"where": first.where, "op": "stored weights", "stored": first.text}
    file = context.subject.model
    produced = {str(v.name): node for node in file.graph for v in node.outputs if v.name}
    references = [m for m in (context.derived, context.canonical, context.reference.graph) if m is not None]
    best: tuple[list[str], ir.Model] | None = None
    for model in references:
        names = {str(v.name) for node in model.graph for v in node.outputs}
        shared = [name for name in produced if name in names][:_MOST_VALUES]
        if best is None or len(shared) > len(best[0]):
            best = (shared, model)
    if best is None or not best[0]:
        return {}
    shared, model = best
    right = run_evaluator(Evaluator(model), case.family.feeds, fetch=shared)
    wrong = run_evaluator(context.subject.evaluator, case.family.feeds, fetch=shared)
    previous: list[str] = []
    for name in shared:
        if _differs(right[name], wrong[name]):
            node = produced[name]
            result: dict[str, Any] = {"where": module_path(node), "op": node.op_type, "value": name}
            result |= _export_bundle(context, case, model, name, previous, right)
            return result
        previous.append(name)
    return {}


def _differs(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return True
    if not is_float(a):
        return bool((a != b).any())
    finite = np.isfinite(a) & np.isfinite(b)
    if bool((np.isfinite(a) != np.isfinite(b)).any()):
        return True
    return rms(a[finite] - b[finite]) > 16 * UNIT_ROUNDOFF["float32"] * rms(a[finite])


def _export_bundle(
    context: Context, case: Case, model: ir.Model, name: str, matching: list[str], right: Arrays
) -> dict[str, Any]:
    """Write the subgraph from the last values that agree to the first that does not, with the right result expected."""
    if context.folder is None:
        return {}
    file = context.subject.model
    nodes = _between(file, name, set(matching) | set(context.subject.input_names))
    needed = sorted({str(v.name) for n in nodes for v in n.inputs if v is not None and v.name})
    outside = [n for n in needed if n in right or n in case.family.feeds]
    values = {n: _as_stored(right[n]) if n in right else np.asarray(case.family.feeds[n]) for n in outside}
    values[name] = _as_stored(right[name])
    made = {str(v.name) for n in nodes for v in n.outputs}
    inputs = {n: values[n] for n in outside if n not in made}
    del model
    small = subgraph(file, nodes, [name], values)
    bound = 64 * UNIT_ROUNDOFF["float32"] * float(np.abs(right[name][np.isfinite(right[name])]).max(initial=0.0))
    fed = {str(v.name): inputs[str(v.name)] for v in small.graph.inputs}
    text = f"{name} is wrong in the file"
    command = write_bundle(
        context.folder, small, fed, {name: values[name]}, {name: bound}, Setting(level="disabled"), note=text
    )
    return {"bundle": str(context.folder), "rerun": command}


def _between(model: ir.Model, name: str, known: set[str]) -> list[ir.Node]:
    """Return the nodes that compute ``name`` from known values, in graph order."""
    needed, nodes = {name}, []
    for node in reversed(list(model.graph)):
        if any(v.name in needed for v in node.outputs) and node.op_type != "Constant":
            nodes.append(node)
            needed |= {str(v.name) for v in node.inputs if v is not None and v.name and v.name not in known}
    return nodes[::-1]


def _as_stored(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _first_bad_runtime(context: Context, case: Case, setting: Setting | None) -> dict[str, Any]:
    assert setting is not None
    file = context.subject.model
    if setting.level != "disabled":
        plain = replace(setting, level="disabled")
        if not _fails(case, context.subject.run(case.family.feeds, plain)):
            return _guilty(context, case, setting)
    names = [str(v.name) for node in file.graph for v in node.outputs if v.name][:_MOST_VALUES]
    truth = run_evaluator(context.subject.evaluator, case.family.feeds, fetch=names)
    values = {n: _like(file, n, a) for n, a in truth.items()} | {n: np.asarray(a) for n, a in case.family.feeds.items()}
    u = UNIT_ROUNDOFF[case.precision]
    window: list[ir.Node] = []  # nodes whose result cannot leave the runtime (bfloat16) are judged with the next one
    for node in file.graph:
        name = str(node.outputs[0].name)
        if node.op_type == "Constant" or name not in truth or not is_float(truth[name]):
            continue
        window.append(node)
        error, expected = _alone(file, window, values, setting)
        if error is None or expected is None:
            continue
        size = rms(expected[np.isfinite(expected)])
        if error > _TOLERANCE * u * size + SMALLEST_NORMAL[case.precision]:
            kinds = "+".join(n.op_type for n in window)
            result: dict[str, Any] = {"where": module_path(window[0]), "op": kinds, "value": name}
            result["stored"] = f"{kinds} alone {_loss(error, size)}"
            return result | _runtime_bundle(context, case, window, name, values, expected, setting)
        window = []
    return {}


def _loss(error: float, size: float) -> str:
    """Say how wrong a result is whose RMS error and RMS size are known; an infinite error is another shape."""
    if not np.isfinite(error):
        return "has another shape than the operator's definition gives it"
    return f"keeps about {round(-np.log2(error / size)) if size else 0} bits of mantissa"


def _like(model: ir.Model, name: str, array: Array) -> Array:
    """Round a float64 value to the dtype it has in the file; float32 where that is not declared."""
    if array.dtype != np.float64:
        return array
    for node in model.graph:
        for value in node.outputs:
            if value.name != name:
                continue
            dtype = ir.DataType(node.attributes.get_int("to", 1)) if node.op_type == "Cast" else value.dtype
            if dtype is not None:
                return np.asarray(array.astype(dtype.numpy()))
    return array.astype(np.float32)


def _alone(
    model: ir.Model, nodes: list[ir.Node], values: Arrays, setting: Setting
) -> tuple[float | None, Array | None]:
    """Run some nodes on right inputs; return the last one's RMS error against float64 on them, and the truth.

    (None, None) where the runtime cannot run them on their own.
    """
    name = str(nodes[-1].outputs[0].name)
    small = subgraph(model, nodes, [name], values)
    feeds = {str(v.name): values[str(v.name)] for v in small.graph.inputs}
    expected = run_evaluator(Evaluator(small), feeds)[name]
    try:
        session = open_session(bare_proto(small).SerializeToString(), setting)
        got = np.asarray(run_session(session, feeds, [name])[0], np.float64)
    except GraphError:
        return None, None
    if got.shape != expected.shape:
        return float("inf"), expected
    finite = np.isfinite(got) & np.isfinite(expected)
    return rms(got[finite] - expected[finite]), expected


def _guilty(context: Context, case: Case, setting: Setting) -> dict[str, Any]:
    """Bisect the optimizers that changed the graph."""

    def passes(names: tuple[str, ...]) -> bool:
        changed = replace(setting, disabled=names)
        outputs = context.subject.run(case.family.feeds, changed)
        context.subject.close(changed)
        return not _fails(case, outputs)

    names = guilty_optimizers(context.subject.path, setting.level, passes)
    result: dict[str, Any] = {"optimizers": list(names)}
    if names:
        result["session_option"] = f"InferenceSession(..., disabled_optimizers={list(names)})"
    return result | _shrunk(context, case, setting)


def _shrunk(context: Context, case: Case, setting: Setting) -> dict[str, Any]:
    """Find the smallest run of nodes that fails under a setting when fed with right values; write it as a bundle."""
    file = context.subject.model
    nodes = [n for n in file.graph if n.op_type != "Constant"]
    names = [str(v.name) for n in file.graph for v in n.outputs if v.name]
    if len(names) > _MOST_VALUES:
        return {}
    truth = run_evaluator(context.subject.evaluator, case.family.feeds, fetch=names)
    values = {n: _like(file, n, a) for n, a in truth.items()} | {n: np.asarray(a) for n, a in case.family.feeds.items()}
    u = UNIT_ROUNDOFF[case.precision]

    def bad(chosen: list[ir.Node]) -> Array | None:
        if not is_float(truth[str(chosen[-1].outputs[0].name)]):
            return None
        error, expected = _alone(file, chosen, values, setting)
        if error is None or expected is None:
            return None
        return expected if error > _TOLERANCE * u * rms(expected[np.isfinite(expected)]) else None

    end = next((i for i in range(len(nodes)) if bad(nodes[: i + 1]) is not None), None)
    if end is None:
        return {}
    start = next(i for i in range(end, -1, -1) if bad(nodes[i : end + 1]) is not None)
    chosen = nodes[start : end + 1]
    expected = bad(chosen)
    assert expected is not None
    last = chosen[-1]
    result: dict[str, Any] = {"where": module_path(chosen[0]), "op": "+".join(n.op_type for n in chosen)}
    return result | _runtime_bundle(context, case, chosen, str(last.outputs[0].name), values, expected, setting)


def _runtime_bundle(
    context: Context, case: Case, nodes: list[ir.Node], name: str, values: Arrays, expected: Array, setting: Setting
) -> dict[str, Any]:
    if context.folder is None:
        return {}
    small = subgraph(context.subject.model, nodes, [name], values)
    feeds = {str(v.name): values[str(v.name)] for v in small.graph.inputs}
    finite = expected[np.isfinite(expected)]
    bound = _TOLERANCE * UNIT_ROUNDOFF[case.precision] * float(np.abs(finite).max(initial=0.0))
    command = write_bundle(
        context.folder,
        small,
        feeds,
        {name: expected.astype(values[name].dtype)},
        {name: bound},
        setting,
        note=f"{name} is computed wrongly by the runtime",
    )
    return {"bundle": str(context.folder), "rerun": command}
