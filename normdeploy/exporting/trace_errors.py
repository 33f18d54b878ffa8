"""Which module of the user's made a trace fail, and what to do about it."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch
from torch import nn

_TORCH = Path(torch.__file__).parent
_HERE = Path(__file__).parent

# (what the message holds, what is wrong, the remedy)
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        r"data-dependent|GuardOnDataDependent|Dynamic control flow|UnsupportedInstruction|_local_scalar_dense",
        "its control flow depends on tensor values",
        "choose with torch.where or torch.cond instead of `if`, `while`, `int()` or `.item()` on a tensor",
    ),
    (
        r"No ONNX function found|no ONNX form|Failed to decompose|No decompositions registered|Unsupported FX nodes",
        "an operator has no ONNX translation",
        "write it with operators that have one",
    ),
    (
        r"Constraints violated|marked .* as dynamic but|specializ|not_dynamic|suggested fixes",
        "it fixes a dimension that was asked to be dynamic",
        "take the size from x.shape in the model, or pass dynamic_shapes without that dimension",
    ),
    (
        r"numpy|Tensor-likes|\.numpy\(\)|data_ptr|FakeTensor",
        "it leaves torch (numpy, raw memory) inside forward",
        "compute with torch operators",
    ),
)
_LABEL = re.compile(r"^[\w.]*(Error|Exception|Unsupported)\s*:?\s*$")


def module_in_traceback(model: nn.Module, error: BaseException) -> str:
    """Return the innermost module whose forward was running: its path, class, file line; or "the model".

    Args:
        model: the model that was run.
        error: what it raised; the causes behind it are looked at too.
    """
    names = {id(module): name for name, module in model.named_modules()}
    best = ""
    for link in _chain(error):
        for frame, line in traceback.walk_tb(link.__traceback__):
            variables = frame.f_code.co_varnames[:1]  # "self", whatever the author calls it
            module = frame.f_locals.get(variables[0]) if variables else None
            if id(module) in names and not _is_machinery(frame.f_code.co_filename):
                where = names[id(module)]
                subject = f"module {where!r}" if where else "the model"
                best = f"{subject} ({type(module).__name__}, line {line} in {frame.f_code.co_name})"
        if best:
            return best
    return _module_of_node(error) or "the model"


def _module_of_node(error: BaseException) -> str:
    """Return the module of the traced operator that the exporter was translating, or ""."""
    for link in _chain(error):
        for frame, _ in traceback.walk_tb(link.__traceback__):
            node = frame.f_locals.get("node")
            if isinstance(node, torch.fx.Node) and node.meta.get("nn_module_stack"):
                path, kind = list(node.meta["nn_module_stack"].values())[-1]
                name = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
                subject = f"module {path!r}" if path else "the model"
                return f"{subject} ({name.rpartition('.')[2]})"
    return ""


def _is_machinery(filename: str) -> bool:
    """Whether a file is torch's or our own way of calling and tracing modules, rather than a module's code."""
    path = Path(filename)
    if _HERE in path.parents:
        return True
    inside = _TORCH in path.parents
    return inside and (_TORCH / "nn" not in path.parents or path.name == "module.py")


_HANDLED: ContextVar[BaseException | None] = ContextVar("handled before the trace", default=None)


@contextmanager
def causes_from_here() -> Iterator[None]:
    """Leave what was being handled when the block began (a caller's ``except``) out of every chain of causes."""
    token = _HANDLED.set(sys.exc_info()[1])
    try:
        yield
    finally:
        _HANDLED.reset(token)


def _chain(error: BaseException) -> list[BaseException]:
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links and link is not _HANDLED.get():
        links.append(link)
        link = link.__cause__ or link.__context__
    return links[::-1]  # the first failure knows the user's frames best


def root_cause(error: BaseException) -> BaseException:
    """Return the first failure of a chain of exceptions."""
    return _chain(error)[0]


def essential_line(error: BaseException) -> str:
    """Return the first line of the message that says something."""
    said = [line.strip().strip("#*- ") for line in str(error).splitlines()]
    said = [line for line in said if line and not _LABEL.match(line)]
    lines = [line for line in said if not line.startswith(("Failed to", "This step", "Debug"))]
    for number, line in enumerate(lines):
        if line.endswith(":") and number + 1 < len(lines):  # an announcement of what follows
            return f"{line} {lines[number + 1]}"
        return line
    return type(error).__name__


def too_deep() -> str:
    """Return what stopped a model with a RecursionError, and the remedy."""
    limit = sys.getrecursionlimit()
    return (
        f"it calls more functions within functions than Python's recursion limit of {limit} allows (eager torch takes "
        "about four for each module within a module); expected a model that ends below it: raise the limit where the "
        f"model is defined, as in sys.setrecursionlimit({10 * limit}), nest fewer modules, or end the recursion"
    )


def explain(model: nn.Module, error: BaseException) -> str:
    """Return the message of a ``TraceError``: the module, what it does, the exporter's own line, the remedy."""
    links = _chain(error)
    first = links[0]
    said = "\n".join(f"{type(link).__name__}: {link}" for link in links)
    where = module_in_traceback(model, error)
    if any(isinstance(link, RecursionError) for link in links):
        return f"{where} cannot be traced: {too_deep()}"
    for pattern, wrong, remedy in _CAUSES:
        if re.search(pattern, said):
            return f"{where} cannot be traced: {wrong} ({type(first).__name__}: {essential_line(first)}); {remedy}"
    return (
        f"{where} cannot be traced ({type(first).__name__}: {essential_line(first)}); expected a forward that "
        "torch.export can follow: rewrite the named line, or pass dynamic_shapes={} to trace with fixed shapes"
    )
