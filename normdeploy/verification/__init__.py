"""Room: verification. A verdict that could have been otherwise (docs/verification.md).

Names are loaded when first used, so that checking a certificate does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normdeploy.verification.core import verify
    from normdeploy.verification.record.answers import Check, Measurement, MutantReport, SiteReport
    from normdeploy.verification.record.verdict import Verdict
    from normdeploy.verification.sides.sessions import Setting

__all__ = ["Check", "Measurement", "MutantReport", "Setting", "SiteReport", "Verdict", "verify"]

_ELSEWHERE = {"verify": "core", "Setting": "sides.sessions", "Verdict": "record.verdict"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'normdeploy.verification' has no attribute {name!r}")
    return getattr(importlib.import_module(f"normdeploy.verification.{_ELSEWHERE.get(name, 'record.answers')}"), name)
