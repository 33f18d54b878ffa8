"""Every reason for which the fold engine leaves a map: where the package gives it, found in its source.

A reason is written once, as the argument of :class:`Refusal` or :class:`NoMatch`, or in a function that words one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import normdeploy.rewrite.affine as package

_POSITION = {"Refusal": 0, "NoMatch": 1}


def _template(expression: ast.expr) -> str | None:
    """Return a string literal, with {} for what is computed."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        return expression.value
    if isinstance(expression, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in expression.values]
        return "".join(str(part) for part in parts)
    return None


def _reasons(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (function, template) of every reason in a module."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    by_name = {function.name: function for function in functions}
    constants = {
        target.id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    for function in functions:
        for node in ast.walk(function):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _POSITION):
                continue
            reason = node.args[_POSITION[node.func.id]]
            if isinstance(reason, ast.Name):
                reason = constants[reason.id]
            if isinstance(reason, ast.Call) and isinstance(reason.func, ast.Name):  # a function that words it
                worded = by_name[reason.func.id]
                returned = [item.value for item in ast.walk(worded) if isinstance(item, ast.Return)]
            else:
                returned = [reason]
            for expression in returned:
                template = None if expression is None else _template(expression)
                assert template is not None, f"{function.name}: a reason that is no plain string: {ast.dump(node)}"
                yield function.name, template


def reasons() -> set[str]:
    """Return every reason of the package as "module.function: template"."""
    found = set()
    for path in Path(str(package.__file__)).parent.glob("*.py"):
        found |= {f"{path.stem}.{function}: {text}" for function, text in _reasons(ast.parse(path.read_text()))}
    return found


def pattern(template: str) -> re.Pattern[str]:
    """Return what a reason of this template looks like."""
    return re.compile(".+?".join(re.escape(part) for part in template.split("{}")), re.DOTALL)
