"""Mutants that calls of the module show (:mod:`.called_parts`), on one family of inputs after another.

A time that is multiplied by 10,000 in front of a sine turns the rounding of one stored frequency into 1e-3 of all that
stands behind it: module and trace are no longer the same numbers there, and no call of the one is found in the other.
At a time of 0 the sines are exact, and nothing of the network behind is lost, since the other inputs are what they
were. So, where something is left, the example is taken with one of its inputs at zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from normdeploy.errors import GraphError
from normdeploy.verification.check_context import Context
from normdeploy.verification.mutation.called_parts import CallWatch, key_of
from normdeploy.verification.mutation.rerun import Target
from normdeploy.verification.record.answers import Killer
from normdeploy.verification.samples.family import Family
from normdeploy.verification.sides.flat_values import Feeds
from normdeploy.verification.sides.two_sides import EagerReference, Refused

_FAMILIES = 2
"""On how many families calls are compared, the example's first."""

_FEW = 3
"""How many inputs are tried, those of fewest numbers first: times, sizes and scales are single numbers."""


def kill_by_calls(context: Context, targets: Sequence[Target]) -> None:
    """Kill what a call of the module would have shown, on one family after another until nothing is left or shown.

    Args:
        targets: mutants that nothing was found of yet.
    """
    _not_shown(context, targets, [case.family for case in context.cases[:_FAMILIES]])


def kill_by_quiet_calls(context: Context, targets: Sequence[Target]) -> None:
    """Kill what a call of the module shows on the example with one of its inputs at zero.

    Args:
        targets: mutants that nothing else was found of.
    """
    alive = targets
    for family in _quiet_families(context.cases[0].family.feeds) if context.cases else ():
        try:
            alive = _not_shown(context, alive, [family])
        except (Refused, GraphError):
            continue  # it takes no 0 there


def _not_shown(context: Context, targets: Sequence[Target], families: Sequence[Family]) -> Sequence[Target]:
    """Mark what calls show on one family after another, and return the others."""
    reference, evaluator, alive = context.reference, context.evaluator, targets
    if not context.links.hold or evaluator is None or not isinstance(reference, EagerReference):
        return alive
    for family in families:
        if not alive:
            break
        if context.called is not None and context.example is not None and family.feeds is context.example.feeds:
            ratios = {place: context.called.get(key_of(target), 0.0) for place, target in enumerate(alive)}
        else:
            watch = CallWatch(evaluator, alive, family.feeds)
            if not watch.asks:
                break
            reference.truth(family.feeds, seen=watch.module_call)
            context.effort.spend(1 + watch.work, family.feeds)
            ratios = watch.ratios
        for place, ratio in ratios.items():
            if ratio >= context.cases[0].constants.kill:
                alive[place].killed, alive[place].chain_ratio = Killer.MODULE, ratio
                alive[place].family = family.name
        alive = [target for target in alive if not target.killed]
    return alive


def _quiet_families(example: Feeds) -> Iterator[Family]:
    """Yield the example with one input at zero, one after the other; none where there is but one input."""
    if len(example) < 2:
        return
    for name in sorted(example, key=lambda name: example[name].size)[:_FEW]:
        if example[name].dtype.kind in "iuf" and example[name].any():
            yield Family(f"the example with {name!r} at 0", {**example, name: np.zeros_like(example[name])})
