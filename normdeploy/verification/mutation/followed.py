"""The example in the module and in its traced graph side by side: how their sites compare.

With `--quick` the graph is not evaluated where calls of the module name the numbers of every site
(:mod:`normdeploy.verification.mutation.named_sites`); where that turns out not to be enough, it is followed later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir
from torch import Tensor

from normdeploy.array_types import Array
from normdeploy.errors import GraphError
from normdeploy.graph import FLOATS
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.verification.check_context import Context
from normdeploy.verification.float64_chain import OTHER_ROUNDING
from normdeploy.verification.mutation.called_parts import CallWatch, key_of
from normdeploy.verification.mutation.named_sites import NamedSites
from normdeploy.verification.mutation.rerun import Target, site_groups
from normdeploy.verification.mutation.watched_sites import SiteWatch
from normdeploy.verification.sides.call_record import CallRecord
from normdeploy.verification.sides.double import Seen
from normdeploy.verification.sides.exact_agreement import is_float
from normdeploy.verification.sides.flat_values import Feeds
from normdeploy.verification.sides.two_sides import EagerReference

Result = TypeVar("Result")


def run_named(context: Context, module: EagerReference, example: Feeds) -> list[Array]:
    """Return the module's outputs in its own precision; at a level that may do with it, find the sites it names.

    Raises:
        Refused: the module raised.
    """
    asked = context.level.lean and _asks(context)
    if not asked or context.noisy is None or context.noisy.decides or context.evaluator is None:
        return module.native(example)
    if not _holds_state(context.evaluator.graph, module):
        return module.native(example)  # a weight off by little may show in no output
    record = CallRecord()
    outputs = module.under(example, record)
    try:
        named = NamedSites(context.evaluator, site_groups(context), record)
    except GraphError:  # what follows from constants cannot be evaluated here: the graph is asked as a whole
        return outputs
    if not named.left and all(map(is_float, outputs)):
        context.named, context.watched = named.same, (named.count, named.ratios)
    return outputs


def _holds_state(graph: ir.Graph, module: EagerReference) -> bool:
    """Tell whether all tensors of floats that a graph stores are the module's, to the bit; mostly its very memory."""
    state = module.model.state_dict()
    for name, value in graph.initializers.items():
        tensor, own = value.const_value, state.get(name)
        if tensor is None or tensor.dtype not in FLOATS or (own is None and tensor.size == 1):
            continue
        if not isinstance(own, Tensor) or own.is_quantized:
            return False  # a table that forward makes, or a weight of who knows where
        there, here = tensor.numpy(), to_numpy(own)
        if there.shape != here.shape or there.dtype != here.dtype:
            return False
        shared = there.ctypes.data == here.ctypes.data and there.strides == here.strides
        if not shared and not np.array_equal(there, here, equal_nan=True):
            return False
    return True


def follow_trace(context: Context, example: Feeds, run: Callable[[Seen | None], Result], *, weigh: bool) -> Result:
    """Evaluate the traced graph on the example, then the module, and hold each site of the one against the other.

    Args:
        run: runs the module in float64; its argument sees each call. It returns what this returns.
        weigh: set what an evaluation costs by this one; otherwise it counts as one more.
    """
    watch, graph = site_watch(context, example), context.evaluator
    targets = [] if watch is None else _mutants(context)
    calls = None if watch is None or graph is None else CallWatch(graph, targets, example, sites=watch)
    watches = [one for one in (watch, calls) if one is not None]
    context.run_traced(example, hook=_each([one.graph_hook for one in watches]), weigh=weigh)
    result = run(_each([one.module_call for one in watches]))
    if calls is not None:
        context.called = {key_of(targets[place]): ratio for place, ratio in calls.ratios.items()}
        context.effort.spend(calls.work, example)
    keep_watched(context, watch)
    return result


def follow_after_all(context: Context) -> None:
    """Follow the traced graph on the example where that was left out so far."""
    module, example = context.reference, context.example
    if context.named is None:
        return
    context.named = None
    if example is not None and isinstance(module, EagerReference):
        follow_trace(context, example.feeds, lambda seen: module.truth(example.feeds, seen=seen), weigh=False)


def site_watch(context: Context, example: Feeds) -> SiteWatch | None:
    """Return what holds each site of the traced graph against the module; None where mutants are run one by one."""
    if not _asks(context):
        return None
    assert context.evaluator is not None
    own = not isinstance(context.reference, EagerReference)
    return SiteWatch(context.evaluator.graph, site_groups(context), example, reference=own)


def keep_watched(context: Context, watch: SiteWatch | None) -> None:
    """Keep what a comparison of sites showed."""
    if watch is not None:
        context.watched, context.watched_coarsely = watch.compared(), watch.compared(OTHER_ROUNDING)[1]


def _asks(context: Context) -> bool:
    graph = context.evaluator is not None and context.canonical is not None and context.reference.graph is not None
    asked = context.level.sensitivity and not context.failed  # of a file that fails no mutant is
    return graph and asked and not context.level.exact_mutants


def _mutants(context: Context) -> list[Target]:
    """Return what single calls of the module may show."""
    groups = site_groups(context)
    return [Target(own, site, m) for own, sites in groups for site in sites for m in site.mutants if not m.nothing]


def _each(watches: Sequence[Callable[..., None]]) -> Callable[..., None] | None:
    """Return what calls all of some, in this order; None where there is none."""

    def each(*given: Any) -> None:
        for watch in watches:
            watch(*given)

    return each if watches else None
