"""SOURCE: a class or function named as ``path/to/file.py:Name`` or ``package.module:Name``.

A file is imported under a private module name with its folder on ``sys.path`` while it loads, so that it may import
its neighbours; importing the same unchanged file again returns the same module, so that classes stay identical.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from normdeploy.errors import NormdeployError, SourceError
from normdeploy.files import lies_at, not_a_file

GRAMMAR = "path/to/file.py:Name or package.module:Name"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages: this environment's, another's that it sees, a user's own, a distribution's."""

_WEIGHTS = "name the code that builds the model, and give this file by --weights"
_REMEDIES = {".onnx": "an ONNX file is folded by normdeploy fold"} | dict.fromkeys(
    (".pt", ".pth", ".bin", ".ckpt", ".safetensors"), _WEIGHTS
)
"""What to do instead, by what was given as SOURCE."""


def split_source(source: str) -> tuple[str, str]:
    """Split ``source`` into file or module, and name.

    Raises:
        SourceError: it does not follow the grammar.
    """
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name.isidentifier():
        remedy = _REMEDIES.get(Path(source).suffix, "name the class or function after a colon")
        raise SourceError(f"SOURCE is {source!r}; expected {GRAMMAR}: {remedy}")
    return place, name


def is_source(text: str) -> bool:
    """Tell SOURCE from a path to an ONNX file: ``text`` follows the grammar and is no existing file."""
    place, colon, name = text.rpartition(":")
    return bool(colon and place and name.isidentifier()) and not Path(text).is_file()


def is_installed(file: str | os.PathLike[str]) -> bool:
    """Whether a file of code belongs to an installed package, which a user does not write."""
    return not _INSTALLED.isdisjoint(Path(file).parts)


def source_file(source: str, *, folder: Path | None = None) -> Path | None:
    """Return the file that ``source`` names, or None for a module; relative paths are taken from ``folder``.

    Raises:
        SourceError: it does not follow the grammar or the file does not exist.
    """
    place, _ = split_source(source)
    if not place.endswith(".py"):
        if os.sep in place or "/" in place:
            raise SourceError(
                f"SOURCE is {source!r}; expected {GRAMMAR}: {place!r} has slashes but does not end in .py"
            )
        return None
    path = (folder / place) if folder is not None else Path(place)
    if not lies_at(path):
        raise SourceError(f"{path} {not_a_file(path)}; expected a Python file to take {source!r} from: check the path")
    return path.resolve()


def load_source(source: str, *, folder: Path | None = None) -> Any:
    """Import and return the object that ``source`` names.

    Args:
        source: ``path/to/file.py:Name`` or ``package.module:Name``.
        folder: what relative file paths are relative to; the working directory by default.

    Raises:
        SourceError: the file or module cannot be found or imported, or has no such name.
    """
    place, name = split_source(source)
    path = source_file(source, folder=folder)
    try:
        module = _import_file(path) if path is not None else _import_module(place)
    except SourceError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's file raises on import is theirs to read
        what = f"{path or place} cannot be imported: {type(error).__name__}: {error}"
        raise SourceError(f"{what}; expected a Python file that imports by itself: run it alone to see") from error
    if not hasattr(module, name):
        public = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise SourceError(f"{place} has no {name!r}; expected one of: {', '.join(public) or 'nothing public there'}")
    return getattr(module, name)


def build(source: str, arguments: Mapping[str, Any] | None = None, *, folder: Path | None = None) -> Any:
    """Load ``source``, a class or a function returning a module, and call it with ``arguments``.

    Returns:
        torch.nn.Module: the model, freshly built, in whatever mode its author left it.

    Raises:
        SourceError: it cannot be loaded, called, or does not give a ``torch.nn.Module``.
        MemoryError: the model is larger than the memory.
    """
    import torch

    target = load_source(source, folder=folder)
    if isinstance(target, torch.nn.Module):
        return target
    if not callable(target):
        raise SourceError(f"{source} is a {type(target).__name__}; expected a class or a function returning a module")
    model = call_source(target, arguments, source, expected="a model", place="as --arg KEY=VALUE")
    if not isinstance(model, torch.nn.Module):
        raise SourceError(
            f"{source} returns a value of type {type(model).__name__}; expected a torch.nn.Module: return the model, "
            "or name what does"
        )
    return model


def call_source(
    target: Callable[..., Any], arguments: Mapping[str, Any] | None, source: str, *, expected: str, place: str
) -> Any:
    """Call what a SOURCE names, and say what it raises by its name.

    Args:
        target, source: what is called, and what the user calls it.
        arguments: its keyword arguments.
        expected: what it returns.
        place: where its arguments are given.

    Raises:
        SourceError: it does not take the arguments, or raised something.
        NormdeployError: it raised one of ours, which says itself what to do.
        MemoryError: the memory is too small; no argument would help.
    """
    given = dict(arguments or {})
    _check_arguments(target, given, source, place)
    try:
        return target(**given)
    except (MemoryError, NormdeployError):
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        called = f"{source}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
        raise SourceError(
            f"{called} raised {type(error).__name__}: {error}; expected {expected}: pass its arguments {place}"
        ) from error


def _check_arguments(target: Callable[..., Any], arguments: Mapping[str, Any], source: str, place: str) -> None:
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # some callables in C have none
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise SourceError(
            f"{source}{signature} does not take {dict(arguments)}: {error}; expected its parameters: give them {place}"
        ) from error


def _import_module(name: str) -> ModuleType:
    """Import ``name`` with the working directory on the path, as ``python -m`` does."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def _import_file(path: Path) -> ModuleType:
    """Import ``path`` under a name made of its stem and a digest of its place and content.

    What runs is what was digested: bytecode kept of a file is taken for its own by Python as long as size and second of
    the last change agree, and a script may well change one digit twice in a second.
    """
    content = path.read_bytes()
    digest = hashlib.sha256(str(path).encode() + b"\0" + content).hexdigest()[:12]
    name = f"_normdeploy_source_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise SourceError(f"{path} cannot be imported; expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before execution: dataclasses and pickle look the module up by name
    sys.path.insert(0, str(path.parent))
    try:
        exec(loader.source_to_code(content, str(path)), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module
