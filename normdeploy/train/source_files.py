"""Which of the user's own files define a thing: the file that is named, and what it imports, and what that imports.

The files are read, not run: every ``import`` statement, also one inside a function, is looked up as Python would look
it up, with the file's folder first on the path. The standard library, installed packages and normdeploy itself are left
out; what they are is told by their versions.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path

import normdeploy
from normdeploy.errors import SourceError
from normdeploy.parsing.sources import is_installed, source_file, split_source

_LIBRARY = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
_OURS = Path(normdeploy.__file__).resolve().parent


def files_of_source(source: str, *, folder: Path | None = None) -> dict[str, Path]:
    """Return the files that define ``source``: SOURCE itself, and imported modules by their dotted names.

    Args:
        source: ``path/to/file.py:Name`` or ``package.module:Name``.
        folder: what a relative file path is relative to; the working directory by default.

    Raises:
        SourceError: there is no such file or module.
    """
    file = source_file(source, folder=folder)
    place, _ = split_source(source)
    if file is not None:
        return files_of_file(file, place)
    with _first_on_path(Path.cwd()):
        spec = _found(place)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise SourceError(f"module {place!r} was not found; expected one that can be imported: check {source!r}")
    return files_of_file(Path(spec.origin), place, package=_package(place, spec), home=Path.cwd())


def files_of_file(path: Path, name: str, *, package: str = "", home: Path | None = None) -> dict[str, Path]:
    """Return ``path`` under ``name`` and the user's own modules that it imports, directly or not, by dotted name.

    Args:
        path: a Python file.
        name: what it is called in the result.
        package: the package that its relative imports start from; "" for a file that is run by itself.
        home: the folder that is first on the path while it is imported; its own by default.
    """
    path = path.resolve()
    found = {name: path}
    if not _own(path) and package:
        return found  # an installed package: the named file alone, its version tells the rest
    waiting = [(path, package)]
    with _first_on_path(home or path.parent):
        while waiting:
            file, inside = waiting.pop()
            for wanted in _imports(file, inside):
                if wanted in found or (spec := _found(wanted)) is None or spec.origin is None:
                    continue
                origin = Path(spec.origin)
                if not origin.is_file() or not _own(origin.resolve()) or origin.resolve() == path:
                    continue
                _require_the_same(wanted, origin.resolve())
                found[wanted] = origin.resolve()
                waiting.append((origin.resolve(), _package(wanted, spec)))
    return found


def _require_the_same(name: str, file: Path) -> None:
    """Check that a module of this name, where this process has one, is the file that an import would find.

    Raises:
        SourceError: Python would hand out another file's module without a word.
    """
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded is not None and Path(loaded).resolve() != file:
        raise SourceError(
            f"module {name!r} was imported from {loaded} in this process and is now wanted from {file}; expected one "
            "file of that name: use a process for each"
        )


def _own(path: Path) -> bool:
    """Whether a file is the user's: not installed, not Python's, not ours."""
    if is_installed(path) or path.is_relative_to(_OURS):
        return False
    return not any(path.is_relative_to(folder) for folder in _LIBRARY)


def _imports(file: Path, package: str) -> Iterator[str]:
    """Yield the dotted name of everything that a file may import, each after the packages it lies in."""
    if file.suffix != ".py":
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # its bytes count; that it cannot be imported is said by who imports it
        return
    for node in ast.walk(tree):
        for name in _names(node, package):
            parts = name.split(".")
            yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def _names(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            with suppress(ImportError):  # beyond the topmost package: Python refuses it too
                base = importlib.util.resolve_name("." * node.level + base, package or None)
        if base and not base.startswith("."):
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        name = node.args[0].value
        if called in ("import_module", "__import__") and isinstance(name, str) and name and not name.startswith("."):
            yield name


def _found(name: str) -> ModuleSpec | None:
    """Find a module without importing it or the packages it lies in."""
    parts = name.split(".")
    path: list[str] | None = None
    spec: ModuleSpec | None = None
    for count in range(len(parts)):
        spec = _look(".".join(parts[: count + 1]), path)
        if spec is None:
            return None
        if spec.submodule_search_locations is None:
            path = None
        elif spec.origin is None:  # a folder without __init__: its own list of folders asks for the imported parent
            places = [Path(place) / parts[count] for place in (sys.path if path is None else path)]
            path = [str(place) for place in places if place.is_dir()]
        else:
            path = list(spec.submodule_search_locations)
        if path is None and count + 1 < len(parts):
            return None
    return spec


def _look(name: str, path: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            spec: ModuleSpec | None = find(name, path, None) if find else None
        except KeyError:  # a folder without __init__ in a package that is not imported: Python asks sys.modules for it
            spec = ModuleSpec(name, None, is_package=True)
        if spec is not None:
            return spec
    return None


def _package(name: str, spec: ModuleSpec) -> str:
    return name if spec.submodule_search_locations is not None else name.rpartition(".")[0]


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
