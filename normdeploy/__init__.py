"""Trained PyTorch networks to ONNX Runtime with their normalizations folded, and proof that nothing changed.

Public names (loaded when first used, so that ``import normdeploy`` is immediate)::

    export  fold  inspect  verify  tune                the functions; see normdeploy.api
    bench  diff  package                               latency, how two files differ, a Triton model repository
    load                                               an exported file as a function; imports no torch
    ExportResult  FoldResult                           what export and fold return
    Finding  Findings  Verdict  Plan  Predictor        what inspect, verify, tune and load return
    BenchResult  Difference                            what bench and diff return
    Ledger  LedgerRow                                  what became of every normalization
    NormdeployError, VerificationError, ...            the error tree; see normdeploy.errors
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from normdeploy.errors import NormdeployError, VerificationError

if TYPE_CHECKING:
    from normdeploy.api import ExportResult, FoldResult, export, fold, inspect, tune, verify
    from normdeploy.compare import Difference, diff
    from normdeploy.inspection import Finding, Findings
    from normdeploy.rewrite.ledger import Ledger, LedgerRow
    from normdeploy.runtime import BenchResult, Plan, Predictor, bench, load
    from normdeploy.runtime import package_triton as package
    from normdeploy.verification import Verdict

# Read when torch is loaded: threads that spin while they wait take the cores from whoever works, onnxruntime above all
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"

__all__ = [
    "BenchResult",
    "Difference",
    "ExportResult",
    "Finding",
    "Findings",
    "FoldResult",
    "Ledger",
    "LedgerRow",
    "NormdeployError",
    "Plan",
    "Predictor",
    "Verdict",
    "VerificationError",
    "bench",
    "diff",
    "export",
    "fold",
    "inspect",
    "load",
    "package",
    "tune",
    "verify",
]

_LAZY = {
    "ExportResult": "normdeploy.api",
    "FoldResult": "normdeploy.api",
    "export": "normdeploy.api",
    "fold": "normdeploy.api",
    "inspect": "normdeploy.api",
    "verify": "normdeploy.api",
    "tune": "normdeploy.api",
    "Finding": "normdeploy.inspection",
    "Findings": "normdeploy.inspection",
    "Ledger": "normdeploy.rewrite.ledger",
    "LedgerRow": "normdeploy.rewrite.ledger",
    "load": "normdeploy.runtime",
    "bench": "normdeploy.runtime",
    "package": "normdeploy.runtime",
    "BenchResult": "normdeploy.runtime",
    "diff": "normdeploy.compare",
    "Difference": "normdeploy.compare",
    "Plan": "normdeploy.runtime",
    "Predictor": "normdeploy.runtime",
    "Verdict": "normdeploy.verification",
}
_CALLED_THERE = {"package": "package_triton"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'normdeploy' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), _CALLED_THERE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
