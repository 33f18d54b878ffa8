"""timm, where no torchvision fits the installed torch: its networks need none, but importing it asks for one.

timm's data loading subclasses torchvision's transforms and names its datasets; its networks use neither. So while timm
is imported, and only then, names of torchvision that do nothing stand in: what asks for torchvision later (torch's
exporter, transformers) finds what is really installed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import ModuleType
from typing import Any

from torch import nn

_INTERPOLATION = Enum("InterpolationMode", ["NEAREST", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS"])
_MODULES = ("torchvision", "torchvision.datasets", "torchvision.ops", "torchvision.ops.misc", "torchvision.transforms")
_FUNCTIONS = "torchvision.transforms.functional"


class _Names(ModuleType):
    """A module that has a class of any name asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _INTERPOLATION if name == "InterpolationMode" else type(name, (nn.Module,), {})
        setattr(self, name, made)
        return made


def load_timm() -> ModuleType:
    """Return timm.

    Raises:
        ImportError: it is not installed.
    """
    if "timm" in sys.modules:
        return sys.modules["timm"]
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):  # operators of one that fits another torch are not there
        with _standing_in():
            return importlib.import_module("timm")
    return importlib.import_module("timm")


@contextmanager
def _standing_in() -> Iterator[None]:
    """Put the names in place for the block."""
    _forget()  # what was imported of one that does not fit
    for name in (*_MODULES, _FUNCTIONS):
        sys.modules[name] = module = _Names(name)
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
