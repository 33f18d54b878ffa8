"""Every example in a docstring runs and gives what it shows; every public function has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import normdeploy as nd

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "normdeploy"
REFERENCE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
IN_ORDER = ("export", "fold", "inspect", "verify", "tune", "load", "bench", "package", "diff")
"""The examples of the public functions follow each other in one folder: later ones read the files of earlier ones."""

ON_PAGES = ("runtime.tune", "runtime.retune", "train.train")
"""Functions that need data, a recipe or a plan: shown in docs/tuning.md and docs/training.md."""


def documented() -> list[str]:
    """The functions that the API reference lists, as MODULE.NAME."""
    return re.findall(r"autofunction:: ([\w.]+)", REFERENCE)


def modules_with_examples() -> list[str]:
    found = [path for path in sorted(PACKAGE.rglob("*.py")) if "\n    >>> " in path.read_text(encoding="utf-8")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found]


def run(found: list[doctest.DocTest]) -> None:
    for example in found:
        said: list[str] = []
        doctest.DocTestRunner(verbose=False, optionflags=FLAGS).run(example, out=said.append)
        assert not said, "".join(said)


def of(owner: object, module: str) -> list[doctest.DocTest]:
    tests = doctest.DocTestFinder(recurse=False).find(owner, module=importlib.import_module(module))
    return [test for test in tests if test.examples]


def test_every_public_function_has_an_example() -> None:
    functions = {name: getattr(nd, name) for name in nd.__all__ if inspect.isfunction(getattr(nd, name))}
    for path in documented():
        module, _, name = path.rpartition(".")
        functions[path] = getattr(importlib.import_module(module), name)
    for room in ("nn", "runtime", "testing", "train"):
        found = importlib.import_module(f"normdeploy.{room}")
        functions |= {
            f"{room}.{name}": getattr(found, name) for name in found.__all__ if f"{room}.{name}" not in ON_PAGES
        }
    functions = {name: member for name, member in functions.items() if inspect.isfunction(member)}
    assert set(IN_ORDER) <= functions.keys()
    assert not [name for name, function in functions.items() if ">>> " not in (function.__doc__ or "")]


def test_the_public_functions_examples_give_what_they_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(nd.tune.__kwdefaults__, "seconds", 0.2)
    for name in IN_ORDER:
        function = getattr(nd, name)
        found = of(function, function.__module__)
        assert found
        run(found)


@pytest.mark.parametrize("module", modules_with_examples())
def test_other_examples_give_what_they_show(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    public = {getattr(nd, name) for name in IN_ORDER}
    found = importlib.import_module(module)
    others = [item for item in vars(found).values() if getattr(item, "__module__", "") == module]
    run([test for item in others if item not in public for test in of(item, module)])
