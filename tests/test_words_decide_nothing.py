"""No decision is taken on the text of a message: texts are for readers, classes and enumerations decide."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import normdeploy

PACKAGE = Path(normdeploy.__file__).parent
SEARCHES = frozenset(
    ("startswith", "endswith", "find", "rfind", "index", "count", "search", "match", "fullmatch", "findall")
)
TEXTS = frozenset(("reason", "detail", "remedy", "what", "message", "said"))
"""Attributes that hold a sentence: of ledger rows, answers, findings and errors."""


def _says(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    """Whether an expression holds the text of an error, or a variable made of it."""
    for part in ast.walk(node):
        match part:
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]) if name in errors:
                return True
            case ast.Attribute(value=ast.Name(id=name), attr="args") if name in errors:
                return True
            case ast.Name(id=name) if name in texts:
                return True
    return False


def decisions(source: str) -> Iterator[int]:
    """Yield the lines that compare or search the text of an error, or a sentence of ours with a constant."""
    nodes = list(ast.walk(ast.parse(source)))
    caught = {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    errors = caught | {"error", "exception", "cause", "warning"}
    texts: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and _says(node.value, errors, set()):
            texts |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            text = any(isinstance(side, ast.Constant) and isinstance(side.value, str) and side.value for side in sides)
            ours = any(isinstance(side, ast.Attribute) and side.attr in TEXTS for side in sides)
            if (text and ours) or any(_says(side, errors, texts) for side in sides):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            value = node.func.value
            ours = isinstance(value, ast.Attribute) and value.attr in TEXTS
            if ours or any(_says(item, errors, texts) for item in (value, *node.args)):
                yield node.lineno


@pytest.mark.parametrize("room", sorted(path.name for path in PACKAGE.iterdir() if not path.name.startswith("_")))
def test_no_decision_is_taken_on_the_text_of_a_message(room: str) -> None:
    place = PACKAGE / room
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}:{line}"
        for path in files
        for line in decisions(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    "line",
    [
        "if 'dynamic' in str(error): pass",
        "if str(error).startswith('Failed'): pass",
        "if re.search('dynamic', str(error)): pass",
        "if error.args[0] == 'no such key': pass",
        "said = str(error).lower()\nif 'dynamic' in said: pass",
        "if row.reason == 'is read twice': pass",
        "if 'skipped' in answer.detail: pass",
        "if finding.what.startswith('the norm'): pass",
    ],
)
def test_such_a_decision_is_seen(line: str) -> None:
    assert list(decisions(line)) == [line.count("\n") + 1]


def test_quoting_is_no_decision() -> None:
    assert list(decisions("raise ValueError(f'{name}: {error}; expected x') from error\nif row.reason: pass")) == []
