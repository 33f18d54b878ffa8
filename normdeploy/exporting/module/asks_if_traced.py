"""Modules whose code asks whether it is being compiled, exported or traced.

Under ``torch.compiler.is_compiling()`` and its kin a forward can be another function than the one that was trained; the
trace follows that one, and no run of the eager model shows it. The question is looked for in the bytecode: of every
method of the modules' classes, and of the functions and methods that these call, as far as names tell. torch's own code
is left out; it keeps its functions. So are the questions that torch.export answers as eager torch does
(``torch.jit.is_tracing()``): they change nothing that is computed. ``tests/exporting/test_tracing.py`` asks all of them
during a trace.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from normdeploy.nn.object_walk import is_foreign
from normdeploy.parsing.sources import is_installed

_OWNERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("torch.compiler", ("is_compiling", "is_exporting")),
    ("torch._utils", ("is_compiling",)),
    ("torch._dynamo", ("is_compiling",)),
    ("torch._dynamo.external_utils", ("is_compiling",)),
    ("torch.onnx", ("is_in_onnx_export",)),
    ("torch.fx._symbolic_trace", ("is_fx_tracing",)),
)


@dataclass(frozen=True)
class Asked:
    """Code that asks, and the modules that run it.

    Args:
        question: what is asked, ``torch.compiler.is_compiling()``.
        function: who asks, ``package.module.function``.
        installed: whether that is the code of an installed package, which a user does not write.
        modules: (path, class) of each class of modules that comes there, the first place of it.
    """

    question: str
    function: str
    installed: bool
    modules: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        path, kind = self.modules[0]
        others = f" and {len(self.modules) - 1} more" if len(self.modules) > 1 else ""
        by = f", in {self.function}," if self.installed else ""
        return f"{f'module {path!r}' if path else 'the model'} ({kind}){others} asks {self.question}{by}".rstrip(",")


def _questions() -> dict[int, str]:
    """Return id -> name of the functions that ask, as far as this torch has them and they are loaded."""
    found: dict[int, str] = {}
    for owner, names in _OWNERS:
        module = sys.modules.get(owner)
        for name in names:
            function = getattr(module, name, None)
            if function is not None:
                found.setdefault(id(function), f"{owner}.{name}()")
    return found


def traced_otherwise(model: nn.Module) -> list[Asked]:
    """Return who asks, and which modules run that: those that come to one place are told together.

    Args:
        model: the model; it is not run.
    """
    questions = _questions()
    found: dict[tuple[str, types.FunctionType], list[tuple[str, str]]] = {}
    seen: set[type] = set()
    for path, module in model.named_modules():
        kind = type(module)
        if kind in seen or is_foreign(module):
            continue
        seen.add(kind)
        asked = _asked(kind, questions)
        if asked:
            found.setdefault(asked, []).append((path, kind.__name__))
    return [
        Asked(question, f"{who.__module__}.{who.__qualname__}", is_installed(who.__code__.co_filename), tuple(modules))
        for (question, who), modules in found.items()
    ]


def _asked(kind: type, questions: dict[int, str]) -> tuple[str, types.FunctionType] | None:
    """Return the question that a class's forward asks, and the function that does."""
    start = [_plain(getattr(kind, name, None)) for name in ("forward", "__call__")]
    pending = [function for function in start if function is not None]
    visited: set[int] = set()
    while pending:
        function = pending.pop()
        if id(function.__code__) in visited:
            continue
        visited.add(id(function.__code__))
        for named in _names_used(function, kind):
            if id(named) in questions:
                return questions[id(named)], function
            called = _plain(named)
            if called is not None and not _of_libraries(called):
                pending.append(called)
    return None


def _plain(value: Any) -> types.FunctionType | None:
    """Return the Python function behind a method, a partial, a property or a decorated function."""
    if isinstance(value, (staticmethod, classmethod, types.MethodType)):
        value = value.__func__
    elif isinstance(value, functools.partial):
        value = value.func
    elif isinstance(value, property):
        value = value.fget
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, types.FunctionType) else None


def _of_libraries(function: types.FunctionType) -> bool:
    root = (function.__module__ or "").partition(".")[0]
    return root in ("torch", "numpy") or root in sys.stdlib_module_names


def _names_used(function: types.FunctionType, kind: type) -> Iterator[object]:
    """Yield the objects that a function names: globals, what they hold, imports, closures, and methods of ``self``."""
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        held: dict[str, object] = {}  # local names that are imports
        current: object = None
        imported: object = None
        for step in dis.get_instructions(code):
            operation, name = step.opname, step.argval
            if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
                current = function.__globals__.get(name, getattr(builtins, str(name), None))
            elif operation.startswith("LOAD_FAST"):
                current = kind if name == "self" else held.get(name) if isinstance(name, str) else None
            elif operation in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
                cell = closure.get(name)
                current = _content(cell) if cell is not None else held.get(name)
            elif operation in ("LOAD_ATTR", "LOAD_METHOD"):
                current = getattr(current, name, None) if isinstance(current, (types.ModuleType, type)) else None
            elif operation == "IMPORT_NAME":
                imported = sys.modules.get(name)
                current = sys.modules.get(name.partition(".")[0])  # `import a.b` binds a
            elif operation == "IMPORT_FROM":
                current = getattr(imported, name, None)
            elif operation in ("STORE_FAST", "STORE_DEREF"):
                held[name], current = current, None
                continue
            else:
                if operation not in ("PRECALL", "PUSH_NULL", "RESUME", "CACHE", "COPY_FREE_VARS"):
                    current = None
                continue
            if current is not None:
                yield current


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
