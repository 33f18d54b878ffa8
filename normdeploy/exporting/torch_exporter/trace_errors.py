"""Which module of the user's made a trace fail, and what to do about it."""

from __future__ import annotations

import dis
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from normdeploy.exporting.torch_exporter.torch_exceptions import is_control_flow, is_missing_translation, is_unwritten
from normdeploy.exporting.translations.delegated import NoTranslationError
from normdeploy.graph.scopes import module_of_node
from normdeploy.nn.wrapped import is_wrapped

_TORCH = Path(torch.__file__).parent
_HERE = Path(__file__).parents[1]  # the room: its subrooms call and trace modules, too


class Cause(Enum):
    """Why a trace fails, told by the classes of torch's exceptions and by trying, never by what a message says.

    Args:
        wrong: what the module does. remedy: what to do instead.
    """

    CONTROL_FLOW = (
        "its control flow depends on tensor values",
        "choose with torch.where or torch.cond instead of `if`, `while`, `int()` or `.item()` on a tensor",
    )
    NO_TRANSLATION = (
        "an operator has no ONNX translation",
        "write it with operators that have one",
    )
    FIXED_DIMENSION = (
        "it fixes a dimension that was asked to be dynamic",
        "take the size from x.shape in the model, or pass dynamic_shapes without that dimension",
    )
    REFUSES = (
        "it runs, and refuses by itself what it is given while it is traced",
        "look at the condition in front of that line: sizes may be symbols there, and libraries ask whether they are "
        "traced",
    )
    TRANSFORMED = (
        "a transform of torch.func runs in it (vmap, jvp, grad), of which torch.export follows a part",
        "of vmap leave out_dims at 0 and move that dimension behind it (movedim), or give the whole batch to what is "
        "mapped; of the others write out what they compute",
    )
    LEAVES_TORCH = ("it leaves torch (numpy, raw memory) inside forward", "compute with torch operators")

    def __init__(self, wrong: str, remedy: str) -> None:
        self.wrong, self.remedy = wrong, remedy


_LEAVING = (
    torch.Tensor.numpy,
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
    torch.Tensor.data_ptr,
    torch.Tensor.untyped_storage,
    torch.Tensor.storage,
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


def fixed_by(model: nn.Module, error: BaseException) -> str:
    """Return what fixes a dimension, and what to do about it, in a clause.

    Args:
        model: the model. error: what tracing it raised where the dimension was dynamic.
    """
    where, first = module_in_traceback(model, error), root_cause(error)
    if isinstance(first, NoTranslationError):
        return f"an operator of {where} follows it for which ONNX has no form then ({essential_line(first)})"
    if any(map(is_unwritten, _chain(error))):
        return (
            f"an attribute of an operator of {where} follows it (a convolution's groups, say), and a file holds "
            "attributes as numbers: give the example the batch that will be run"
        )
    return (
        f"{where} fixes it ({type(first).__name__}: {essential_line(first)}): take it from x.shape there, or pass "
        "dynamic_shapes"
    )


def _module_of_node(error: BaseException) -> str:
    """Return the module of the traced operator that the exporter was translating, or ""."""
    for link in _chain(error):
        for frame, _ in traceback.walk_tb(link.__traceback__):
            node = frame.f_locals.get("node")
            if isinstance(node, torch.fx.Node) and node.meta.get("nn_module_stack"):
                where, kind = module_of_node(node)
                return f"module {where!r} ({kind})" if where else f"the model ({kind})"
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


def cause_of(error: BaseException) -> Cause | None:
    """Return what the classes of an exception and of those behind it tell of the cause; None where they do not."""
    links = _chain(error)
    if any(map(is_control_flow, links)):
        return Cause.CONTROL_FLOW
    if any(isinstance(link, NoTranslationError) or is_missing_translation(link) for link in links):
        return Cause.NO_TRANSLATION
    return None


def _raised_by_hand(error: BaseException) -> bool:
    """Tell whether a ``raise`` of the model's code raised an exception, by the instruction that it stopped at."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or _is_machinery(last.tb_frame.f_code.co_filename):
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


class _Departures(TorchFunctionMode):
    """Sees whether a tensor is handed to something other than torch, and whether one is a transform's of torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: bool = False
        self.transformed: bool = False

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.seen = self.seen or func in _LEAVING
        self.transformed = self.transformed or any(isinstance(one, torch.Tensor) and is_wrapped(one) for one in args)
        return func(*args, **(kwargs or {}))


def _cause_seen(model: nn.Module, tensors: Sequence[torch.Tensor]) -> Cause | None:
    """Return what stops a trace of what is seen while the model runs; None where nothing of it is."""
    departures = _Departures()
    with suppress(Exception), torch.no_grad(), departures:
        model(*tensors)
    if departures.seen:
        return Cause.LEAVES_TORCH
    return Cause.TRANSFORMED if departures.transformed else None


def explain(
    model: nn.Module, error: BaseException, tensors: Sequence[torch.Tensor], traces_fixed: Callable[[], bool] | None
) -> str:
    """Return the message of a ``TraceError``: the module, what it does, the exporter's own line, the remedy.

    Args:
        model: the model that was traced, its forward taking flat tensors.
        error: what the trace raised.
        tensors: the example arguments; the model runs on them.
        traces_fixed: whether the trace succeeds without a dynamic dimension; None where none was asked for.
    """
    first = root_cause(error)
    where = module_in_traceback(model, error)
    if any(isinstance(link, RecursionError) for link in _chain(error)):
        return f"{where} cannot be traced: {too_deep()}"
    cause = cause_of(error)
    if cause is None and traces_fixed is not None and traces_fixed():
        cause = Cause.FIXED_DIMENSION
    if cause is None and _raised_by_hand(first):
        cause = Cause.REFUSES
    if cause is None:
        cause = _cause_seen(model, tensors)
    said = f"{type(first).__name__}: {essential_line(first)}"
    if cause is not None:
        return f"{where} cannot be traced: {cause.wrong} ({said}); {cause.remedy}"
    return (
        f"{where} cannot be traced, with fixed shapes either ({said}); expected a forward that torch.export can "
        "follow: rewrite what the message tells of"
    )
