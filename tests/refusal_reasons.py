"""Every reason for which a map stays, found in the package's source: what users read after an operator's name.

A clause is written once: in a ``Tie``, ``ties.refuse``, ``Refused``, ``Reason`` or ``NoMatch``, or in a constant or a
variable that is given to one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import normdeploy.rewrite.affine.affine_operators as recognising
import normdeploy.rewrite.gauge as engine

_POSITION = {"Tie": 1, "refuse": 1, "Unfollowed": 0, "Refused": 1, "Reason": 0, "NoMatch": 1, "Stays": 0}


@dataclass(frozen=True)
class Refusal:
    """One clause where it is given: its template, and the lines of the call that gives it."""

    clause: str
    lines: range


def _template(expression: ast.expr) -> str | None:
    """Return a string literal, with {} for what is computed."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        return expression.value
    if isinstance(expression, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in expression.values]
        return "".join(str(part) for part in parts)
    return None


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _assigned(tree: ast.AST, name: str) -> list[ast.expr]:
    """Return what a name is bound to: in assignments, and as a key of dictionaries' items in loops."""
    targets = [item for item in ast.walk(tree) if isinstance(item, ast.Assign | ast.AnnAssign)]
    found: list[ast.expr] = []
    for item in targets:
        names = item.targets if isinstance(item, ast.Assign) else [item.target]
        if item.value is not None and any(isinstance(target, ast.Name) and target.id == name for target in names):
            found.append(item.value)
    return found


def refusals(path: Path) -> Iterator[Refusal]:
    """Yield every clause that a module gives, once for each place."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {item.name: item for item in ast.walk(tree) if isinstance(item, ast.FunctionDef)}
    found: dict[Refusal, None] = {}
    for scope in (tree, *functions.values()):
        for node in ast.walk(scope):
            if not (isinstance(node, ast.Call) and _called(node) in _POSITION):
                continue
            position = _POSITION[_called(node)]
            if len(node.args) <= position:
                continue
            reason = node.args[position]
            choices = [reason.body, reason.orelse] if isinstance(reason, ast.IfExp) else [reason]
            if isinstance(reason, ast.Name):
                choices = _assigned(scope, reason.id)
            if isinstance(reason, ast.Call) and _called(reason) in functions:  # a function that words it
                returned = [item.value for item in ast.walk(functions[_called(reason)]) if isinstance(item, ast.Return)]
                choices = [item for item in returned if item is not None]
            elif isinstance(reason, ast.Call) and _called(reason) == "get":  # a table of others, and what it is without
                choices = reason.args[1:]
            for choice in choices:
                template = _template(choice)
                if template:
                    found[Refusal(template, range(node.lineno, (node.end_lineno or node.lineno) + 1))] = None
    yield from found


def clauses() -> set[str]:
    """Return every clause of the fold engine and of what recognises its maps."""
    limits = ast.walk(ast.parse((Path(str(engine.__file__)).parent / "shift_limits.py").read_text()))
    worded = [item.value for item in limits if isinstance(item, ast.Assign) and isinstance(item.value, ast.JoinedStr)]
    files = [*Path(str(engine.__file__)).parent.rglob("*.py"), Path(str(recognising.__file__))]
    found = {refusal.clause for path in files for refusal in refusals(path)}
    found |= {str(_template(item)) for item in worded}
    return {clause for clause in found if re.search("[a-z]", clause.replace("{}", ""))}


def pattern(template: str) -> re.Pattern[str]:
    """Return what a clause of this template looks like."""
    return re.compile(".+?".join(re.escape(part) for part in template.split("{}")), re.DOTALL)
