"""Three large rooms, `verification`, `exporting` and `rewrite`: modules and subrooms import one way, in no circle."""

from __future__ import annotations

from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from package_imports import imported

import normdeploy

ROOT = Path(normdeploy.__file__).parent
ROOMS = ["verification", "exporting", "rewrite"]


def modules(root: Path, name: str) -> dict[str, Path]:
    """Return every module under a folder but the packages' own, by name."""
    files = (path for path in root.rglob("*.py") if path.name != "__init__.py")
    return {".".join([name, *path.relative_to(root).with_suffix("").parts]): path for path in files}


def links(found: dict[str, Path]) -> dict[str, set[str]]:
    """Return which of some modules each of them imports."""
    return {name: {other for other in imported(path) if other in found} for name, path in found.items()}


@pytest.mark.parametrize("room", ROOMS)
def test_modules_import_each_other_in_no_circle(room: str):
    TopologicalSorter(links(modules(ROOT / room, f"normdeploy.{room}"))).prepare()  # raises CycleError, which names it


@pytest.mark.parametrize("room", ROOMS)
def test_subrooms_import_each_other_in_no_circle(room: str):
    found = links(modules(ROOT / room, f"normdeploy.{room}"))
    divided = {name.rsplit(".", 2)[0] for name in found}  # packages that hold others: their own modules stand alone

    def subroom(name: str) -> str:
        return name if (package := name.rpartition(".")[0]) in divided else package

    graph: dict[str, set[str]] = {}
    for name, others in found.items():
        graph.setdefault(subroom(name), set()).update(map(subroom, others))
    for name, others in graph.items():
        others.discard(name)
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("where", ["at the top", "in a function"])
def test_a_circle_would_be_seen(tmp_path: Path, where: str):
    (tmp_path / "a.py").write_text("from room import b\n")
    line = "from room.a import x" if where == "at the top" else "def f():\n    import room.a"
    (tmp_path / "b.py").write_text(line)
    with pytest.raises(ValueError, match="cycle"):
        TopologicalSorter(links(modules(tmp_path, "room"))).prepare()
