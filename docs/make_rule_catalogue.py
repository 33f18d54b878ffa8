"""Write docs/rules.md, the catalogue of rules, from the rules' docstrings: ``python docs/make_rule_catalogue.py``."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

from normdeploy.rewrite import gauge
from normdeploy.rewrite.gauge.rules import RULES

_HEAD = """# Catalogue of rules

Generated from the rules' docstrings by `docs/make_rule_catalogue.py`. How they work together: [folding](folding.md).

## Operators that scales and shifts pass

Every value x of a graph may be computed as x' with x = s x' + t. What an operator allows of the s and t beside it:

"""
_PASSES = ("recognise", "branches", "lower", "opset", "weights")


def write(path: Path) -> None:
    """Write the catalogue to ``path``."""
    path.write_text(catalogue(), encoding="utf-8")


def catalogue() -> str:
    """Return the catalogue as Markdown."""
    by_module: dict[str, list[str]] = {}
    for (domain, name), rule in RULES.items():
        by_module.setdefault(rule.tie.__module__, []).append(f"{domain}.{name}" if domain else name)
    parts = [_HEAD]
    for module, operators in by_module.items():
        found = importlib.import_module(module)
        parts.append(f"### {module.rpartition('.')[2].capitalize()}: {', '.join(operators)}\n\n{_text(found)}\n")
        parts += [f"- {line}" for line in _functions(found)]
        parts.append("")
    parts.append("## Passes\n")
    rewrite = importlib.import_module("normdeploy.rewrite")
    for module in sorted(pkgutil.iter_modules(rewrite.__path__), key=lambda one: one.name):
        if not module.name.startswith("_"):
            parts.append(
                f"### {module.name}\n\n{_text(importlib.import_module(f'normdeploy.rewrite.{module.name}'))}\n"
            )
    return "\n".join(parts)


def _functions(module: ModuleType) -> list[str]:
    """Return the first sentence of each public function of a module."""
    found = []
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            first = (inspect.getdoc(value) or "").split("\n\n")[0]
            found.append(f"`{name}`: {_escaped(' '.join(first.split()))}")
    return found


def _text(module: ModuleType) -> str:
    """Return a module's docstring: paragraphs as text, indented blocks as they are."""
    paragraphs = (inspect.getdoc(module) or "").split("\n\n")
    return "\n\n".join(
        f"```text\n{part}\n```" if part.startswith((" ", "\t")) or "\n  " in part else _escaped(part)
        for part in paragraphs
    )


def _escaped(text: str) -> str:
    return text.replace("::", ":").replace("<", "\\<").replace("*", "\\*").replace("_", "\\_").replace("``", "`")


if __name__ == "__main__":
    assert gauge.__name__ == "normdeploy.rewrite.gauge"
    write(Path(__file__).with_name("rules.md"))
