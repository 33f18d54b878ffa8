"""Single operators at old operator sets, and what a file of one computes: by onnxruntime as it is, or by onnx."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import compose, defs
from onnx.reference import ReferenceEvaluator
from onnxruntime_outputs import run_onnxruntime
from published_cases import published_cases

FIRST, RULES, NEWEST = 7, 18, 23
"""Graphs from operator set 7 on are raised to 18, and from 18 to 23 where RMSNormalization is wanted."""

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


@dataclass(frozen=True)
class Case:
    """A file of one operator and its inputs."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Any]

    @property
    def opset(self) -> int:
        return opset(self.model)

    @property
    def target(self) -> int:
        return target(self.opset)


def side_by_side(cases: Sequence[Case]) -> Case:
    """Return cases of one operator set as one: a version converter takes as long for all as for each of them."""
    whole, feeds = onnx.ModelProto(), dict[str, Any]()
    whole.CopyFrom(cases[0].model)
    whole.ClearField("graph")
    whole.graph.name = "side_by_side"
    for number, case in enumerate(cases):
        prefix = f"case_{number}_"
        part = compose.add_prefix_graph(case.model.graph, prefix)
        for field in ("node", "input", "output", "initializer", "sparse_initializer", "value_info"):
            getattr(whole.graph, field).extend(getattr(part, field))
        feeds |= {f"{prefix}{name}": value for name, value in case.feeds.items()}
    return Case(", ".join(case.name for case in cases), whole, feeds)


class NotRunnable(Exception):
    """Neither onnxruntime nor onnx runs it."""


def opset(model: onnx.ModelProto) -> int:
    return next(item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))


def target(version: int) -> int:
    """The version that a graph is raised to."""
    return RULES if version < RULES else NEWEST


def changed(op_type: str, version: int) -> bool:
    """Whether the operator was defined anew between a version and the one it is raised to."""
    if not defs.has(op_type, version, ""):
        return False
    if not defs.has(op_type, target(version), ""):
        return True
    before, after = (defs.get_schema(op_type, at, "").since_version for at in (version, target(version)))
    return before != after


def redefined() -> list[str]:
    """Every standard operator that was defined anew since opset 7 and below 23."""
    names = sorted({schema.name for schema in defs.get_all_schemas_with_history() if schema.domain == ""})
    return [name for name in names if any(changed(name, version) for version in range(FIRST, NEWEST))]


def definitions(op_type: str) -> list[int]:
    """The newest version of each old definition of an operator that raising replaces."""
    last: dict[tuple[int, int], int] = {}
    for version in range(FIRST, NEWEST):
        if changed(op_type, version):
            last[defs.get_schema(op_type, version, "").since_version, target(version)] = version
    return sorted(last.values())


@functools.cache
def _published() -> dict[str, list[Any]]:
    """onnx's own node tests of one node each, by operator."""
    found: dict[str, list[Any]] = {}
    for item in published_cases():
        if len(item.model.graph.node) == 1 and item.model.graph.node[0].domain == "":
            found.setdefault(item.model.graph.node[0].op_type, []).append(item)
    return found


def published(op_type: str) -> Iterator[Case]:
    """onnx's own tests of an operator, declared as of each older operator set in which they are a valid file."""
    for item in _published().get(op_type, []):
        for version in definitions(op_type):
            model = onnx.ModelProto()
            model.CopyFrom(item.model)
            for entry in model.opset_import:
                if entry.domain == "":
                    entry.version = version
            model.ir_version = 8 if version < RULES else 9
            if not _is_valid(model):
                continue
            inputs, _ = item.data_sets[0]
            names = [value.name for value in model.graph.input]
            yield Case(f"{item.name} as of {version}", model, dict(zip(names, inputs, strict=False)))


def _is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return False
    return True


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> Sequence[Any]:
    """Run a file in onnxruntime as it is; by onnx's reference implementation where onnxruntime has no kernel.

    Raises:
        NotRunnable: neither does.
    """
    return run_by(model, feeds)[1]


def run_by(model: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[str, Sequence[Any]]:
    """Run a file as :func:`run` does; return who ran it too: "onnxruntime" or "onnx".

    Raises:
        NotRunnable: neither does.
    """
    try:
        return "onnxruntime", run_onnxruntime(model, feeds, plainly=True)
    except Exception as first:
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return "onnx", list(ReferenceEvaluator(model).run(None, feeds))
        except Exception as second:
            raise NotRunnable(f"{first}; {second}") from second


def differences(expected: Sequence[Any], found: Sequence[Any], tolerance: float) -> str:
    """What differs between two runs; empty if nothing."""
    if len(expected) != len(found):
        return f"{len(found)} outputs, not {len(expected)}"
    for index, (old, new) in enumerate(zip(expected, found, strict=True)):
        if isinstance(old, list):
            inner = differences(old, new, tolerance)
            if inner:
                return inner
            continue
        if old is None or new is None:
            if old is not new:
                return f"output {index} is {new}, not {old}"
            continue
        a, b = np.asarray(old), np.asarray(new)
        if a.shape != b.shape or (a.dtype.kind == "b") != (b.dtype.kind == "b"):
            return f"output {index} is {b.dtype}{b.shape}, not {a.dtype}{a.shape}"
        if a.dtype.kind in "OSU":
            same = bool(np.all(a == b))
        else:
            same = np.allclose(
                a.astype(np.float64), b.astype(np.float64), rtol=tolerance, atol=tolerance, equal_nan=True
            )
        if not same:
            return f"output {index} differs: {b.ravel()[:4]}, not {a.ravel()[:4]}"
    return ""
