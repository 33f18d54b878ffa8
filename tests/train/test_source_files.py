"""Which files define a SOURCE: what it imports of the user's own, however it is imported, and nothing installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from normdeploy.errors import SourceError
from normdeploy.train.source_files import files_of_source


def lay_out(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


SPELLINGS = {
    "import": "import nd_layers",
    "import as": "import nd_layers as l",
    "from": "from nd_layers import Block",
    "inside a function": "def f():\n    from nd_layers import Block\n    return Block",
    "under a condition": "try:\n    import nd_layers\nexcept ImportError:\n    pass",
    "by name": "import importlib\nl = importlib.import_module('nd_layers')",
    "through a neighbour": "import nd_other",
    "star": "from nd_layers import *",
}


@pytest.mark.parametrize("how", SPELLINGS)
def test_a_neighbour_is_found_however_it_is_imported(how: str, tmp_path: Path) -> None:
    lay_out(tmp_path, {"net.py": SPELLINGS[how], "nd_other.py": "import nd_layers", "nd_layers.py": "Block = 1"})
    found = files_of_source("net.py:Net", folder=tmp_path)
    assert found["net.py"] == tmp_path / "net.py"
    assert found["nd_layers"] == tmp_path / "nd_layers.py"


def test_packages_are_followed_through_relative_imports_and_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(
        tmp_path,
        {
            "nd_pack/__init__.py": "raise SystemExit('was run')",
            "nd_pack/net.py": "from . import blocks\nfrom .deep.norms import Norm\nimport torch, os, normdeploy.nn",
            "nd_pack/blocks.py": "from ..outside import nothing",  # beyond the top: names nothing
            "nd_pack/deep/norms.py": "from ...nd_pack import blocks\nfrom ..mean import mean",  # deep has no __init__
            "nd_pack/mean.py": "",
            "nd_pack/unused.py": "",
        },
    )
    monkeypatch.chdir(tmp_path)
    found = files_of_source("nd_pack.net:Net")
    names = {"nd_pack.net", "nd_pack.blocks", "nd_pack.deep.norms", "nd_pack.mean", "nd_pack"}
    assert set(found) - {"nd_pack"} == names - {"nd_pack"}
    assert "nd_pack" not in sys.modules


def test_cycles_end_and_broken_files_count_by_their_bytes(tmp_path: Path) -> None:
    lay_out(tmp_path, {"net.py": "import nd_a", "nd_a.py": "import nd_b", "nd_b.py": "import nd_a\nclass ("})
    assert set(files_of_source("net.py:Net", folder=tmp_path)) == {"net.py", "nd_a", "nd_b"}


def test_of_an_installed_package_the_named_file_alone_counts() -> None:
    assert list(files_of_source("typer.main:Typer")) == ["typer.main"]


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(SourceError, match="not found"):
        files_of_source("nd_nowhere.net:Net")


def test_two_files_of_one_module_name_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for side in ("a", "b"):
        lay_out(tmp_path / side, {"net.py": "import nd_twice", "nd_twice.py": f"side = {side!r}"})
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    import nd_twice  # type: ignore[import-not-found]  # written above

    assert nd_twice.side == "a"
    assert "nd_twice" in files_of_source("net.py:Net", folder=tmp_path / "a")
    with pytest.raises(SourceError, match="use a process for each"):
        files_of_source("net.py:Net", folder=tmp_path / "b")
    del sys.modules["nd_twice"]
