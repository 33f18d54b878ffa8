"""Write the counts of modules and lines in docs/design.md again: ``python docs/count_lines.py``.

A row is counted where its table's head names a folder of the package, as "module of `rewrite`", and its first cell
names modules or folders in it. Lines of code are those that are neither empty, nor comment, nor docstring. Sentences
above the tables give sums of the same counts; a list of them here says which.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, PAGE = ROOT / "normdeploy", ROOT / "docs" / "design.md"

HEAD = re.compile(r"^\| (?:modules? of|in) `([\w/]+)` \|")
ROW = re.compile(r"^\| (`[^|]+`) \|(?: (\d+) \|)? [\d,]+ \([\d,]+\) \|")
SUMS: list[tuple[str, tuple[str, ...]]] = [
    (
        "`rewrite/affine` and `rewrite/gauge` have {code} lines of code in {modules} modules now, {lines} with",
        ("rewrite/affine", "rewrite/gauge"),
    ),
    ("has {lines} in {modules} modules. Who asks why one operator is confirmed", ("verification/derivation",)),
    ("that the room had then. It has {lines} now, {code} of them neither empty,", ("runtime/bulk",)),
]
"""Sentences with sums, and the folders that they are of; packages' own modules (``__init__.py``) are left out."""


def modules(place: Path) -> list[Path]:
    """Return the modules in a folder, or the one of a name."""
    if place.is_dir():
        return sorted(path for path in place.rglob("*.py") if path.name != "__init__.py")
    return [place.with_suffix(".py")]


def count(paths: Iterable[Path]) -> dict[str, str]:
    """Return how many modules, lines and lines of code there are."""
    found = {"modules": 0, "lines": 0, "code": 0}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        said: set[int] = set()
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                said.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        rows = [row.strip() for row in text.splitlines()]
        found["modules"] += 1
        found["lines"] += len(rows)
        found["code"] += sum(
            bool(row) and not row.startswith("#") and at not in said for at, row in enumerate(rows, start=1)
        )
    return {name: f"{number:,}" for name, number in found.items()}


def counted(page: str) -> str:
    """Return the page with every count as it is now."""
    folder: Path | None = None
    rows = []
    for row in page.splitlines():
        if head := HEAD.match(row):
            folder = PACKAGE / head[1]
        elif not row.startswith("|"):
            folder = None
        elif folder is not None and (found := ROW.match(row)):
            here = count(path for name in re.findall(r"`([\w/]+)`", found[1]) for path in modules(folder / name))
            of = f" {here['modules']} |" if found[2] else ""
            row = f"| {found[1]} |{of} {here['lines']} ({here['code']}) |{row[found.end() :]}"
        rows.append(row)
    page = "\n".join(rows) + "\n"
    for sentence, places in SUMS:
        here = count(path for place in places for path in modules(PACKAGE / place))
        parts = re.split(r"\{\w+\}", sentence)
        pattern = re.compile(r"[\d,]+".join(map(re.escape, parts)))
        page, times = pattern.subn(sentence.format(**here), page)
        if times != 1:
            raise SystemExit(f"{PAGE.name} has {times} sentences {sentence!r}; expected one")
    return page


if __name__ == "__main__":
    PAGE.write_text(counted(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
