"""Does the reference run on the inputs? The example, the user's data and the generated families become cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from normdeploy.array_types import Arrays
from normdeploy.errors import GraphError
from normdeploy.verification.check_context import Context
from normdeploy.verification.evaluation_cost import SINGLE
from normdeploy.verification.family_case import Case
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.samples.families import make_families
from normdeploy.verification.samples.family import Family, Kind, holding, removing, user_families, without_numbers
from normdeploy.verification.samples.ranges import batch_name, resized
from normdeploy.verification.sides.exact_agreement import is_float, nowhere_finite
from normdeploy.verification.sides.two_sides import Refused

_ALWAYS = 1
"""How many generated families are judged whatever they cost, but where the example says enough."""

_SHARE = 0.4
"""Share of a level's work after which no further family is judged."""


def check_reference(context: Context, example: Arrays, data: Any) -> list[Check]:
    """Evaluate the reference on the example, the user's data and the generated families, most telling first.

    Raises:
        InputError: the data do not fit the inputs.
    """
    name = batch_name(context.specs)
    specs = resized(context.specs, {name: 1 if context.heavy else context.level.batch}) if name else context.specs
    families = [Family("example", example, Kind.EXAMPLE)]
    if data is not None:
        families += user_families(data, context.specs, rows=context.level.user_rows)
    else:
        context.not_checked.append("your own data (none was given)")
    # where it is neither confirmed nor known to hold a wrong number, samples are all there is
    proven = context.failed or (context.proven is not None and context.proven.confirmed)
    generated = list(make_families(specs, seed=context.seed, epsilons=context.epsilons, equal=not proven))
    kept = generated if context.level.families is None else generated[: context.level.families]
    kept += [family for family in generated[len(kept) :] if family.kind is Kind.RARE and not proven]
    kept = [*_at_guards(context, [generated[0], families[0]]), *kept]
    checks: list[Check] = []
    always = 0 if (context.lean or context.confirmed_and_heavy) and _varied(example) else _ALWAYS
    for number, family in enumerate([*families, *kept]):
        context.tell("reference", number / (len(families) + len(kept)))
        if number >= len(families) + always and not context.effort.affords(_SHARE):
            context.waiting.append(family)
            continue
        checks += add_case(context, family)
    context.waiting += [family for family in generated if not any(family is other for other in kept)]
    while context.waiting and not any(map(_has_numbers, context.cases)):
        checks += add_case(context, context.waiting.pop(0))
    context.cases.sort(key=lambda case: not _has_numbers(case))  # the first is what sites are looked at on
    return checks


def _has_numbers(case: Case) -> bool:
    """Tell whether every output holds numbers: the logarithm of N(0, 1) does not, that of an image does."""
    return not any(nowhere_finite([array]) for array in case.truth)


def _at_guards(context: Context, bases: Sequence[Family]) -> Iterator[Family]:
    """Yield families of what the reference takes of an input that a guard looks at: integers, and what is no number.

    Args:
        bases: what the other places hold: the first that the reference takes.
    """
    for spec in context.specs:
        base = next((base for base in bases if _takes(context, base)), None) if spec.guarded else None
        if base is not None:
            each = {number: next(holding(base, spec, [number]), None) for number in spec.guarded}
            taken = [number for number, family in each.items() if family is not None and _takes(context, family)]
            yield from holding(base, spec, taken, every=2)
        if spec.removes and spec.shape and _takes(context, removing(bases[0], spec)):
            yield removing(bases[0], spec)
        if spec.may_be_nan:
            yield from (family for family in without_numbers(bases[0], spec) if _takes(context, family, finite=True))


def _takes(context: Context, family: Family, *, finite: bool = False) -> bool:
    """Tell whether the reference runs on a family; finite: and makes numbers of it, everywhere."""
    context.effort.spend(SINGLE, family.feeds)
    try:
        outputs = context.reference.native(family.feeds)
    except (Refused, GraphError):
        return False
    return not finite or all(not is_float(array) or bool(np.isfinite(array).all()) for array in outputs)


def _varied(example: Arrays) -> bool:
    """Tell whether an example says something of every input: one of zeros, as exporters are often given, does not."""
    return all(np.ptp(array) > 0 for array in example.values() if array.dtype.kind == "f" and array.size > 1)


def add_case(context: Context, family: Family) -> list[Check]:
    """Evaluate the reference on a family; where it or its graph cannot be run on it, say which of the two.

    Returns:
        an error where they are the user's own inputs; otherwise the verdict merely names the family.
    """
    try:
        context.cases.append(context.case(family))
        return []
    except Refused as error:
        given, made = f"the reference fails on {family.name}: {error}", f"the reference itself refuses it ({error})"
    except GraphError as error:
        given = f"the reference's graph cannot be evaluated on {family.name} here: {error}"
        made = f"the reference's graph cannot be evaluated on it here ({error})"
    if family.user:
        return [Check(Question.REFERENCE, Status.ERROR, given)]
    context.refused.setdefault(made, []).append(family.name)
    return []


def left_out_in_words(refused: Mapping[str, Sequence[str]]) -> list[str]:
    """Return in sentences which families were left out. Args: refused: their names, by what was said of them."""
    one, several = "input family {0}: {2}", "{1} input families ({0}): {2}"
    return [
        (one if len(names) == 1 else several).format(", ".join(map(repr, names)), len(names), why)
        for why, names in refused.items()
    ]
