"""A module that its trace does not follow: the first submodule whose result is no value of the traced graph.

Submodules are followed in a float64 run of the module, values in one of the graph, and compared by what they hold, so
that no names are needed. Torch's exporter writes what a module computes while it is traced: code that asks whether it
is (``torch.compiler.is_compiling()``), and operators that it translates wrongly, show here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normdeploy.array_types import Array
from normdeploy.exporting.module.asks_if_traced import traced_otherwise
from normdeploy.graph import Evaluator, module_path
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.verification.bounds.criteria import finite_alike, rms
from normdeploy.verification.check_context import Context
from normdeploy.verification.family_case import Case
from normdeploy.verification.judging.float64_outputs import logic_problems
from normdeploy.verification.record.answers import Localization, Side
from normdeploy.verification.sides.flat_values import Feeds
from normdeploy.verification.sides.two_sides import EagerReference

_SAME = 1e-6
"""Relative RMS difference up to which two values are the same: a trace stores Python's numbers as float32."""

_MOST = 1 << 27
"""Elements of submodules' results that are kept; what comes after them is not followed."""


@dataclass
class _Call:
    """One call of a submodule: the float tensors that went in and came out, and which of them the graph holds.

    ``exits`` are the values that leave its part of the graph; it has none where it has no operator of its own.
    """

    path: str
    kind: str
    read: list[Array]
    made: list[Array]
    exits: frozenset[str] = frozenset()
    found: set[int] = field(default_factory=set)

    def look(self, name: str, value: Array) -> None:
        """Note which tensors equal a value of the graph; results only where it leaves the submodule's part of it."""
        for number, own in enumerate((*self.read, *self.made)):
            if number >= len(self.read) and self.exits and name not in self.exits:
                continue
            if number not in self.found and own.shape == value.shape and _same(own, value):
                self.found.add(number)

    @property
    def fed(self) -> bool:
        """True where the graph holds all that the call reads."""
        return self.found.issuperset(range(len(self.read)))

    @property
    def held(self) -> bool:
        """True where the graph holds all that the call makes."""
        return self.found.issuperset(range(len(self.read), len(self.read) + len(self.made)))


def untraced(context: Context, case: Case, outputs: list[Array]) -> Localization | None:
    """Return where the trace leaves the module, if the file is what was traced; None if the file is to blame.

    Args:
        case: where the failure shows. outputs: the file's, in float64.
    """
    module = context.reference
    if not isinstance(module, EagerReference) or module.graph is None or context.links.traced:
        return None
    traced = context.traced(case)
    eager = [y.astype(e.dtype) for y, e in zip(traced, case.eager, strict=True)]
    if logic_problems(replace(case, truth=traced, eager=eager, looked=None), outputs)[0]:
        return None
    found = Localization(case.family.name, Side.TRACE)
    first = _first(module, module.graph, case.family.feeds)
    if first is not None:
        found = replace(found, where=first.path or module.name, op=first.kind)
    questions = {
        kind: f"its code asks {asked.question}" for asked in traced_otherwise(module.model) for _, kind in asked.modules
    }
    said = questions.get(found.op) or next((f"{kind}: {text}" for kind, text in questions.items()), "")
    return replace(found, stored=said)


def _first(reference: EagerReference, graph: ir.Model, feeds: Feeds) -> _Call | None:
    """Return the first call, in the order in which they end, whose inputs the graph holds, and not its result."""
    with _followed(reference.model) as calls:
        reference.truth(feeds)

    exits = _exits(graph.graph, {call.path for call in calls})
    for call in calls:
        call.exits = exits[call.path]

    def look(name: str, value: Array) -> None:
        for call in calls:
            call.look(name, value)

    def hook(node: ir.Node, results: list[Tensor]) -> list[Tensor]:
        for output, result in zip(node.outputs, results, strict=False):
            if result.is_floating_point():
                look(str(output.name), to_numpy(result))
        return results

    for name, array in feeds.items():
        if np.asarray(array).dtype.kind == "f":
            look(name, np.asarray(array, np.float64))
    with torch.no_grad():
        Evaluator(graph).run(dict(feeds), hook=hook)
    return next((call for call in calls if call.fed and not call.held), None)


def _exits(graph: ir.Graph, paths: set[str]) -> dict[str, frozenset[str]]:
    """Return, by submodule, the values that its operators make and others read; of the model itself the outputs."""
    found: dict[str, set[str]] = {path: set() for path in paths}
    for node in graph:
        scopes = _scopes(module_path(node))
        for value in node.outputs:
            outside = [_scopes(module_path(usage.node)) for usage in value.uses()]
            for path in scopes & found.keys():
                if value.is_graph_output() or any(path not in others for others in outside):
                    found[path].add(str(value.name))
    found[""] = {str(value.name) for value in graph.outputs}
    return {path: frozenset(names) for path, names in found.items()}


def _scopes(path: str) -> set[str]:
    """Return a module path and all that it lies in, but for the model itself."""
    parts = path.split(".")
    return {".".join(parts[: n + 1]) for n in range(len(parts))}


@contextmanager
def _followed(model: nn.Module) -> Iterator[list[_Call]]:
    """Keep what submodules read and make, the model itself last."""
    calls: list[_Call] = []
    kept = 0

    def keep(path: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            nonlocal kept
            read, made = _floats((args, kwargs)), _floats(result)
            kept += sum(a.size for a in made)
            if kept <= _MOST or not path:
                calls.append(_Call(path, type(module).__name__, read, made))

        return hook

    handles = [m.register_forward_hook(keep(p), with_kwargs=True) for p, m in model.named_modules()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _floats(value: Any) -> list[Array]:
    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return [to_numpy(tensor.double().clone()) for tensor in tensors]


def _same(a: Array, b: Array) -> bool:
    finite = np.isfinite(a)
    return finite_alike(a, b) and rms(a[finite] - b[finite]) <= _SAME * rms(a[finite])
