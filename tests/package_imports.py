"""What modules of the package import; each is read once, whoever asks."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def imported(path: Path) -> frozenset[str]:
    """Return what a module imports when it runs, wherever that stands in it (imports for types alone left out).

    Of ``from a.b import c`` both ``a.b`` and ``a.b.c``.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return frozenset(names)
