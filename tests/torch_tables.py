"""torch.export's tables of operators, made once a process: two fifths of a small network's trace go into them.

What a table depends on is looked at each time, and every trace gets tables of its own with the same rows, so that
nothing of one trace reaches the next. Only that the rows are looked up again is left out.

All that tests replace in torch itself stands here, by the names that torch 2.13 has; a release that has others ends
in an AttributeError at the first test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch._decomp import decompositions_for_rng
from torch._export import utils
from torch._logging._internal import trace_log
from torch._subclasses import fake_impls
from torch.export import decomp_utils, exported_program
from torch.onnx._internal.exporter import _decomp
from torch.onnx._internal.exporter._registration import ONNXRegistry

Operator = Any
Kernels = dict[Any, Any]


def _registered() -> list[str]:
    """Return torch's composite operators; a library that registers another one makes the list another."""
    return torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")


class _Kept:
    """What a function returned, for as long as what it depends on stays equal; operator sets 18 and 23 take turns."""

    def __init__(self, make: Callable[..., Any], depends: Callable[..., Any]) -> None:
        self._make, self._depends, self._made = make, depends, list[tuple[Any, Any]]()

    def __call__(self, *args: Any) -> Any:
        on = self._depends(*args)
        for known, made in self._made:
            if known == on:
                return made
        made = self._make(*args)
        self._made = [(self._depends(*args), made), *self._made[:3]]  # making registers what torch loads late
        return made


class _Overridden:
    """How kernels of operators look while a trace replaces them: computed for each of 525 operators by 12 keys."""

    def __init__(self, override: Callable[[Mapping[Operator, Any]], Any]) -> None:
        self._override = override
        self._seen: dict[tuple[Operator, Any], tuple[Kernels, Kernels, Any]] = {}

    @contextmanager
    def __call__(self, replaced: Mapping[Operator, Any]) -> Iterator[None]:
        rules = fake_impls.op_implementations_dict
        known = {
            operator: self._seen[operator, kernel]
            for operator, kernel in replaced.items()
            if (operator, kernel) in self._seen
            and self._seen[operator, kernel][0] == operator.py_kernels
            and operator not in rules
        }
        rest = {operator: kernel for operator, kernel in replaced.items() if operator not in known}
        before = {operator: dict(operator.py_kernels) for operator in rest}
        with self._override(rest):
            for operator in rest:
                made = dict(operator.py_kernels), rules[operator]
                self._seen[operator, replaced[operator]] = (before[operator], *made)
            for operator, (_, kernels, rule) in known.items():
                self._put(operator, kernels)
                rules[operator] = rule
            try:
                yield
            finally:
                for operator, (kernels, _, _) in known.items():
                    self._put(operator, kernels)
                    rules.pop(operator, None)

    @staticmethod
    def _put(operator: Operator, kernels: Kernels) -> None:
        operator.py_kernels.clear()
        operator.py_kernels.update(kernels)
        operator._dispatch_cache.clear()


def _preservable(asked: Callable[[Operator], bool]) -> Callable[[Operator], bool]:
    """Ask once of each of torch's own operators whether a trace may keep it: each trace asks of 1,500."""
    answers: dict[Operator, bool] = {}

    def of(operator: Operator) -> bool:
        if getattr(operator, "namespace", "") not in ("aten", "prims"):
            return asked(operator)
        if operator not in answers:
            answers[operator] = asked(operator)
        return answers[operator]

    return of


def _decomposition(look_up: Callable[[Operator], Any]) -> Callable[[Operator], Any]:
    """Hand out one call of an operator's own decomposition, not an equal one to each trace: what it leads to stays."""
    calls: dict[Operator, Any] = {}

    def of(operator: Operator) -> Any:
        found = look_up(operator)
        return calls.setdefault(operator, found) if isinstance(found, partial) else found

    return of


def _nothing_drawn(state: Any) -> None:
    """Begin a count of a GPU's random numbers; its empty tensors are never written, so all counts share one."""
    state.seed = state.base_offset = _EMPTY
    state.relative_offset, state.offset_advanced_at_least_once = 0, False


_EMPTY = torch.tensor(())


@contextmanager
def made_once(after_reading: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Let traces in the block share what they look up; yields what forgets the exporter's own table.

    Args:
        after_reading: called when the exporter's table of 1,500 translations has been read.
    """
    read: dict[tuple[Any, ...], ONNXRegistry] = {}
    anew = ONNXRegistry.from_torchlib

    def once(cls: type[ONNXRegistry], *args: Any, **options: Any) -> ONNXRegistry:
        key = (*args, *sorted(options.items()))
        if key not in read:
            read[key] = anew(*args, **options)
            after_reading()
        table = cls()
        vars(table).update(vars(read[key]))
        table.functions = {target: list(rows) for target, rows in read[key].functions.items()}
        return table

    composite = _Kept(utils._collect_all_valid_cia_ops, lambda: (_registered(), list(torch.ops._dir)))
    look_up = _Kept(utils._materialize_cpp_cia_ops, _registered)
    friendly = _Kept(
        _decomp.create_onnx_friendly_decomposition_table,
        lambda translated: (set(translated), _registered(), dict(torch._decomp.decomposition_table)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_log, "handlers", [])
        patch.setattr(utils, "_materialize_cpp_cia_ops", look_up)
        patch.setattr(utils, "_check_valid_to_preserve", _preservable(utils._check_valid_to_preserve))
        own = _decomposition(utils._get_decomp_for_cia)
        for module in (utils, exported_program, decomp_utils):
            patch.setattr(module, "_get_decomp_for_cia", own)
        patch.setattr(decompositions_for_rng.PhiloxState, "reset", _nothing_drawn)
        for module in (exported_program, decomp_utils):
            patch.setattr(module, "_collect_all_valid_cia_ops", composite)
        patch.setattr(
            _decomp, "create_onnx_friendly_decomposition_table", lambda translated: dict(friendly(translated))
        )
        patch.setattr(
            exported_program,
            "_override_composite_implicit_decomp",
            _Overridden(exported_program._override_composite_implicit_decomp),
        )
        patch.setattr(ONNXRegistry, "from_torchlib", classmethod(once))
        yield read.clear
