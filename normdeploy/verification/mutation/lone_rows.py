"""Rows without a neighbour, whose statistics no mutant can take.

A class token is normalized as the one row of its sample. Where the graph fixes that there is one, a norm that takes a
neighbour's statistics is the right one, for every input. Where only the samples of a batch stand beside each other,
an example of one sample says nothing of it: the traced graph's sites are held against the module on a batch of two.
"""

from __future__ import annotations

from collections.abc import Sequence

from normdeploy.errors import GraphError
from normdeploy.verification.check_context import Context
from normdeploy.verification.mutation.mutants import Site
from normdeploy.verification.mutation.rerun import Target, by_graph
from normdeploy.verification.mutation.watched_sites import Key, SiteWatch
from normdeploy.verification.samples.families import make_families
from normdeploy.verification.samples.family import Family
from normdeploy.verification.samples.ranges import batch_name, resized
from normdeploy.verification.sides.flat_values import run_evaluator
from normdeploy.verification.sides.two_sides import EagerReference, Refused


def one_row(site: Site) -> bool:
    """Tell whether the graph fixes that what a norm by row reads is one row."""
    value = site.node.inputs[0]
    if site.inner or value is None or value.shape is None:
        return False
    axis = site.node.attributes.get_int("axis", -1) % max(len(value.shape), 1)
    return all(size == 1 for size in value.shape[:axis])


def two_rows(context: Context) -> Family:
    """Return two samples of N(0, 1)."""
    batch = batch_name(context.specs)
    assert batch is not None
    family = next(make_families(resized(context.specs, {batch: 2}), seed=context.seed + 71))
    return Family(f"{batch}=2", family.feeds)


def watched_on(context: Context, targets: Sequence[Target], family: Family) -> dict[Key, float]:
    """Return by how many times each mutant would have shown at its site, on a family that was not looked at before.

    Args:
        targets: the mutants. family: the inputs; nothing is known of those that module or graph do not take.
    """
    evaluator, reference = context.evaluator, context.reference
    if evaluator is None:
        return {}
    eager = isinstance(reference, EagerReference)
    watch = SiteWatch(evaluator.graph, by_graph(targets), family.feeds, reference=not eager)
    context.effort.spend(1 + eager, family.feeds)
    try:
        run_evaluator(evaluator, family.feeds, hook=watch.graph_hook)
        if isinstance(reference, EagerReference):
            reference.truth(family.feeds, seen=watch.module_call)
    except (Refused, GraphError):
        return {}
    return watch.compared()[1]
