"""Trained PyTorch networks to ONNX Runtime with their normalizations folded, and proof that nothing changed.

Public names (loaded when first used, so that ``import normdeploy`` is immediate)::

    export  fold  inspect  verify  tune                the functions; see normdeploy.api
    load                                               an exported file as a function; imports no torch
    ExportResult  FoldResult                           what export and fold return
    Finding  Findings  Verdict  Plan  Predictor        what inspect, verify, tune and load return
    Ledger  LedgerRow                                  what became of every normalization
    NormdeployError, VerificationError, ...            the error tree; see normdeploy.errors
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from normdeploy.errors import NormdeployError, VerificationError

if TYPE_CHECKING:
    from normdeploy.api import ExportResult, FoldResult, export, fold, inspect, tune, verify
    from normdeploy.inspect import Finding, Findings
    from normdeploy.rewrite.ledger import Ledger, LedgerRow
    from normdeploy.runtime import Plan, Predictor, load
    from normdeploy.verify import Verdict

# Read when torch is loaded: threads that spin while they wait take the cores from whoever works, onnxruntime above all
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"

__all__ = [
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
    "export",
    "fold",
    "inspect",
    "load",
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
    "Finding": "normdeploy.inspect",
    "Findings": "normdeploy.inspect",
    "Ledger": "normdeploy.rewrite.ledger",
    "LedgerRow": "normdeploy.rewrite.ledger",
    "load": "normdeploy.runtime",
    "Plan": "normdeploy.runtime",
    "Predictor": "normdeploy.runtime",
    "Verdict": "normdeploy.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'normdeploy' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


class _Package(ModuleType):
    """Keeps ``normdeploy.export``, ``.inspect`` and ``.verify`` the public functions.

    Rooms of these names are subpackages, and importing a subpackage binds it as an attribute of its parent; here the
    function wins. The rooms stay importable in full: ``from normdeploy.verify.verdict import Verdict``.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _LAZY:
            return
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel by name, as modules do with the picklers of Ray, Beam and Spark, which look at the exact type."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
