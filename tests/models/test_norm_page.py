"""The page on batch and layer normalization shows the numbers that were computed, and its commands exist."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "batch-or-layer.md").read_text(encoding="utf-8")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> object:
    """Return a function that imports a script of docs/."""
    monkeypatch.syspath_prepend(str(DOCS))

    def script(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return script


def test_the_tables_are_those_of_the_kept_numbers(load) -> None:
    assert load("make_norm_pictures").filled(PAGE) == PAGE
    tables = re.findall(r"<!-- table: ([\w-]+) -->\n\| ", PAGE)
    # the claims have a table of another form: test_norm_claims.py
    assert {*tables, "claims"} == {path.stem for path in (DOCS / "norms").glob("*.json")}


def test_every_table_has_its_command_and_every_picture_its_file(load) -> None:
    experiments = load("norm_experiment").EXPERIMENTS
    commands = re.findall(r"^    python docs/norm_experiment\.py ([\w-]+)$", PAGE, flags=re.MULTILINE)
    assert sorted(commands) == sorted(experiments) == sorted(re.findall(r"<!-- table: ([\w-]+) -->", PAGE))
    for picture in re.findall(r"\]\((norms/[^)]+)\)", PAGE):
        assert (DOCS / picture).stat().st_size > 1000, picture


def test_the_worked_numbers_are_computed_again(load) -> None:
    kept = json.loads((DOCS / "norms" / "worked.json").read_text(encoding="utf-8"))
    found = load("norm_experiment").worked()
    assert kept.keys() == found.keys()
    for key, value in found.items():
        flat = [x for row in value for x in (row if isinstance(row, list) else [row])]
        wanted = [x for row in kept[key] for x in (row if isinstance(row, list) else [row])]
        assert flat == pytest.approx(wanted, rel=1e-5, abs=1e-6), key
