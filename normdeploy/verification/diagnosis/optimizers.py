"""Which graph optimizer of the runtime is guilty: bisecting ``disabled_optimizers``.

onnxruntime ignores unknown names in ``disabled_optimizers`` without a word, and has no call that lists the known ones.
The names here are read off its own verbose log of loading the very file, in a process of its own; rules inside a
rule-based transformer do not log, so their names are tried from a list and believed only where switching one off shows.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from normdeploy.errors import GraphError
from normdeploy.ort.levels import LEVEL_NAMES

RULES: tuple[str, ...] = (
    "EliminateIdentity",
    "EliminateSlice",
    "UnsqueezeElimination",
    "EliminateDropout",
    "ExpandElimination",
    "CastElimination",
    "CastChainElimination",
    "PreShapeNodeElimination",
    "NoopElimination",
    "DivMulFusion",
    "FuseReluClip",
    "GemmSumFusion",
    "GemmTransposeFusion",
    "NotWhereFusion",
    "ConvAddFusion",
    "ConvMulFusion",
    "ConvBNFusion",
    "PadFusion",
    "MatMul_BatchNormalization_Fusion",
    "ClipQuantRewrite",
    "ReluQuantRewrite",
    "LabelEncoderFusion",
)
"""Names of rewrite rules inside onnxruntime's rule-based transformers."""

_LINE = re.compile(r"GraphTransformer (\S+) modified: ([01])")
_LOADER = """
import json, sys
import onnxruntime as ort
from normdeploy.ort.byte_products import exact_session
path, level, disabled = json.loads(sys.argv[1])
options = ort.SessionOptions()
source, entries = exact_session(path)
for key, value in entries.items():
    options.add_session_config_entry(key, value)
options.log_severity_level = 0
options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled or None)
"""


@dataclass(frozen=True)
class Applied:
    """What the runtime's optimizers did to a file.

    Args:
        known: names of all transformers that ran, in order. modified: those that changed the graph.
    """

    known: tuple[str, ...]
    modified: tuple[str, ...]


def applied_optimizers(path: str | os.PathLike[str], level: str = "all", disabled: Sequence[str] = ()) -> Applied:
    """Load a file in a process of its own and read which optimizers ran and which changed the graph.

    Raises:
        GraphError: the runtime does not load the file.
    """
    arguments = json.dumps([str(Path(path)), LEVEL_NAMES[level], list(disabled)])
    done = subprocess.run([sys.executable, "-c", _LOADER, arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise GraphError(f"onnxruntime cannot load {path}: {tail[0]}")
    known: dict[str, bool] = {}
    for name, changed in _LINE.findall(done.stderr):
        known[name] = known.get(name, False) or changed == "1"
    return Applied(tuple(known), tuple(name for name, changed in known.items() if changed))


def guilty(candidates: Sequence[str], passes: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """Return a smallest set of optimizers whose removal makes the case pass; () if even removing all does not.

    Args:
        candidates: names, transformers first. passes: runs the case with these names disabled.
    """
    for name in candidates:
        if passes((name,)):
            return (name,)
    chosen = tuple(candidates)
    if not chosen or not passes(chosen):
        return ()
    for name in candidates:  # leave out one after the other whatever is not needed
        rest = tuple(other for other in chosen if other != name)
        if rest and passes(rest):
            chosen = rest
    return chosen


def guilty_optimizers(
    path: str | os.PathLike[str], level: str, passes: Callable[[tuple[str, ...]], bool]
) -> tuple[str, ...]:
    """Return the optimizers to disable so that a case passes; () if no optimizer is guilty.

    Args:
        path: the file. level: at which the case fails. passes: runs the case with these names disabled; a
            GraphError of its says that it does not.
    """

    def tried(names: tuple[str, ...]) -> bool:
        try:
            return passes(names)
        except GraphError:  # onnxruntime needs it: without, an operator of the graph has no kernel
            return False

    modified = applied_optimizers(path, level).modified
    plain = [name for name in modified if "RuleBased" not in name]
    rules = list(RULES) if len(plain) < len(modified) else []
    return guilty([*rules, *plain], tried) or guilty(list(modified), tried)
