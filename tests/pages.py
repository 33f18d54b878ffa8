"""What the tests of the documentation share: a page's blocks, and how one is run."""

from __future__ import annotations

import re
import sys
import types
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """A page's blocks of Python and of commands; blocks of ``console`` show what cannot run here."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def run_block(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a block as ``python -c`` in ``folder`` does, without another start of Python and of torch.

    What it warns of fails the test, as everywhere: a reader would see it.
    """
    page = types.ModuleType("page")
    with monkeypatch.context() as patch, warnings.catch_warnings():
        patch.setitem(sys.modules, "page", page)
        patch.syspath_prepend(folder)
        try:
            exec(compile(text, "page", "exec"), vars(page))
        finally:
            for name, module in list(sys.modules.items()):  # another page has another net.py
                if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
                    del sys.modules[name]
